/* The world: its lifetime, its groups, and the listener through which ranks of other hosts connect. */
#include "comm/world.h"

#include "comm/bootstrap/star.h"
#include "comm/comm_internal.h"
#include "comm/forks.h"
#include "comm/transport/mpi/mpi.h"
#include "comm/transport/segment/message.h"
#include "comm/transport/tcp/tcp.h"

#include <string.h>
#include <unistd.h>

struct lksi_caller {
    lksi_caller *next;
    lksi_door_hello hello;
    int descriptor;
};

/* --- forked children ---
 * A child has no other threads, so none would release a world's mutex or end a call on messages. Lock order:
 * worlds_mutex, then the mutex of each world. The fork handlers (forks.c) hold all of them. */

static pthread_mutex_t worlds_mutex = PTHREAD_MUTEX_INITIALIZER;
static lksi_world *worlds;

void lksi_worlds_hold(void) {
    pthread_mutex_lock(&worlds_mutex);
    for (lksi_world *each = worlds; each != NULL; each = each->next) pthread_mutex_lock(&each->mutex);
}

void lksi_worlds_let_go(void) {
    for (lksi_world *each = worlds; each != NULL; each = each->next) pthread_mutex_unlock(&each->mutex);
    pthread_mutex_unlock(&worlds_mutex);
}

void lksi_worlds_end_calls(void) {
    for (const lksi_world *world = worlds; world != NULL; world = world->next)
        for (lks_group *each = world->groups; each != NULL; each = each->next_in_world) {
            each->is_moved = false;
            lksi_messenger_leave(each);
        }
    lksi_worlds_let_go();
}

static void link_in(lksi_world *world) {
    lksi_prepare_for_forks();
    pthread_mutex_lock(&worlds_mutex);
    world->next = worlds;
    worlds = world;
    pthread_mutex_unlock(&worlds_mutex);
}

static void link_out(const lksi_world *world) {
    pthread_mutex_lock(&worlds_mutex);
    lksi_world **link = &worlds;
    while (*link != world) link = &(*link)->next;
    *link = world->next;
    pthread_mutex_unlock(&worlds_mutex);
}

/* --- its lifetime --- */

lks_status lksi_world_create(lksi_world **world, lksi_thread_world *threads) {
    lksi_world *created = lksi_alloc(sizeof *created);
    if (created == NULL) return LKS_ERR_MEMORY;
    created->n_holding = 1;
    created->n_forks = lksi_n_forks;
    created->threads = threads;
    created->door = -1;
    pthread_mutex_init(&created->mutex, NULL);
    link_in(created);
    *world = created;
    return LKS_OK;
}

void lksi_world_hold(lksi_world *world) { atomic_fetch_add(&world->n_holding, 1); }

static void shut(lksi_world *world) {
    if (world->is_mpi) lksi_mpi_let_go();
    lksi_watch_destroy(world->watch);
    lksi_acceptor_destroy(world->acceptor);
    if (world->door >= 0) close(world->door);
    for (const lksi_caller *each = world->callers; each != NULL; each = each->next) close(each->descriptor);
}

/* For a forked child. The thread and MPI are its parent's, and so is what the descriptors refer to. The child closed
 * most of its copies at the fork: their numbers may be the program's now. */
static void forget(lksi_world *world) {
    lksi_watch_forget(world->watch);
    lksi_acceptor_forget(world->acceptor);
}

void lksi_world_release(lksi_world *world) {
    if (world == NULL || atomic_fetch_sub(&world->n_holding, 1) > 1) return;
    if (world->n_forks == lksi_n_forks)
        shut(world);
    else
        forget(world);
    while (world->callers != NULL) {
        lksi_caller *gone = world->callers;
        world->callers = gone->next;
        lksi_free(gone);
    }
    link_out(world);
    pthread_mutex_destroy(&world->mutex);
    lksi_free(world->left);
    lksi_free(world);
}

/* --- the door: an accepted connection goes to its group, or is kept until the group is made --- */

/* Closes a connection for a group that this rank has left or could not make. On a control connection it says goodbye
 * first, so that the peer does not take the end for a lost rank. */
static void dismiss(const lksi_door_hello *hello, int descriptor) {
    const lksi_star_record goodbye = {.kind = LKSI_STAR_GOODBYE, .group = hello->group_id};
    if (hello->purpose == LKSI_DOOR_CONTROL) (void)lksi_star_send(descriptor, &goodbye);
    close(descriptor);
}

static void keep(lksi_world *world, const lksi_door_hello *hello, int descriptor) {
    lksi_caller *kept = lksi_alloc(sizeof *kept);
    if (kept == NULL) {
        close(descriptor); /* the peer reports the end of the connection */
        return;
    }
    *kept = (lksi_caller){world->callers, *hello, descriptor};
    world->callers = kept;
}

static bool has_left(const lksi_world *world, uint64_t group_id) {
    for (size_t i = world->n_left; i > 0; i--)
        if (world->left[i - 1] == group_id) return true;
    return false;
}

static void arrive(void *opaque, int descriptor, const void *said) {
    lksi_world *world = opaque;
    lksi_door_hello hello; /* a copy, because `said` may be unaligned */
    memcpy(&hello, said, sizeof hello);
    pthread_mutex_lock(&world->mutex);
    lks_group *group = world->groups;
    while (group != NULL && group->id != hello.group_id) group = group->next_in_world;
    if (group != NULL)
        lksi_tcp_take(group, &hello, descriptor);
    else if (hello.purpose == LKSI_DOOR_VISIT || has_left(world, hello.group_id))
        dismiss(&hello, descriptor);
    else
        keep(world, &hello, descriptor);
    pthread_mutex_unlock(&world->mutex);
}

static bool knock(void *opaque, int descriptor) {
    (void)descriptor;
    lksi_acceptor_step(opaque);
    return true;
}

lks_status lksi_world_open_door(lksi_world *world, int door) {
    world->door = door;
    LKS_TRY(lksi_acceptor_create(&world->acceptor, door, world->secret.key, sizeof(lksi_door_hello), arrive, world));
    /* So that forked children close their copies: nothing would accept connections there. */
    LKS_TRY(lksi_watch_add(world->watch, door, LKSI_WATCH_NOTHING, NULL, NULL));
    return lksi_watch_add(world->watch, lksi_acceptor_descriptor(world->acceptor), LKSI_WATCH_INPUT, knock,
                          world->acceptor);
}

static bool has_entered(const lksi_world *world, const lks_group *group) {
    const lks_group *each = world->groups;
    while (each != NULL && each != group) each = each->next_in_world;
    return each != NULL;
}

void lksi_world_enter(lksi_world *world, lks_group *group) {
    pthread_mutex_lock(&world->mutex);
    if (!has_entered(world, group)) {
        group->next_in_world = world->groups;
        world->groups = group;
    }
    for (lksi_caller **link = &world->callers; *link != NULL;) {
        lksi_caller *each = *link;
        if (each->hello.group_id != group->id) {
            link = &each->next;
            continue;
        }
        *link = each->next;
        lksi_tcp_take(group, &each->hello, each->descriptor);
        lksi_free(each);
    }
    pthread_mutex_unlock(&world->mutex);
}

/* Without memory for the id, later connections for that group are kept until the world ends. */
static void remember_left(lksi_world *world, uint64_t group_id) {
    if (lksi_grow((void **)&world->left, &world->left_capacity, world->n_left + 1, sizeof *world->left) == LKS_OK)
        world->left[world->n_left++] = group_id;
}

/* Dismisses connections that were kept for the group. */
static void turn_away(lksi_world *world, uint64_t group_id) {
    for (lksi_caller **link = &world->callers; *link != NULL;) {
        lksi_caller *each = *link;
        if (each->hello.group_id != group_id) {
            link = &each->next;
            continue;
        }
        *link = each->next;
        dismiss(&each->hello, each->descriptor);
        lksi_free(each);
    }
}

void lksi_world_leave(lksi_world *world, lks_group *group) {
    pthread_mutex_lock(&world->mutex);
    lks_group **link = &world->groups;
    while (*link != NULL && *link != group) link = &(*link)->next_in_world;
    if (*link != NULL) *link = group->next_in_world;
    if (world->door >= 0) {
        turn_away(world, group->id);
        remember_left(world, group->id);
    }
    pthread_mutex_unlock(&world->mutex);
}

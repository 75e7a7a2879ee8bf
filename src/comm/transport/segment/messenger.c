/* Which thread a group's messages are: the one that used them last, its messenger.
 *
 *     thread 1   group A   wait ── moves on what it has begun in B ── ...
 *                group B   isend
 *     thread 2   group C   recv ...
 *
 * A thread that waits in one group moves on its messages in all others of the world, as MPI does: the ranks that it
 * waits for may first wait for those. Another thread's it leaves alone. A group may go from thread to thread between
 * calls; the new one takes it over, which the world's mutex orders.
 */
#include "comm/transport/segment/message.h"
#include "comm/world.h"

enum { MOMENT_NS = 10 * 1000 };

static const void *this_thread(void) {
    static _Thread_local char mark __attribute__((tls_model("initial-exec")));
    return &mark;
}

static const void *messenger_of(const lks_group *group) {
    return atomic_load_explicit(&group->messenger, memory_order_relaxed);
}

/* False where the other thread is in a call on the messages. It may be moving them on from elsewhere: that ends. */
static bool take_over(lks_group *group) {
    if (messenger_of(group) == this_thread()) return true;
    pthread_mutex_lock(&group->world->mutex);
    while (group->is_moved) {
        pthread_mutex_unlock(&group->world->mutex);
        lksi_sleep_ns(MOMENT_NS);
        pthread_mutex_lock(&group->world->mutex);
    }
    bool is_free = !atomic_load_explicit(&group->is_in_message, memory_order_relaxed);
    if (is_free) atomic_store_explicit(&group->messenger, this_thread(), memory_order_relaxed);
    pthread_mutex_unlock(&group->world->mutex);
    return is_free;
}

/* The dead group ends the first thread's call; what it holds is whole by then. */
static void refuse_second_thread(lks_group *group, const char *name) {
    (void)lksi_group_fail(group,
                          lksi_error(LKS_ERR_STATE,
                                     "%s: another thread of rank %d is in a send or receive of the same group, which "
                                     "is for one thread at a time",
                                     name, lksi_world_rank(group, group->rank)));
    while (!take_over(group)) lksi_sleep_ns(MOMENT_NS);
}

void lksi_messenger_enter(lks_group *group, const char *name) {
    if (!take_over(group)) refuse_second_thread(group, name);
    atomic_store_explicit(&group->is_in_message, true, memory_order_relaxed);
}

void lksi_messenger_leave(lks_group *group) {
    atomic_store_explicit(&group->is_in_message, false, memory_order_relaxed);
}

void lksi_messenger_take(lks_group *group) {
    if (messenger_of(group) != NULL) (void)take_over(group);
}

bool lksi_poke_own(lks_group *group) {
    bool is_any = false;
    if (lksi_work_is_worker()) return false; /* they are the other thread's, even to look at */
    for (; group != NULL; group = group->parent)
        if (messenger_of(group) != NULL && take_over(group)) is_any |= lksi_messages_move_on(group);
    return is_any;
}

/* Without the mutex, which a connection that comes in needs: is_moved keeps the group where it is in the list. */
static bool poke_others(const lks_group *group) {
    lksi_world *world = group->world;
    bool is_any = false;
    pthread_mutex_lock(&world->mutex);
    for (lks_group *each = world->groups; each != NULL; each = each->next_in_world) {
        if (each == group || messenger_of(each) != this_thread() || lksi_is_parents(each)) continue;
        each->is_moved = true;
        pthread_mutex_unlock(&world->mutex);
        is_any |= lksi_messages_move_on(each);
        pthread_mutex_lock(&world->mutex);
        each->is_moved = false;
    }
    pthread_mutex_unlock(&world->mutex);
    return is_any;
}

bool lksi_poke(lks_group *group, lksi_context context) {
    if (lksi_work_is_worker()) return false;
    bool is_any = context == LKSI_CONTEXT_COLLECTIVE && lksi_poke_own(group);
    return poke_others(group) || is_any;
}

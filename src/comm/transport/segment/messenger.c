/* Which thread owns a group's messages: the thread that used them last, called the messenger of the group.
 *
 *     thread 1   group A   wait ── progresses what it has begun in B ── ...
 *                group B   isend
 *     thread 2   group C   recv ...
 *
 * A thread that waits in one group progresses its messages in all other groups of the world, as MPI does: the ranks
 * that it waits for may first wait for those messages. It does not touch messages of other threads. A group may move
 * from thread to thread between calls. The new thread then takes it over. The world's mutex orders that.
 */
#include "comm/transport/segment/message.h"
#include "comm/world.h"

enum { MOMENT_NS = 10 * 1000 };

static const void *this_thread(void) {
    static _Thread_local char mark;
    return &mark;
}

static const void *messenger_of(const lks_group *group) {
    return atomic_load_explicit(&group->messenger, memory_order_relaxed);
}

/* Makes this thread the messenger. False if the old messenger is in a call on the messages. If the old messenger is
 * progressing them from a call on another group (is_moved), this waits until it is done, which takes bounded time. */
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

/* Kills the group, which ends the first thread's call. This waits for that, so that the messages are in a consistent
 * state when this thread takes over. */
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
    if (lksi_work_is_worker()) return false; /* messages belong to the calling thread; a worker must not read them */
    for (; group != NULL; group = group->parent)
        if (messenger_of(group) != NULL && take_over(group)) is_any |= lksi_messages_move_on(group);
    return is_any;
}

/* The mutex is released during the progress, because an incoming connection needs it. is_moved keeps the group in the
 * list meanwhile. */
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

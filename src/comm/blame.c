/* Finds the rank that caused a timeout. The awaited rank may itself wait for another rank, and so on. The rank at the
 * end of that chain is the one to look at.
 *
 *     rank 0 waits for rank 1, which waits for rank 2, which is stopped        => rank 2
 *
 * A rank that is stopped or does not answer comes first. Next comes the first rank of the chain that does not wait, or
 * that waits in another group. If all ranks wait in a circle, it is the rank that is furthest behind: it was stopped
 * before it could publish that, or has left out a call. If no rank is behind, it is the awaited rank, and the text says
 * which rank that one waits for.
 *
 * A chain that goes on in another group is not followed there. But if a rank of this host is stopped in any group of
 * this process, the text names it.
 */
#include "comm/comm_internal.h"
#include "comm/world.h"

#include <unistd.h>

static lksi_doing look_at(const lks_group *group, int seat) {
    const lksi_activity *activities = group->control->seats[seat].activities;
    lksi_doing doing = {.is_known = true, .awaited = -1};
    for (int context = 0; context < LKSI_N_CONTEXTS; context++) {
        int32_t awaited = atomic_load_explicit(&activities[context].awaited, memory_order_relaxed);
        if (awaited != 0) doing.awaited = awaited > 0 ? awaited - 1 : LKSI_DOING_ANY;
    }
    doing.sequence = atomic_load_explicit(&activities[LKSI_CONTEXT_COLLECTIVE].sequence, memory_order_relaxed);
    lksi_elsewhere_describe(group, group->rank_of[seat], doing.elsewhere, sizeof doing.elsewhere);
    return doing;
}

/* A rank that waits over a network wakes periodically to check its streams. This must not count as work. On a busy
 * machine such a check may take long. So an awake rank is looked at several times. */
enum { MAX_LOOKS = 20, BETWEEN_LOOKS_NS = 1000000 };

lksi_doing lksi_doing_of_seat(const lks_group *group, int seat) {
    lksi_doing doing = look_at(group, seat);
    for (int i = 1; i < MAX_LOOKS && doing.awaited == -1; i++) {
        lksi_sleep_ns(BETWEEN_LOOKS_NS);
        doing = look_at(group, seat);
    }
    return doing;
}

/* The same for all seats at once. */
static void look_at_all(const lks_group *group, lksi_doing *doing) {
    for (int i = 0, n_awake = 1; i < MAX_LOOKS && n_awake > 0; i++) {
        if (i > 0) lksi_sleep_ns(BETWEEN_LOOKS_NS);
        n_awake = 0;
        for (int seat = 0; seat < group->n_seats; seat++) {
            lksi_doing *each = &doing[group->rank_of[seat]];
            if (i == 0 || each->awaited == -1) *each = look_at(group, seat);
            n_awake += each->awaited == -1;
        }
    }
}

/* Ranks that are threads of this process stop together with this rank, so they are never found stopped. */
static bool is_stopped(const lks_group *group, int seat) {
    int pid = group->control->seats[seat].identity.pid;
    lksi_process_stat stat;
    return lksi_control_knows_pid(group->control, group->seat, seat) && pid != (int)getpid() &&
           lksi_process_read_stat(pid, &stat) && stat.is_stopped;
}

/* Collects what all ranks are doing. Ranks on other hosts must be asked (can_ask). If they are not, they count as known
 * and not waiting. */
static void find_out(const lks_group *group, bool can_ask, lksi_doing *doing) {
    for (int rank = 0; rank < group->size; rank++) doing[rank] = (lksi_doing){.is_known = !can_ask, .awaited = -1};
    if (can_ask) group->remote->roll_call(group, LKSI_ROLL_CALL_MS, doing);
    look_at_all(group, doing);
    for (int seat = 0; seat < group->n_seats; seat++) {
        lksi_doing *each = &doing[group->rank_of[seat]];
        each->is_known = seat == group->seat || !is_stopped(group, seat);
    }
}

bool lksi_has_left(const lks_group *group, int rank) {
    int seat = group->seat_of[rank];
    if (seat >= 0) return atomic_load(&group->control->seats[seat].presence.value) == LKSI_LEFT;
    return group->remote != NULL && group->remote->has_left != NULL && group->remote->has_left(group, rank);
}

bool lksi_can_ask(const lks_group *group) {
    return group->remote != NULL && group->remote->roll_call != NULL && !lksi_has_left(group, 0);
}

/* The rank that is furthest behind, of the ranks on this host and, if they were asked (asks), on other hosts. */
static int furthest_behind(const lks_group *group, const lksi_doing *doing, bool asks, int awaited) {
    int last = awaited;
    for (int rank = 0; rank < group->size; rank++) {
        bool is_seen = asks || group->seat_of[rank] >= 0;
        if (!is_seen || rank == group->rank || lksi_has_left(group, rank)) continue;
        if (doing[rank].sequence < doing[last].sequence) last = rank;
    }
    return last;
}

/* Describes a rank in a circle of waits. */
static void explain_circle(const lks_group *group, const lksi_doing *doing, bool is_behind, char *why,
                           size_t why_nbytes) {
    char awaited[32] = "";
    if (doing->awaited >= 0 && doing->awaited < group->size)
        snprintf(awaited, sizeof awaited, "waits for rank %d", lksi_world_rank(group, doing->awaited));
    if (is_behind)
        snprintf(why, why_nbytes, "is furthest behind, at call %llu%s%s", (unsigned long long)doing->sequence,
                 awaited[0] != '\0' ? ", and " : "", awaited);
    else
        snprintf(why, why_nbytes, "%s", awaited);
}

/* Writes "; rank 1 (host a, pid 7) is stopped". Returns false if no rank of this host is. */
static bool find_stopped(lksi_world *world, char *text, size_t text_nbytes) {
    bool is_found = false;
    pthread_mutex_lock(&world->mutex);
    for (const lks_group *group = world->groups; group != NULL && !is_found; group = group->next_in_world)
        for (int seat = 0; seat < group->n_seats && !is_found; seat++) {
            int rank = group->rank_of[seat];
            is_found = !lksi_has_left(group, rank) && is_stopped(group, seat);
            if (is_found) snprintf(text, text_nbytes, "; %s is stopped", lksi_rank_describe(group, rank).text);
        }
    pthread_mutex_unlock(&world->mutex);
    return is_found;
}

static void explain(const lks_group *group, const lksi_doing *doing, bool is_seen, char *why, size_t why_nbytes) {
    char stopped[128];
    if (!is_seen)
        why[0] = '\0';
    else if (doing->elsewhere[0] != '\0')
        snprintf(why, why_nbytes, "is in %s%s", doing->elsewhere,
                 find_stopped(group->world, stopped, sizeof stopped) ? stopped
                                                                     : " (do all ranks make the same calls?)");
    else if (doing->awaited == LKSI_DOING_ANY)
        snprintf(why, why_nbytes, "waits for any rank");
    else
        snprintf(why, why_nbytes, "waits for nobody");
}

static int follow(const lks_group *group, const lksi_doing *doing, bool asks, int awaited, char *why,
                  size_t why_nbytes) {
    for (int rank = 0; rank < group->size; rank++) {
        if (doing[rank].is_known || rank == group->rank || lksi_has_left(group, rank)) continue;
        snprintf(why, why_nbytes, group->seat_of[rank] >= 0 ? "is stopped" : "does not answer");
        return rank; /* rank 0 is checked first: without it no answer is forwarded */
    }
    if (awaited < 0) return awaited;
    int end = awaited, n_hops = 0;
    while (doing[end].awaited >= 0 && doing[end].awaited < group->size && n_hops++ < group->size)
        end = doing[end].awaited;
    bool is_circle = n_hops > group->size || end == group->rank;
    if (is_circle) {
        end = furthest_behind(group, doing, asks, awaited);
        explain_circle(group, &doing[end], doing[end].sequence < doing[group->rank].sequence, why, why_nbytes);
    } else {
        if (lksi_has_left(group, end))
            snprintf(why, why_nbytes, "has left the group");
        else
            explain(group, &doing[end], asks || group->seat_of[end] >= 0, why, why_nbytes);
    }
    return end;
}

int lksi_blame(const lks_group *group, bool asks, int awaited, char *why, size_t why_nbytes) {
    why[0] = '\0';
    lksi_doing *doing = lksi_alloc_array((size_t)group->size, sizeof *doing);
    if (doing == NULL) return awaited;
    bool can_ask = asks && lksi_can_ask(group);
    find_out(group, can_ask, doing);
    int blamed = follow(group, doing, can_ask, awaited, why, why_nbytes);
    lksi_free(doing);
    return blamed;
}

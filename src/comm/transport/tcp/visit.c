/* Visits. Once the first rank has left, no rank forwards who leaves or is lost. So a rank visits the ranks it waits
 * for:
 *
 *     rank 2 waits for rank 1     ── visit ──────> rank 1's door
 *                                 <── welcome ──── its watch
 *                                 <── goodbye ──── when it leaves; an end without one is a lost rank
 *
 * Only the visited rank sends. If no process answers, the rank has left before or was lost: it is unknown which.
 */
#define _GNU_SOURCE /* dup3 */
#include "comm/bootstrap/dial.h"
#include "comm/transport/tcp/tcp.h"

#include <fcntl.h>
#include <unistd.h>

/* Limit of one visit. The watch thread of a rank answers whatever the rank does. A stopped rank is visited again, or
 * our deadline passes. */
#define VISIT_LIMIT_NS (INT64_C(500) * 1000 * 1000)
/* Pause between two visits, because a visit blocks the thread. */
#define VISIT_PAUSE_NS (INT64_C(500) * 1000 * 1000)
/* After a failed visit: streams that the rank opened before it left may still wait to be accepted here. */
#define PATIENCE_NS (INT64_C(50) * 1000 * 1000)

static void visit(lks_group *group, int rank) {
    lksi_line *line = &lksi_star_of(group)->lines[rank];
    lksi_door_hello hello = {.group_id = group->id, .purpose = LKSI_DOOR_VISIT, .from = group->rank};
    int descriptor = -1;
    lks_status status = lksi_dial(&group->members[rank].address, group->world->secret.key, &hello, sizeof hello,
                                  lksi_running_ns() + VISIT_LIMIT_NS, false, lksi_tcp_is_over, group, &descriptor);
    if (status == LKS_ERR_PEER && !lksi_tcp_is_over(group)) lksi_tcp_find_gone(line);
    if (status != LKS_OK && status != LKS_ERR_PEER) {
        atomic_store(&line->next_visit_ns, lksi_now_ns() + VISIT_PAUSE_NS);
        atomic_store(&line->is_visited, false);
    }
    if (status != LKS_OK) return;
    atomic_store(&line->descriptor, descriptor);
    (void)lksi_watch_add(group->world->watch, descriptor, LKSI_WATCH_INPUT, lksi_star_notice, line);
}

void lksi_tcp_attend(lks_group *group, int rank) {
    lksi_line *line = &lksi_star_of(group)->lines[rank];
    if (rank == 0 || group->rank == 0 || !lksi_tcp_star_has_left(group, 0)) return;
    if (atomic_load(&line->is_visited) || lksi_now_ns() < atomic_load(&line->next_visit_ns)) return;
    if (lksi_tcp_is_gone(group, rank) || atomic_exchange(&line->is_visited, true)) return;
    visit(group, rank);
}

/* A rank that visits again has given up its previous visit. The new connection takes over the descriptor number of the
 * old one atomically (dup3), because another thread may be sending on that number. */
static bool replace_visitor(int visitor, int descriptor) {
    bool is_replaced = dup3(descriptor, visitor, O_CLOEXEC) >= 0;
    close(descriptor);
    return is_replaced;
}

/* Accepts a visitor. Nothing is read from a visitor. The descriptor is registered with the watch only so that forked
 * children close their copies, which would otherwise keep the connection open. */
static bool let_in(lks_group *group, lksi_line *line, int descriptor) {
    if (line->visitor >= 0) return replace_visitor(line->visitor, descriptor);
    if (lksi_watch_add_in_notice(group->world->watch, descriptor, LKSI_WATCH_NOTHING, NULL, NULL) != LKS_OK) {
        close(descriptor);
        return false;
    }
    atomic_store(&line->visitor, descriptor);
    return true;
}

void lksi_tcp_welcome(lks_group *group, int from, int descriptor) {
    lksi_line *line = &lksi_star_of(group)->lines[from];
    lksi_star_record welcome = {.kind = LKSI_STAR_WELCOME, .origin = group->rank, .group = group->id};
    if (let_in(group, line, descriptor)) (void)lksi_star_send(line->visitor, &welcome);
}

void lksi_tcp_find_gone(lksi_line *line) { atomic_store(&line->gone_since_ns, lksi_now_ns()); }

bool lksi_tcp_is_gone(const lks_group *group, int rank) {
    const lksi_star *star = lksi_star_of(group);
    if (star == NULL) return false;
    int64_t gone_since_ns = atomic_load(&star->lines[rank].gone_since_ns);
    return atomic_load(&star->lines[rank].has_left) ||
           (gone_since_ns != 0 && lksi_now_ns() - gone_since_ns >= PATIENCE_NS);
}

lks_status lksi_tcp_refuse_gone(lks_group *group, lksi_context context, int rank) {
    const lksi_line *lines = lksi_star_of(group)->lines;
    bool has_left = lksi_tcp_star_has_left(group, rank), has_first_left = lksi_tcp_star_has_left(group, 0);
    char doing[160], who[64] = "was lost";
    LKS_TRY(lksi_refuse_aborted(group, context));
    if (has_left) return lksi_refuse_left(group, context, rank, &lines[rank].farewell);
    if (has_first_left && lines[0].farewell.status != LKS_OK)
        return lksi_refuse_left(group, context, 0, &lines[0].farewell);
    if (has_first_left)
        snprintf(who, sizeof who, "has left or was lost, and rank %d, which would know, has left",
                 lksi_world_rank(group, 0));
    lksi_progress_describe(group, context, doing, sizeof doing);
    return lksi_error(LKS_ERR_PEER, "%s %s; %s", lksi_rank_describe(group, rank).text, who, doing);
}

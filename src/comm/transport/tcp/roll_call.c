/* The roll call: a rank asks all ranks over the control connections what they are doing.
 *
 *     rank 2 ── question ──> rank 0 ── question ──> rank 1, rank 3
 *     rank 2 <── answers ─── rank 0 <── answers ─── rank 1, rank 3
 *
 * The watch thread of a rank answers. So a computing rank answers, and a stopped or disconnected one does not.
 */
#include "comm/transport/tcp/tcp.h"

/* An answer travels as text: "sequence awaited elsewhere". */
static lksi_star_record answer_of(const lks_group *group, int asker) {
    lksi_doing mine = lksi_doing_of_seat(group, group->seat);
    lksi_star_record answer = {.kind = LKSI_STAR_ANSWER, .origin = group->rank, .about = asker, .group = group->id};
    snprintf(answer.text, sizeof answer.text, "%llu %d %s", (unsigned long long)mine.sequence, mine.awaited,
             mine.elsewhere);
    return answer;
}

static void take_answer(lks_group *group, const lksi_star_record *record) {
    lksi_star *star = lksi_star_of(group);
    unsigned long long sequence;
    lksi_doing heard = {.is_known = true, .awaited = -1};
    if (record->origin < 0 || record->origin >= group->size) return;
    if (sscanf(record->text, "%llu %d %111[^\n]", &sequence, &heard.awaited, heard.elsewhere) < 2) return;
    heard.sequence = sequence;
    pthread_mutex_lock(&star->mutex);
    star->lines[record->origin].answer = heard;
    pthread_cond_signal(&star->answered);
    pthread_mutex_unlock(&star->mutex);
}

/* Handles a question or an answer. Rank 0 forwards what is for other ranks. */
void lksi_roll_call_hear(lks_group *group, const lksi_star_record *record) {
    if (record->kind == LKSI_STAR_QUESTION) {
        lksi_star_record answer = answer_of(group, record->origin);
        if (group->rank != 0) {
            lksi_star_tell(group, &answer, -1);
            return;
        }
        lksi_star_tell(group, record, record->origin);
        if (record->origin > 0 && record->origin < group->size)
            lksi_star_tell_one(&lksi_star_of(group)->lines[record->origin], &answer);
    } else if (record->kind == LKSI_STAR_ANSWER && record->about == group->rank) {
        take_answer(group, record);
    } else if (group->rank == 0 && record->about > 0 && record->about < group->size) {
        lksi_star_tell_one(&lksi_star_of(group)->lines[record->about], record);
    }
}

static bool have_all_answered(const lks_group *group) {
    for (int rank = 0; rank < group->size; rank++)
        if (rank != group->rank && !lksi_star_of(group)->lines[rank].answer.is_known) return false;
    return true;
}

void lksi_tcp_roll_call(const lks_group *group, int64_t patience_ms, lksi_doing *doing) {
    lksi_star *star = lksi_star_of(group);
    lksi_star_record question = {.kind = LKSI_STAR_QUESTION, .origin = group->rank, .group = group->id};
    int64_t until_ns = lksi_now_ns() + patience_ms * 1000000;
    pthread_mutex_lock(&star->mutex);
    for (int rank = 0; rank < group->size; rank++) star->lines[rank].answer.is_known = false;
    pthread_mutex_unlock(&star->mutex);
    lksi_star_tell(group, &question, -1);
    pthread_mutex_lock(&star->mutex);
    while (!have_all_answered(group) && !lksi_control_is_aborted(group->control) && lksi_now_ns() < until_ns)
        lksi_cond_wait_until(&star->answered, &star->mutex, until_ns);
    for (int rank = 0; rank < group->size; rank++) doing[rank] = star->lines[rank].answer;
    pthread_mutex_unlock(&star->mutex);
}

/* The path of every collective: validate the call before anything is sent, choose the algorithm, assign the sequence
 * number, fingerprint and deadline, run it, and kill the group on failure. */
#include "base/timeline.h"
#include "comm/arithmetic/arithmetic.h"
#include "comm/collective/collective.h"
#include "comm/comm_internal.h"
#include "comm/validate.h"

#include <string.h>

static void describe_meaning(const lksi_meaning *meaning, char *text, size_t text_nbytes) {
    char words[LKSI_CALL_TEXT_NBYTES];
    meaning->write(meaning->context, words, sizeof words);
    lksi_append(text, text_nbytes, "%s)", words);
}

/* Different counts per rank may have the same sum. So the text includes the fingerprint. An earlier call may be what
 * differs. */
void lksi_call_describe(const lksi_call *call, char *text, size_t text_nbytes) {
    const lksi_operation *operation = call->operation;
    text[0] = '\0';
    lksi_append(text, text_nbytes, "%s(", operation->name);
    if (operation->has_own_counts)
        lksi_append(text, text_nbytes, "%s, ", lks_type_name(call->type));
    else if (operation->has_counts)
        lksi_append(text, text_nbytes, "counts of %zu together, %s, fingerprint %016llx of all calls so far, ",
                    call->count, lks_type_name(call->type), (unsigned long long)call->fingerprint);
    else if (operation->has_type)
        lksi_append(text, text_nbytes, "count %zu, %s, ", call->count, lks_type_name(call->type));
    else if (operation->has_count)
        lksi_append(text, text_nbytes, "nbytes %zu, ", call->count);
    if (operation->is_reduction) lksi_append(text, text_nbytes, "%s, ", lksi_operator_name(call->op));
    if (operation->is_rooted) lksi_append(text, text_nbytes, "root %d, ", call->root);
    if (call->algorithm != NULL && call->algorithm->name != NULL)
        lksi_append(text, text_nbytes, "algorithm %s)", call->algorithm->name);
    else if (call->meaning != NULL)
        describe_meaning(call->meaning, text, text_nbytes);
    else
        lksi_append(text, text_nbytes, "fingerprint %016llx of all calls so far)",
                    (unsigned long long)call->fingerprint);
}

/* The hash of an operation's name, cached by pointer: names are string literals. */
static uint64_t name_hash(lks_group *group, const char *name) {
    if (group->hashed_name != name) {
        group->hashed_name = name;
        group->name_hash = lksi_hash64(LKSI_HASH_START, name, strlen(name));
    }
    return group->name_hash;
}

/* It covers all calls of the group so far. Not every call compares all ranks (scatter). So the next one that does, such
 * as a barrier, detects what differed before. In a part of a group it covers the user's call, too: a reduction passes
 * accumulators to the parts, and sum for avg, so calls that differ may look alike there. */
static uint64_t fingerprint(lks_group *group, const lksi_call *call) {
    const lksi_call *users = lksi_users_call(group, call);
    uint64_t algorithm = (uint64_t)(call->algorithm - call->operation->algorithms);
    uint64_t hash = lksi_mix(name_hash(group, call->operation->name), lksi_n_calls(group) ^ group->history);
    if (users != call) hash = lksi_mix(hash, users->fingerprint);
    hash = lksi_mix(hash, call->operation->has_own_counts ? 0 : call->count);
    bool are_common = call->counts != NULL && !call->operation->has_own_counts;
    for (int rank = 0; are_common && rank < group->size; rank++) hash = lksi_mix(hash, call->counts[rank]);
    hash =
        lksi_mix(hash, (uint64_t)call->root << 24 | algorithm << 16 | (uint64_t)call->type << 8 | (uint64_t)call->op);
    return group->history = hash;
}

lks_status lksi_group_refuse_dead(const lks_group *group) {
    return group->status == LKS_OK ? LKS_OK : lksi_error(group->status, "%s", group->error_text);
}

lks_status lksi_group_refuse_lent(const lks_group *group, const void *borrower, const char *name) {
    const void *current = atomic_load_explicit(&group->borrower, memory_order_relaxed);
    if (current == NULL || current == borrower) return LKS_OK;
    return lksi_error(LKS_ERR_STATE,
                      "%s on rank %d between a backward pass and the end of its step: gradients are being sent over "
                      "this group (a trainer that runs ahead ends it in lks_trainer_catch_up)",
                      name, lksi_world_rank(group, group->rank));
}

lks_status lksi_group_lend(lks_group *group, const void *borrower, const char *name) {
    LKS_TRY(lksi_group_refuse_lent(group, borrower, name));
    atomic_store_explicit(&group->borrower, borrower, memory_order_relaxed);
    return LKS_OK;
}

void lksi_group_give_back(lks_group *group, const void *borrower) {
    if (atomic_load_explicit(&group->borrower, memory_order_relaxed) == borrower)
        atomic_store_explicit(&group->borrower, NULL, memory_order_relaxed);
}

/* Refuses a lent group. Two threads in one group's collectives would corrupt its state. Worker threads pass: they are
 * the group's own or the borrower's. */
static lks_status refuse_lent(const lks_group *group, const char *name) {
    bool is_lent = atomic_load_explicit(&group->borrower, memory_order_relaxed) != NULL;
    return !is_lent || lksi_work_is_worker() ? LKS_OK : lksi_group_refuse_lent(group, NULL, name);
}

lks_status lksi_begin(lks_group *group, const char *name, uint64_t sequence) {
    LKS_TRY(refuse_lent(group, name));
    group->progress = (lksi_progress){.name = name, .sequence = sequence};
    return lksi_start(group, LKSI_CONTEXT_COLLECTIVE);
}

static lks_status run_algorithm(lks_group *group, const lksi_call *call) {
    const lksi_algorithm *algorithm = call->algorithm;
    bool is_on_one_host = lksi_is_on_one_host(group);
    group->progress = (lksi_progress){.name = call->operation->name,
                                      .sequence = lksi_call_number(group, lksi_users_call(group, call)),
                                      .timeout_ms = call->timeout_ms,
                                      .started_ns = call->submitted_ns};
    if (group->parent != NULL)
        group->progress.started_ns = group->parent->progress.started_ns; /* it is part of the parent's call */
    /* The deadline counts from before, but the stall time counts from here. */
    if (group->progress.started_ns != 0) group->progress.moved_ns = lksi_running_ns();
    LKS_TRY(lksi_start(group, LKSI_CONTEXT_COLLECTIVE));
    lks_status status = is_on_one_host && !algorithm->is_segment ? lksi_post_and_collect(group, call, 0) : LKS_OK;
    if (status == LKS_OK) {
        bool is_remote = algorithm->is_segment && !is_on_one_host;
        status = is_remote ? algorithm->run_remote(group, call) : algorithm->run(group, call);
    }
    if (status != LKS_OK) return lksi_group_fail(group, status);
    lksi_activity_end(group, LKSI_CONTEXT_COLLECTIVE);
    return LKS_OK;
}

static lks_status refuse_second_thread(lks_group *group, const lksi_call *call) {
    return lksi_group_fail(group,
                           lksi_error(LKS_ERR_STATE,
                                      "%s: another thread of rank %d is in a collective of the same group, which "
                                      "is for one thread at a time",
                                      call->operation->name, lksi_world_rank(group, group->rank)));
}

static void add_to_timeline(const lks_group *group, const lksi_call *call, int64_t began_ns) {
    const char *algorithm = call->algorithm->name;
    if (began_ns == 0) return;
    lksi_timeline_add(began_ns, "communication", call->operation->name,
                      "\"bytes\":%zu,\"ranks\":%d,\"algorithm\":\"%s\"", call->nbytes, group->size,
                      algorithm != NULL ? algorithm : "exchange");
}

lks_status lksi_execute(lks_group *group, const lksi_call *call) {
    if (atomic_load_explicit(&group->is_at_work, memory_order_relaxed)) return refuse_second_thread(group, call);
    int64_t section_ns = lksi_timeline_begin();
    atomic_store_explicit(&group->is_at_work, true, memory_order_relaxed);
    lks_status status = run_algorithm(group, call);
    atomic_store_explicit(&group->is_at_work, false, memory_order_relaxed);
    add_to_timeline(group, call, section_ns);
    return status;
}

lks_status lksi_run(lks_group *group, lksi_call *call, const lks_collective_options *options) {
    static const lks_collective_options defaults;
    if (options == NULL) options = &defaults;
    call->scale = options->scale == 0 ? 1 : options->scale == LKS_ZERO ? 0 : options->scale;
    call->timeout_ms = lksi_timeout_cut(options->timeout_ms);
    if (call->timeout_ms < 0)
        return lksi_error(LKS_ERR_ARGUMENT, "%s: a timeout of %lld ms is negative", call->operation->name,
                          (long long)call->timeout_ms);
    LKS_TRY(lksi_call_validate(group, call));
    LKS_TRY(lksi_group_refuse_dead(group));
    LKS_TRY(refuse_lent(group, call->operation->name));
    LKS_TRY(lksi_select(group, call, options->algorithm));
    group->selection.last = call->algorithm->name;
    call->sequence = lksi_count_call(group);
    call->fingerprint = fingerprint(group, call);
    return options->work != NULL ? lksi_work_submit(group, call, options->work) : lksi_work_run(group, call);
}

/* --- the exchange for higher rooms: an operation with one algorithm, from `in` to `out` --- */

static lks_status exchange_lines(lks_group *group, const lksi_call *call) {
    if (call->nbytes > 0) lksi_post_put(group, 0, call->in, call->nbytes);
    LKS_TRY(lksi_post_and_collect(group, call, 0));
    for (int rank = 0; rank < group->size && call->nbytes > 0; rank++)
        memcpy((char *)call->out + (size_t)rank * call->nbytes, lksi_post_of(group, rank)->payload, call->nbytes);
    return LKS_OK;
}

lks_status lksi_exchange(lks_group *group, const char *operation, uint64_t fingerprint_of_call, const void *mine,
                         size_t nbytes, void *all) {
    return lksi_exchange_meaning(group, operation, fingerprint_of_call, NULL, mine, nbytes, all);
}

static lks_status refuse_exchange(const lks_group *group, const char *operation) {
    LKS_TRY(lksi_group_refuse_dead(group));
    return refuse_lent(group, operation);
}

static const lksi_operation exchange_of_lines = {
    .algorithms = {{.run = exchange_lines, .is_segment = true, .run_remote = lksi_all_gather_direct_remote}}};

lks_status lksi_await_all(lks_group *group, const char *operation) {
    LKS_TRY(refuse_exchange(group, operation));
    lksi_operation described = exchange_of_lines;
    described.name = operation;
    lksi_call call = {.operation = &described,
                      .algorithm = described.algorithms,
                      .sequence = LKSI_SPLIT_CALL,
                      .fingerprint = lksi_mix(LKSI_HASH_START, LKSI_SPLIT_CALL)};
    return lksi_work_run(group, &call);
}

lks_status lksi_exchange_meaning(lks_group *group, const char *operation, uint64_t fingerprint_of_call,
                                 const lksi_meaning *meaning, const void *mine, size_t nbytes, void *all) {
    if (nbytes > LKSI_PAYLOAD_NBYTES)
        return lksi_error(LKS_ERR_ARGUMENT, "%s: a payload of %zu bytes is over %d", operation, nbytes,
                          (int)LKSI_PAYLOAD_NBYTES);
    LKS_TRY(refuse_exchange(group, operation));
    lksi_operation described = exchange_of_lines;
    described.name = operation;
    uint64_t hash = name_hash(group, operation), sequence = lksi_count_call(group);
    hash = lksi_mix(lksi_mix(hash, sequence ^ group->history), nbytes);
    group->history = lksi_mix(hash, fingerprint_of_call);
    lksi_call call = {.operation = &described,
                      .algorithm = described.algorithms,
                      .in = mine,
                      .out = all,
                      .nbytes = nbytes,
                      .sequence = sequence,
                      .fingerprint = group->history,
                      .meaning = meaning};
    return lksi_work_run(group, &call);
}

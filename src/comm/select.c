/* Selects the algorithm of a call: the one that the call names, otherwise the one that LOCKSTEP_ALGORITHM names for its
 * operation, otherwise
 *
 *     group on one host      direct: through memory
 *     group across hosts     two_level, if it can serve the call and a host has several ranks; otherwise the algorithm
 *                            with the least steps * latency + bytes * time per byte + bytes handled * a constant,
 *                            among those that keep the canonical order if the result depends on it
 *
 * All inputs of the choice are the same on all ranks, or are compared by the fingerprint of the call.
 */
#define _GNU_SOURCE /* strsep */
#include "comm/tune.h"
#include "comm/world.h"

#include <stdlib.h>
#include <string.h>

static const lksi_algorithm *find(const lksi_operation *operation, const char *name) {
    for (const lksi_algorithm *each = operation->algorithms; each->name != NULL; each++)
        if (strcmp(name, each->name) == 0) return each;
    return NULL;
}

static void append_name(char *list, size_t list_nbytes, const char *name) {
    lksi_append(list, list_nbytes, "%s%s", list[0] == '\0' ? "" : ", ", name);
}

static lks_status refuse_name(const lksi_operation *operation, const char *origin, const char *name) {
    char known[256] = "auto";
    for (const lksi_algorithm *each = operation->algorithms; each->name != NULL; each++)
        append_name(known, sizeof known, each->name);
    return lksi_error(LKS_ERR_ARGUMENT, "%s%s has no algorithm '%s' (it has: %s)", origin, operation->name, name,
                      known);
}

/* --- LOCKSTEP_ALGORITHM --- */

static const char variable[] = "LOCKSTEP_ALGORITHM: ";

static bool is_first_with(int index, const char *name) {
    for (int i = 0; i < index; i++)
        if (find(lksi_operation_at(i), name) != NULL) return false;
    return true;
}

/* A name without an operation applies to every operation that has such an algorithm. */
static lks_status force_everywhere(lksi_selection *selection, const char *name) {
    bool is_known = strcmp(name, "auto") == 0;
    char known[512] = "auto";
    for (int i = 0; lksi_operation_at(i) != NULL; i++) {
        selection->forced[i] = find(lksi_operation_at(i), name);
        is_known |= selection->forced[i] != NULL;
        for (const lksi_algorithm *each = lksi_operation_at(i)->algorithms; each->name != NULL; each++)
            if (is_first_with(i, each->name)) append_name(known, sizeof known, each->name);
    }
    if (is_known) return LKS_OK;
    return lksi_error(LKS_ERR_ARGUMENT, "%sno operation has an algorithm '%s' (there are: %s)", variable, name, known);
}

/* "all_reduce=ring" */
static lks_status force_one(lksi_selection *selection, const char *item, const char *name) {
    char operation[32] = "", known[256] = "";
    snprintf(operation, sizeof operation, "%.*s", (int)(name - item), item);
    for (int i = 0; lksi_operation_at(i) != NULL; i++) {
        append_name(known, sizeof known, lksi_operation_at(i)->name);
        if (strcmp(operation, lksi_operation_at(i)->name) != 0) continue;
        selection->forced[i] = find(lksi_operation_at(i), name + 1);
        bool is_known = selection->forced[i] != NULL || strcmp(name + 1, "auto") == 0;
        return is_known ? LKS_OK : refuse_name(lksi_operation_at(i), variable, name + 1);
    }
    return lksi_error(LKS_ERR_ARGUMENT, "%sthere is no operation '%s' (there are: %s)", variable, operation, known);
}

lks_status lksi_selection_read(lksi_selection *selection) {
    const char *value = getenv("LOCKSTEP_ALGORITHM");
    char text[512];
    int n = snprintf(text, sizeof text, "%s", value == NULL ? "" : value);
    if (n >= (int)sizeof text)
        return lksi_error(LKS_ERR_ARGUMENT, "%sover %zu characters long", variable, sizeof text - 1);
    char *rest = n > 0 ? text : NULL;
    for (char *item; (item = strsep(&rest, ",")) != NULL;) {
        const char *name = strchr(item, '=');
        if (item[0] == '\0') return lksi_error(LKS_ERR_ARGUMENT, "%s'%s' has an empty item", variable, value);
        if (name == NULL && item != text)
            return lksi_error(LKS_ERR_ARGUMENT,
                              "%s'%s' names no operation (write all_reduce=%s): only the first item may do that",
                              variable, item, item);
        LKS_TRY(name == NULL ? force_everywhere(selection, item) : force_one(selection, item, name));
    }
    for (int i = 0; i < LKSI_MAX_OPERATIONS; i++) selection->is_any_forced |= selection->forced[i] != NULL;
    return LKS_OK;
}

lks_status lksi_algorithm_variable_check(void) {
    return lksi_selection_read(&(lksi_selection){.is_any_forced = false});
}

/* --- auto --- */

/* Chosen so that `auto` takes direct where it is faster over TCP on one host: on 2 ranks from 256 or 512 KiB on, on 4
 * ranks from 512 KiB or 1 MiB on. Not measured between hosts. */
static const double HANDLED_NS_PER_BYTE = 0.01;

bool lksi_call_has_order(const lks_group *group, const lksi_call *call) {
    bool is_integer = call->type >= LKS_I8, is_extreme = call->op == LKS_MIN || call->op == LKS_MAX;
    return group->order == LKS_ORDER_CANONICAL && call->operation->is_reduction && !is_integer && !is_extreme;
}

static const lksi_algorithm *cheapest_of(const lksi_operation *operation, const lksi_tuning *tuning, int n_ranks,
                                         size_t nbytes, bool may_reorder) {
    const lksi_algorithm *best = NULL;
    double least_ns = 0;
    for (const lksi_algorithm *each = operation->algorithms; each->name != NULL; each++) {
        if (each->cost == NULL || (each->is_order_free && !may_reorder)) continue;
        lksi_cost cost = each->cost(n_ranks, nbytes);
        double ns = cost.steps * tuning->latency_ns + cost.nbytes * tuning->ns_per_byte +
                    cost.handled_nbytes * HANDLED_NS_PER_BYTE;
        if (best != NULL && ns >= least_ns) continue;
        best = each, least_ns = ns;
    }
    return best;
}

const char *lksi_operation_cheapest(const lksi_operation *operation, const lksi_tuning *tuning, int n_ranks,
                                    size_t nbytes) {
    return cheapest_of(operation, tuning, n_ranks, nbytes, !operation->is_reduction)->name;
}

static const lksi_algorithm *cheapest(const lks_group *group, const lksi_call *call) {
    const lksi_tuning tuning = {true, group->selection.latency_ns, group->selection.ns_per_byte};
    size_t nbytes = call->counts == NULL ? call->nbytes : call->nbytes / (size_t)group->size;
    bool may_reorder = !lksi_call_has_order(group, call);
    return cheapest_of(call->operation, &tuning, group->size, nbytes, may_reorder);
}

static const lksi_algorithm *choose_across_hosts(const lks_group *group, const lksi_call *call) {
    const lksi_algorithm *two_level = NULL;
    if (group->n_hosts < group->size && lksi_two_level_obstacle(group, call) == NULL)
        two_level = find(call->operation, "two_level");
    return two_level != NULL ? two_level : cheapest(group, call);
}

/* Why the algorithm cannot serve this call. NULL if it can. */
static const char *obstacle_to(const lksi_algorithm *algorithm, const lks_group *group, const lksi_call *call) {
    if (algorithm->is_two_level) return lksi_two_level_obstacle(group, call);
    return algorithm->is_native ? lksi_native_obstacle(group, call) : NULL;
}

/* A rank warns once, if it is rank 0 of the group, and not for the inner and outer groups of two-level algorithms,
 * which users do not know. */
static void warn_of_other(lks_group *group, const lksi_call *call, const char *forced, const char *obstacle) {
    if (group->rank != 0 || group->parent != NULL || atomic_exchange(&group->world->has_warned, true)) return;
    lksi_log(LKS_LOG_WARNING, "%s%s uses %s instead of %s: %s", variable, call->operation->name, call->algorithm->name,
             forced, obstacle);
}

/* The algorithm that the variable names for this call, or NULL. In an inner or outer group it must not change the order
 * that a call on the whole group keeps. */
static const lksi_algorithm *forced_for(const lks_group *group, const lksi_call *call) {
    const lksi_algorithm *forced = group->selection.forced[call->operation - lksi_operation_at(0)];
    bool may_reorder = group->parent == NULL || !lksi_call_has_order(group, call);
    return forced != NULL && forced->is_order_free && !may_reorder ? NULL : forced;
}

static void choose(lks_group *group, lksi_call *call) {
    group->selection.is_always_direct = lksi_is_on_one_host(group) && !group->selection.is_any_forced;
    const lksi_algorithm *forced = forced_for(group, call);
    const char *obstacle = forced != NULL ? obstacle_to(forced, group, call) : NULL;
    if (forced != NULL && obstacle == NULL) {
        call->algorithm = forced;
        return;
    }
    const lksi_algorithm *direct = call->operation->algorithms;
    call->algorithm = lksi_is_on_one_host(group) ? direct : choose_across_hosts(group, call);
    if (obstacle != NULL) warn_of_other(group, call, forced->name, obstacle);
}

lks_status lksi_select_named(lks_group *group, lksi_call *call, const char *name) {
    if (name == NULL || strcmp(name, "auto") == 0) {
        choose(group, call);
        return LKS_OK;
    }
    call->algorithm = find(call->operation, name);
    if (call->algorithm == NULL) return refuse_name(call->operation, "", name);
    const char *obstacle = obstacle_to(call->algorithm, group, call);
    if (obstacle == NULL) return LKS_OK;
    return lksi_error(LKS_ERR_ARGUMENT, "%s: %s: %s", call->operation->name, name, obstacle);
}

const char *lksi_group_last_algorithm(const lks_group *group) { return group->selection.last; }

void lksi_group_order_obstacle(const lks_group *group, char *text, size_t text_nbytes) {
    const lksi_selection *selection = &group->selection;
    text[0] = '\0';
    if (group->order != LKS_ORDER_CANONICAL)
        snprintf(text, text_nbytes, "in a group that adds in any order (LKS_ORDER_ANY)");
    for (int i = 0; text[0] == '\0' && lksi_operation_at(i) != NULL; i++)
        if (selection->forced[i] != NULL && selection->forced[i]->is_order_free && lksi_operation_at(i)->is_reduction)
            snprintf(text, text_nbytes, "with %s%s=%s, which adds in an order of its own", variable,
                     lksi_operation_at(i)->name, selection->forced[i]->name);
}

/* Splits a group: every rank tells its color and key to all, so each rank knows the members of every new group.
 *
 *     rank   0  1  2  3        color 0: ranks 0, 2        new group, by key
 *     color  0  1  0  1        color 1: ranks 1, 3
 *     key    2  0  1  0        => {2, 0} and {1, 3}
 */
#include "comm/comm_internal.h"
#include "comm/world.h"

#include <stdlib.h>

typedef struct choice {
    int32_t color, key, rank;
} choice;

static int by_color_key_rank(const void *a, const void *b) {
    const choice *x = a, *y = b;
    if (x->color != y->color) return x->color < y->color ? -1 : 1;
    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    return x->rank < y->rank ? -1 : 1;
}

static lks_status form(lks_group *group, const choice *members, int n_members, int mine, lks_group **new_group) {
    lks_group *made;
    LKS_TRY(lksi_group_create(&made, mine, n_members, group->timeout_ms, group->order));
    for (int i = 0; i < n_members; i++) made->members[i] = group->members[members[i].rank];
    made->id = lksi_mix(lksi_mix(group->id, group->n_splits), (uint64_t)members[0].color);
    made->origin = group->id;
    made->world = group->world;
    made->parent = group; /* while the group is made, lost ranks are detected in the parent */
    lksi_world_hold(made->world);
    lks_status status = lksi_group_form(made, NULL);
    pthread_mutex_lock(&made->world->mutex); /* other threads read `parent` of the world's groups */
    made->parent = NULL;
    pthread_mutex_unlock(&made->world->mutex);
    if (status != LKS_OK && lksi_control_is_aborted(group->control))
        status = lksi_control_abort_error(group->control, "group_split");
    if (status == LKS_OK) {
        *new_group = made;
        return LKS_OK;
    }
    if (made->control != NULL) (void)lksi_group_fail(made, status);
    lks_group_destroy(made);
    return status;
}

static lks_status split(lks_group *group, int color, int key, choice *choices, lks_group **new_group) {
    const choice mine = {.color = color < 0 ? -1 : color, .key = key, .rank = group->rank};
    LKS_TRY(lksi_exchange(group, "group_split", 0, &mine, sizeof mine, choices));
    group->n_splits++;
    if (mine.color < 0) {
        *new_group = NULL;
        return LKS_OK;
    }
    qsort(choices, (size_t)group->size, sizeof *choices, by_color_key_rank);
    int first = 0, end, position = 0;
    while (choices[first].color != mine.color) first++;
    for (end = first; end < group->size && choices[end].color == mine.color; end++)
        if (choices[end].rank == group->rank) position = end - first;
    lks_status status = form(group, choices + first, end - first, position, new_group);
    return status == LKS_OK ? LKS_OK : lksi_group_fail(group, status);
}

/* Between hosts the ranks of a new group do not finish at the same time. What the first rank does with the group,
 * including failing it, must not reach a rank that is still making it. So all ranks wait for each other. */
static lks_status await_all(lks_group *group, lks_group **new_group) {
    if (group->remote == NULL) return LKS_OK;
    lks_status status = lksi_await_all(group, "group_split");
    if (status == LKS_OK) return LKS_OK;
    if (*new_group != NULL) (void)lksi_group_fail(*new_group, status);
    lks_group_destroy(*new_group);
    *new_group = NULL;
    return status;
}

lks_status lks_group_split(lks_group *group, int color, int key, lks_group **new_group) {
    if (new_group == NULL) return lksi_error(LKS_ERR_ARGUMENT, "group_split: `new_group` is NULL");
    LKS_TRY(lksi_group_check(group, "group_split"));
    LKS_TRY(lksi_group_refuse_dead(group));
    choice *choices = lksi_alloc_array((size_t)group->size, sizeof *choices);
    if (choices == NULL) return lksi_group_fail(group, LKS_ERR_MEMORY);
    lks_group *made = NULL;
    lks_status status = split(group, color, key, choices, &made);
    lksi_free(choices);
    if (status == LKS_OK) status = await_all(group, &made);
    if (status != LKS_OK) return status;
    if (made != NULL) made->n_reads_before = lksi_error_n_reads();
    *new_group = made;
    return LKS_OK;
}

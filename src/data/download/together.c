/* One download for all ranks of a group that see the same directory.
 *
 * The first rank of each host downloads, on a separate thread. If hosts or jobs share a directory, its lock serialises
 * them, and all but the first find the set complete. Meanwhile all ranks exchange their state ten times a second. So no
 * rank waits in a silent group, a download of any length meets no deadline, and a rank that dies is noticed as in any
 * collective.
 *
 * A rank must not be told that a set is there which nobody has got. So the ranks first compare what they ask for.
 * Directories may be other ones on each host. Afterwards each rank looks into its own. */
#include "data/download/download.h"

#include <string.h>

enum { TEXT_NBYTES = 1024 };
static const int64_t TICK_NS = 100 * 1000000;

/* The state that a rank tells the others, as bits. */
enum { AT_WORK = 1, FAILED = 2 };

typedef struct errand {
    const lksi_set *set;
    char directory[LKSI_PATH_NBYTES];
    lksi_get_options options;
    lksi_download_progress progress;
    lks_status status;
    char text[TEXT_NBYTES]; /* the error text */
    atomic_int state;       /* AT_WORK, FAILED, or 0: not started or successful */
} errand;

static void do_errand(void *argument) {
    errand *e = argument;
    bool was_there;
    e->status = lksi_get(e->set, e->directory, &e->options, &e->progress, &was_there);
    lksi_download_progress_end(&e->progress);
    if (e->status != LKS_OK) snprintf(e->text, sizeof e->text, "%s", lksi_error_text());
    atomic_store(&e->state, e->status == LKS_OK ? 0 : FAILED);
}

/* Waits until no rank is at work. If one rank fails, the others cancel their downloads. */
static lks_status wait_for_all(lks_group *group, errand *e, bool *has_failed) {
    for (;;) {
        int32_t mine = atomic_load(&e->state), all;
        LKS_TRY(lks_all_reduce(group, &mine, &all, 1, LKS_I32, LKS_BOR, NULL));
        *has_failed = (all & FAILED) != 0;
        if ((all & AT_WORK) == 0) return LKS_OK;
        if (*has_failed && mine == AT_WORK) atomic_store(&e->progress.is_cancelled, 1);
        lksi_sleep_ns(TICK_NS);
    }
}

/* All ranks get the error of the lowest rank that failed by itself. A rank that was cancelled has no error of its own.
 */
static lks_status share_error(lks_group *group, const errand *e) {
    int n_ranks = lks_group_size(group);
    bool is_own = atomic_load(&e->state) == FAILED && atomic_load(&e->progress.is_cancelled) == 0;
    int32_t root = is_own ? lks_group_rank(group) : n_ranks, status = (int32_t)e->status;
    char text[TEXT_NBYTES];
    LKS_TRY(lks_all_reduce(group, &root, &root, 1, LKS_I32, LKS_MIN, NULL));
    if (root == n_ranks) return lksi_error(LKS_ERR_STATE, "%s: the download was given up", e->set->name);
    memcpy(text, e->text, sizeof text);
    LKS_TRY(lks_broadcast(group, &status, 1, LKS_I32, root, NULL));
    LKS_TRY(lks_broadcast(group, text, sizeof text, LKS_U8, root, NULL));
    return lksi_error((lks_status)status, "%s", text);
}

static lks_status find_directory(errand *e, const char *directory) {
    if (directory == NULL) return lks_data_directory(e->set->name, e->directory, sizeof e->directory);
    if (snprintf(e->directory, sizeof e->directory, "%s", directory) < (int)sizeof e->directory) return LKS_OK;
    return lksi_error(LKS_ERR_ARGUMENT, "a directory's path of more than %zu bytes", sizeof e->directory);
}

/* Errors of the parts below are shared like all errors of a download, because the other ranks wait. No thread is
 * running that could write to `e`. */
static void keep_error(errand *e, lks_status status) {
    if (status == LKS_OK) return;
    e->status = status;
    snprintf(e->text, sizeof e->text, "%s", lksi_error_text());
    atomic_store(&e->state, FAILED);
}

static lks_status begin(errand *e, const char *directory, lksi_thread **thread) {
    LKS_TRY(find_directory(e, directory));
    atomic_store(&e->state, AT_WORK);
    return lksi_thread_create(thread, do_errand, e, "lks-download");
}

/* A rank whose host's first rank has got the set looks for it by name. */
static lks_status look(errand *e, const char *directory, int rank) {
    LKS_TRY(find_directory(e, directory));
    lks_status status = lksi_set_check(e->set, e->directory, false, &e->progress);
    if (status == LKS_OK) return LKS_OK;
    char text[LKSI_ERROR_TEXT_NBYTES];
    lksi_error_keep(text);
    return lksi_error(status, "rank %d cannot find the set where it looks: %s", rank, text);
}

static lks_status get_together(lks_group *group, errand *e, const char *directory) {
    lksi_thread *thread = NULL;
    bool is_first = lks_group_local_rank(group) == 0, has_failed;
    if (is_first) keep_error(e, begin(e, directory, &thread));
    lks_status status = wait_for_all(group, e, &has_failed);
    if (status != LKS_OK) atomic_store(&e->progress.is_cancelled, 1);
    lksi_thread_join(thread);
    if (status == LKS_OK && !has_failed) {
        if (!is_first) keep_error(e, look(e, directory, lks_group_rank(group)));
        status = wait_for_all(group, e, &has_failed);
    }
    return status == LKS_OK && has_failed ? share_error(group, e) : status;
}

/* All ranks get LKS_ERR_MISMATCH if one asks for something else than rank 0. It is called before anything that may fail
 * on one rank only. */
static lks_status compare_requests(lks_group *group, const char *name, const lksi_get_options *options) {
    enum { REQUEST_NBYTES = 128 };
    char mine[REQUEST_NBYTES] = "", first[REQUEST_NBYTES], other[REQUEST_NBYTES];
    int32_t size = lks_group_size(group), different;
    snprintf(mine, sizeof mine, "%.80s (verifies %d, replaces %d)", name != NULL ? name : "no set", options->verifies,
             options->replaces);
    memcpy(first, mine, sizeof first);
    LKS_TRY(lks_broadcast(group, first, sizeof first, LKS_U8, 0, NULL));
    different = strcmp(first, mine) == 0 ? size : lks_group_rank(group);
    LKS_TRY(lks_all_reduce(group, &different, &different, 1, LKS_I32, LKS_MIN, NULL));
    if (different == size) return LKS_OK;
    memcpy(other, mine, sizeof other);
    LKS_TRY(lks_broadcast(group, other, sizeof other, LKS_U8, different, NULL));
    return lksi_error(LKS_ERR_MISMATCH, "data_get: rank 0 asks for %s, rank %d for %s", first, different, other);
}

lks_status lks_data_get(lks_group *group, const char *name, const char *directory, const lks_data_options *options) {
    static const lks_data_options defaults = {.verifies = 0};
    if (options == NULL) options = &defaults;
    errand e = {.options = {.verifies = options->verifies != 0, .replaces = options->replaces != 0},
                .progress = {.is_shown = options->shows_progress != 0, .lock = -1}};
    bool has_others = group != NULL && lks_group_size(group) > 1, was_there;
    if (has_others) LKS_TRY(compare_requests(group, name, &e.options));
    LKS_TRY(lksi_check_given("data_get", "name", name));
    e.set = lksi_set_find(name);
    if (e.set == NULL) return LKS_ERR_ARGUMENT;
    if (has_others) return get_together(group, &e, directory);
    LKS_TRY(find_directory(&e, directory));
    lks_status status = lksi_get(e.set, e.directory, &e.options, &e.progress, &was_there);
    lksi_download_progress_end(&e.progress);
    return status;
}

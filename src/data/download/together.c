/* One download for all ranks of a group that see the same directory.
 *
 * The first rank of each host downloads, on a separate thread. If hosts or jobs share a directory, its lock serialises
 * them, and all but the first find the set complete. Meanwhile all ranks exchange their state ten times a second. So no
 * rank waits in a silent group, a download of any length meets no deadline, and a rank that dies is noticed as in any
 * collective. */
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
    if (e->status != LKS_OK) snprintf(e->text, sizeof e->text, "%s", lks_error_text());
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

/* Errors here are shared like all errors of a download, because the other ranks wait. */
static lks_status begin(errand *e, const char *directory, lksi_thread **thread) {
    if (directory == NULL)
        LKS_TRY(lks_data_directory(e->set->name, e->directory, sizeof e->directory));
    else if (snprintf(e->directory, sizeof e->directory, "%s", directory) >= (int)sizeof e->directory)
        return lksi_error(LKS_ERR_ARGUMENT, "a directory's path of more than %zu bytes", sizeof e->directory);
    if (thread == NULL) return LKS_OK;
    atomic_store(&e->state, AT_WORK);
    return lksi_thread_create(thread, do_errand, e, "lks-download");
}

static lks_status get_together(lks_group *group, errand *e, const char *directory) {
    lksi_thread *thread = NULL;
    if (lks_group_local_rank(group) == 0) {
        lks_status begun = begin(e, directory, &thread);
        if (begun != LKS_OK) {
            e->status = begun; /* no thread is running that could write to it */
            snprintf(e->text, sizeof e->text, "%s", lks_error_text());
            atomic_store(&e->state, FAILED);
        }
    }
    bool has_failed;
    lks_status status = wait_for_all(group, e, &has_failed);
    if (status != LKS_OK) atomic_store(&e->progress.is_cancelled, 1);
    lksi_thread_join(thread);
    return status == LKS_OK && has_failed ? share_error(group, e) : status;
}

lks_status lks_data_get(lks_group *group, const char *name, const char *directory, const lks_data_options *options) {
    static const lks_data_options defaults = {.verifies = 0};
    LKS_TRY(lksi_check_given("data_get", "name", name));
    const lksi_set *set = lksi_set_find(name);
    if (set == NULL) return LKS_ERR_ARGUMENT;
    if (options == NULL) options = &defaults;
    errand e = {.set = set,
                .options = {.verifies = options->verifies != 0, .replaces = options->replaces != 0},
                .progress = {.is_shown = options->shows_progress != 0, .lock = -1}};
    if (group != NULL && lks_group_size(group) > 1) return get_together(group, &e, directory);
    bool was_there;
    LKS_TRY(begin(&e, directory, NULL));
    lks_status status = lksi_get(set, e.directory, &e.options, &e.progress, &was_there);
    lksi_download_progress_end(&e.progress);
    return status;
}

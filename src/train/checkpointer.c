/* Periodic checkpoints.
 *
 *     rank 0    step ── [wait for the last file] snapshot ── step ── step ── step ...
 *     others    step ── send their part of the state ─────── step ── step ── step ...
 *     thread                                    └> hash, write, sync, rename, remove old ones
 *
 * Training waits only for the snapshot, a copy in memory. If the previous file is not finished when the next checkpoint
 * is due, training waits for it: `every` limits how much work a crash may cost, and a slow disk must not exceed that.
 */
#include "train/checkpoint_directory.h"
#include "train/checkpoint_writer.h"

#include <string.h>
#include <unistd.h>

enum { DEFAULT_KEEP = 3 };

struct lks_checkpointer {
    lks_trainer *trainer;
    int64_t every;
    int64_t previous; /* step of the last file; before the first, the one at which the run began or was resumed */
    char *directory;
    lksi_checkpoint checkpoint;
    lksi_checkpoint_writer *writer; /* rank 0 */
    int lock;                       /* rank 0: a descriptor, or -1 */
    char path[LKSI_PATH_NBYTES];    /* of the last checkpoint; empty before the first */
};

static bool is_first(const lks_checkpointer *c) { return lks_group_rank(c->trainer->options.group) == 0; }

/* --- create and destroy --- */

static lks_status check_options(const char *directory, const lks_checkpointer_options *options) {
    if (directory == NULL || directory[0] == '\0') return lksi_error(LKS_ERR_ARGUMENT, "checkpoints need a directory");
    if (options->every >= 0 && options->keep >= 0) return LKS_OK;
    return lksi_error(LKS_ERR_ARGUMENT, "checkpoints every %lld steps, keeping %lld: neither may be negative",
                      (long long)options->every, (long long)options->keep);
}

/* Refuses a directory with later checkpoints that this run has not seen when it was resumed. A later resume would take
 * them for this run's. They are of a run that this one was not resumed from, or of one that ended in between. */
static lks_status check_newer(const lks_checkpointer *c) {
    int64_t *steps;
    size_t count;
    LKS_TRY(lksi_checkpoint_list(c->directory, &steps, &count));
    int64_t newest = count > 0 ? steps[0] : -1;
    lksi_free(steps);
    if (newest <= c->trainer->n_steps || newest <= lksi_checkpoint_newest_known(c->trainer, c->directory))
        return LKS_OK;
    return lksi_error(LKS_ERR_STATE,
                      "%s: it holds a run's checkpoints up to step %lld, and this one begins at step %lld: resume from "
                      "that directory, or take another",
                      c->directory, (long long)newest, (long long)c->trainer->n_steps);
}

static lks_status prepare(lks_checkpointer *c, lks_trainer *trainer, const char *directory,
                          const lks_checkpointer_options *options) {
    c->trainer = trainer;
    c->lock = -1;
    LKS_TRY(check_options(directory, options));
    LKS_TRY(lksi_checkpoint_create(&c->checkpoint, c->trainer));
    c->every = options->every;
    c->previous = c->trainer->n_steps;
    c->directory = lksi_strdup(directory);
    if (c->directory == NULL) return LKS_ERR_MEMORY;
    if (!is_first(c)) return LKS_OK;
    LKS_TRY(lksi_checkpoint_take_directory(directory, &c->lock));
    LKS_TRY(check_newer(c));
    LKS_TRY(lksi_checkpoint_reserve(c->trainer, &c->checkpoint));
    return lksi_checkpoint_writer_create(&c->writer, c->trainer, &c->checkpoint, c->directory,
                                         options->keep > 0 ? options->keep : DEFAULT_KEEP);
}

lks_status lks_checkpointer_create(lks_checkpointer **checkpointer, lks_trainer *trainer, const char *directory,
                                   const lks_checkpointer_options *options) {
    const lks_checkpointer_options defaults = {0};
    if (options == NULL) options = &defaults;
    LKS_TRY(lksi_check_given("checkpointer_create", "checkpointer", checkpointer));
    LKS_TRY(lksi_check_given("checkpointer_create", "trainer", trainer));
    lks_checkpointer *created = lksi_alloc(sizeof *created);
    lks_status status = created != NULL ? prepare(created, trainer, directory, options) : LKS_ERR_MEMORY;
    status = lksi_checkpoint_agree(trainer, "checkpointer_create", directory, status, 0);
    if (status == LKS_OK)
        status = lksi_exchange(trainer->options.group, "checkpointer_create (every)", (uint64_t)options->every, NULL, 0,
                               NULL);
    if (status == LKS_OK)
        *checkpointer = created;
    else
        lks_checkpointer_destroy(created);
    return status;
}

void lks_checkpointer_destroy(lks_checkpointer *c) {
    if (c == NULL) return;
    lksi_checkpoint_writer_destroy(c->writer);
    lksi_checkpoint_destroy(&c->checkpoint);
    if (c->lock >= 0) close(c->lock);
    lksi_free(c->directory);
    lksi_free(c);
}

/* --- while training --- */

/* The name for error texts: the last file, or the directory before the first. */
static const char *name_of(const lks_checkpointer *c) { return c->path[0] != '\0' ? c->path : c->directory; }

/* Meanwhile the other ranks wait for this one, for the whole timeout. So this rank waits for half of it. */
static lks_status wait_for_last(lks_checkpointer *c) {
    if (c->writer == NULL) return LKS_OK;
    return lksi_checkpoint_writer_wait(c->writer, lksi_group_timeout_ms(c->trainer->options.group) / 2);
}

/* `status`: of the wait for the last checkpoint. */
static lks_status begin(lks_checkpointer *c, const lks_position *position, lks_status status) {
    char path[LKSI_PATH_NBYTES];
    if (status == LKS_OK) status = lksi_checkpoint_check_position(c->trainer, c->directory, position);
    if (status == LKS_OK) status = lksi_checkpoint_check_directory(c->directory, c->lock);
    LKS_TRY(lksi_checkpoint_agree(c->trainer, "checkpointer", name_of(c), status, 0));
    lksi_checkpoint_path(path, c->directory, c->trainer->n_steps);
    if (c->trainer->options.n_states > 0) /* their size depends on the batch */
        LKS_TRY(lksi_checkpoint_make_room(c->trainer, &c->checkpoint, path, position));
    snprintf(c->path, sizeof c->path, "%s", path);
    int64_t began_ns = lksi_now_ns();
    LKS_TRY(lksi_checkpoint_snapshot(c->trainer, &c->checkpoint, position, &status));
    if (c->writer != NULL)
        lksi_checkpoint_writer_start(c->writer, c->previous, c->trainer->n_steps, lksi_now_ns() - began_ns, status);
    c->previous = c->trainer->n_steps;
    return LKS_OK;
}

lks_status lks_checkpointer_step(lks_checkpointer *c, const lks_position *position) {
    LKS_TRY(lksi_check_given("checkpointer_step", "checkpointer", c));
    if (c->trainer->n_steps < c->previous) c->previous = c->trainer->n_steps; /* an earlier one was loaded */
    if (c->every == 0 || c->trainer->n_steps % c->every != 0)
        return lksi_check_given("checkpointer_step", "position", position);
    return begin(c, position, wait_for_last(c));
}

lks_status lks_checkpointer_finish(lks_checkpointer *c) {
    LKS_TRY(lksi_check_given("checkpointer_finish", "checkpointer", c));
    lks_status status = wait_for_last(c);
    return lksi_checkpoint_agree(c->trainer, "checkpointer_finish", name_of(c), status, 0);
}

lks_status lks_checkpointer_save(lks_checkpointer *c, const lks_position *position) {
    LKS_TRY(lksi_check_given("checkpointer_save", "checkpointer", c));
    lks_status status = wait_for_last(c);
    if (status != LKS_OK && status != LKS_ERR_TIMEOUT) {
        lksi_log(LKS_LOG_ERROR, "%s", lksi_error_text()); /* this checkpoint may be the last, so it is written */
        status = LKS_OK;
    }
    LKS_TRY(begin(c, position, status));
    return lks_checkpointer_finish(c);
}

const char *lks_checkpointer_path(const lks_checkpointer *c) { return c != NULL ? c->path : NULL; }

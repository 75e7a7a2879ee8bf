/* The checkpoint writer thread. It writes one image at a time. The mutex protects every field that both threads access.
 * The image belongs to the writer thread while is_busy is true, and to the training thread otherwise.
 *
 * The thread runs at a lower priority (nice): hashing and writing may take until the next checkpoint is due. If
 * training then waits for it, the CPU is free for it. */
#define _GNU_SOURCE /* syscall */
#include "train/checkpoint_writer.h"

#include "train/checkpoint_directory.h"

#include <pthread.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

struct lksi_checkpoint_writer {
    const lks_trainer *trainer;
    const lksi_checkpoint *checkpoint;
    const char *directory;
    int64_t keep;
    lksi_thread *thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool is_busy, is_ending;
    int64_t previous, step, copied_ns;
    lks_status status; /* of the last write, until lksi_checkpoint_writer_wait returns it */
    char text[1024];
};

static lks_status write_and_prune(const lksi_checkpoint_writer *writer) {
    char path[LKSI_PATH_NBYTES];
    lksi_checkpoint_path(path, writer->directory, writer->step);
    int64_t began_ns = lksi_now_ns();
    LKS_TRY(lksi_checkpoint_write(writer->trainer, writer->checkpoint, path));
    lksi_log(LKS_LOG_INFO, "%s: %zu bytes, copied in %.1f ms, written in %.1f ms", path,
             writer->checkpoint->image_nbytes, (double)writer->copied_ns / 1e6,
             (double)(lksi_now_ns() - began_ns) / 1e6);
    lksi_checkpoint_prune(writer->directory, writer->previous, writer->step, writer->keep);
    return LKS_OK;
}

/* The caller holds the mutex. */
static void note(lksi_checkpoint_writer *writer, lks_status status) {
    writer->status = status;
    if (status != LKS_OK) snprintf(writer->text, sizeof writer->text, "%s", lksi_error_text());
}

static void give_way(void) {
    enum { NICENESS = 10 };
    (void)setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), NICENESS); /* on Linux this affects one thread only */
}

static void run(void *opaque) {
    lksi_checkpoint_writer *writer = opaque;
    give_way();
    pthread_mutex_lock(&writer->mutex);
    while (writer->is_busy || !writer->is_ending) {
        if (!writer->is_busy) {
            pthread_cond_wait(&writer->changed, &writer->mutex);
            continue;
        }
        pthread_mutex_unlock(&writer->mutex);
        lks_status status = write_and_prune(writer);
        pthread_mutex_lock(&writer->mutex);
        note(writer, status);
        writer->is_busy = false;
        pthread_cond_broadcast(&writer->changed);
    }
    pthread_mutex_unlock(&writer->mutex);
}

lks_status lksi_checkpoint_writer_create(lksi_checkpoint_writer **writer, const lks_trainer *trainer,
                                         const lksi_checkpoint *checkpoint, const char *directory, int64_t keep) {
    lksi_checkpoint_writer *created = lksi_alloc(sizeof *created);
    if (created == NULL) return LKS_ERR_MEMORY;
    created->trainer = trainer;
    created->checkpoint = checkpoint;
    created->directory = directory;
    created->keep = keep;
    pthread_mutex_init(&created->mutex, NULL);
    pthread_cond_init(&created->changed, NULL);
    lks_status status = lksi_thread_create(&created->thread, run, created, "lockstep-save");
    if (status == LKS_OK)
        *writer = created;
    else
        lksi_checkpoint_writer_destroy(created);
    return status;
}

void lksi_checkpoint_writer_destroy(lksi_checkpoint_writer *writer) {
    if (writer == NULL) return;
    pthread_mutex_lock(&writer->mutex);
    writer->is_ending = true;
    pthread_cond_broadcast(&writer->changed);
    pthread_mutex_unlock(&writer->mutex);
    lksi_thread_join(writer->thread);
    if (writer->status != LKS_OK) lksi_log(LKS_LOG_ERROR, "%s", writer->text); /* no wait has returned it */
    pthread_cond_destroy(&writer->changed);
    pthread_mutex_destroy(&writer->mutex);
    lksi_free(writer);
}

void lksi_checkpoint_writer_start(lksi_checkpoint_writer *writer, int64_t previous, int64_t step, int64_t copied_ns,
                                  lks_status status) {
    pthread_mutex_lock(&writer->mutex);
    writer->previous = previous;
    writer->step = step;
    writer->copied_ns = copied_ns;
    note(writer, status);
    writer->is_busy = status == LKS_OK;
    pthread_cond_broadcast(&writer->changed);
    pthread_mutex_unlock(&writer->mutex);
}

lks_status lksi_checkpoint_writer_wait(lksi_checkpoint_writer *writer, int64_t timeout_ms) {
    int64_t deadline_ns = lksi_now_ns() + timeout_ms * 1000000;
    pthread_mutex_lock(&writer->mutex);
    while (writer->is_busy && lksi_now_ns() < deadline_ns)
        lksi_cond_wait_until(&writer->changed, &writer->mutex, deadline_ns);
    bool is_busy = writer->is_busy;
    lks_status status = is_busy ? LKS_ERR_TIMEOUT : writer->status;
    if (!is_busy) writer->status = LKS_OK;
    pthread_mutex_unlock(&writer->mutex);
    if (is_busy)
        return lksi_error(status, "%s: the checkpoint of step %lld is still being written after %g s",
                          writer->directory, (long long)writer->step, (double)timeout_ms / 1000);
    return status == LKS_OK ? LKS_OK : lksi_error(status, "%s", writer->text);
}

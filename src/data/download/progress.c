/* Progress of a download: a line for the user, a sign of life for the lock, and a check for cancellation. */
#include "data/download/download.h"

#include <sys/stat.h>
#include <unistd.h>

static const int64_t MEGABYTE = 1000000, SECOND_NS = 1000000000;

void lksi_download_progress_begin(lksi_download_progress *progress, const char *what, int64_t nbytes_done,
                                  int64_t total_nbytes) {
    progress->what = what;
    progress->begun_nbytes = nbytes_done;
    progress->total_nbytes = total_nbytes;
    progress->begun_ns = lksi_now_ns();
}

/* Draws one line, which is overwritten each time. */
static void draw(lksi_download_progress *progress, int64_t nbytes_done, int64_t now_ns) {
    if (!progress->is_shown || progress->what == NULL || now_ns - progress->drawn_ns < SECOND_NS / 5) return;
    if (!isatty(STDERR_FILENO)) return;
    progress->drawn_ns = now_ns;
    double seconds = (double)(now_ns - progress->begun_ns + 1) / (double)SECOND_NS;
    fprintf(stderr, "\r\x1b[K%s: %.1f of %.1f MB, %.1f MB/s", progress->what, (double)nbytes_done / (double)MEGABYTE,
            (double)progress->total_nbytes / (double)MEGABYTE,
            (double)(nbytes_done - progress->begun_nbytes) / (double)MEGABYTE / seconds);
    fflush(stderr);
}

bool lksi_download_progress_tick(lksi_download_progress *progress, int64_t nbytes_done) {
    int64_t now_ns = lksi_now_ns();
    if (progress->lock >= 0 && now_ns - progress->touched_ns >= SECOND_NS) {
        progress->touched_ns = now_ns;
        (void)futimens(progress->lock, NULL);
    }
    draw(progress, nbytes_done, now_ns);
    return atomic_load(&progress->is_cancelled) == 0;
}

void lksi_download_progress_end(lksi_download_progress *progress) {
    if (progress->drawn_ns != 0 && isatty(STDERR_FILENO)) fputs("\r\x1b[K", stderr);
    progress->drawn_ns = 0;
}

void lksi_download_progress_say(lksi_download_progress *progress, const char *format, ...) {
    if (!progress->is_shown) return;
    lksi_download_progress_end(progress);
    char text[2 * LKSI_PATH_NBYTES];
    va_list arguments;
    va_start(arguments, format);
    lksi_format(text, sizeof text, format, arguments);
    va_end(arguments);
    lksi_say("%s", text);
}

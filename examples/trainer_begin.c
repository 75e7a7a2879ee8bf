/* Before training: joining the world, and errors that one rank reports for all. */
#include "trainer_progress.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Returns the lowest rank for which `is_failed`, the number of ranks if there is none, and -1 if they could not agree.
 * `who` becomes the prefix of this rank's error lines, empty if all ranks failed. */
static int lowest_failed(lks_group *group, int is_failed, char who[32]) {
    int32_t least[2] = {is_failed ? lks_group_rank(group) : lks_group_size(group), is_failed};
    if (lks_all_reduce(group, least, least, 2, LKS_I32, LKS_MIN, NULL) != LKS_OK) least[0] = least[1] = -1;
    who[0] = '\0';
    if (least[1] == 0) snprintf(who, 32, "rank %d: ", lks_group_rank(group));
    return least[0];
}

/* A rank that was started by hand has its own terminal, where the message of the failed rank does not appear. */
static void tell_of(lks_group *group, int lowest) {
    int is_by_hand =
        getenv("RANK") != NULL && getenv("LOCKSTEP_GENERATION") == NULL && getenv("TORCHELASTIC_RUN_ID") == NULL;
    if (is_by_hand && lowest >= 0 && lowest < lks_group_size(group) && lowest != lks_group_rank(group))
        fprintf(stderr, "lockstep: rank %d gave up, and says why\n", lowest);
}

/* A rank that ends because another has failed waits until that one has left, because launchers report the first end.
 * The barrier's error is expected. Looking at its text tells lks_group_destroy that it need not warn of it. */
static void give_way(lks_group *group, int is_failed) {
    if (!is_failed && lks_barrier(group, NULL) != LKS_OK) (void)lks_error_text();
}

int trainer_all_did(lks_group *group, int is_done) {
    char who[32];
    int lowest = lowest_failed(group, !is_done, who);
    if (lowest == lks_group_size(group)) return 1;
    if (lowest < 0) return lks_report(LKS_ERR_PEER, NULL, 0), 0;
    tell_of(group, lowest);
    give_way(group, !is_done);
    return 0;
}

enum { TEXT_NBYTES = 1024 };

/* Whether a lower rank prints the same text, or this rank's text only repeats that of a lower rank. Collective.
 * `lowest` is the first rank with a text. */
static int is_said_below(lks_group *group, int lowest, const char text[TEXT_NBYTES]) {
    int is_said = 0;
    for (int rank = lowest; rank < lks_group_size(group); rank++) {
        char theirs[TEXT_NBYTES];
        memcpy(theirs, text, sizeof theirs);
        if (lks_broadcast(group, theirs, sizeof theirs, LKS_U8, rank, NULL) != LKS_OK) break;
        if (rank < lks_group_rank(group) && theirs[0] != '\0' && strstr(text, theirs) != NULL) is_said = 1;
    }
    return is_said;
}

int trainer_all_ok(lks_group *group, lks_status status) {
    char text[TEXT_NBYTES] = "";
    if (status != LKS_OK) snprintf(text, sizeof text, "%s", lks_error_text());
    char who[32];
    int lowest = lowest_failed(group, status != LKS_OK, who);
    if (lowest == lks_group_size(group)) return 1;
    if (status == LKS_OK && lowest < 0) (void)lks_report(LKS_ERR_PEER, NULL, 0);
    int is_said = lowest >= 0 && is_said_below(group, lowest, text);
    if (status != LKS_OK && !is_said)
        fprintf(stderr, "lockstep: %s%s\n", who, text);
    else
        tell_of(group, lowest);
    give_way(group, status != LKS_OK);
    return 0;
}

int trainer_begin_exit_code(lks_status status) {
    return status == LKS_ERR_ARGUMENT || status == LKS_ERR_UNSUPPORTED ? 2 : 1;
}

/* Ranks that were started by hand may have different flags. They would train something that nobody asked for, or wait
 * for each other's steps. Returns 0 if all agree. */
static int flags_differ(const trainer_flags *flags, const trainer_flag *own, lks_group *group) {
    lks_option options[TRAINER_MAX_OPTIONS];
    char values[TRAINER_MAX_OPTIONS][TRAINER_OPTION_NBYTES];
    int n_options = trainer_flags_options(flags, own, options, values);
    return !trainer_all_ok(group, lks_compare_options(group, options, n_options));
}

static int cannot(const char *path, const char *what, const char *why) {
    fprintf(stderr, "lockstep: %s: the %s cannot be written: %s\n", path, what, why);
    return 0;
}

/* Writes the directory of `path` without links, ending with a slash. Returns 0, with errno, if it is not there. */
static int find_directory(const char *path, char directory[PATH_MAX]) {
    char text[PATH_MAX];
    const char *slash = strrchr(path, '/');
    snprintf(text, sizeof text, "%.*s", slash != NULL ? (int)(slash - path) + 1 : 1, slash != NULL ? path : ".");
    if (realpath(text, directory) == NULL) return 0;
    size_t length = strlen(directory);
    if (length + 2 > PATH_MAX) return errno = ENAMETOOLONG, 0;
    if (directory[length - 1] != '/') memcpy(directory + length, "/", 2);
    return 1;
}

/* Writes the path without links under which the missing file `path` would be created, and checks that it can be. A
 * dangling link is followed. Nothing is created: a file that is removed again may by then be that of another run. */
static int can_create(const char *path, char full_path[PATH_MAX]) {
    enum { MOST_LINKS = 40 };
    char at[PATH_MAX], directory[PATH_MAX], link[PATH_MAX];
    int length = snprintf(at, sizeof at, "%s", path);
    for (int i = 0; i < MOST_LINKS && length < PATH_MAX; i++) {
        if (!find_directory(at, directory)) return 0;
        const char *slash = strrchr(at, '/');
        length = snprintf(full_path, PATH_MAX, "%s%s", directory, slash != NULL ? slash + 1 : at);
        if (length >= PATH_MAX) break;
        ssize_t n = readlink(full_path, link, sizeof link - 1);
        if (n < 0) return (errno == ENOENT || errno == EINVAL) && access(directory, W_OK | X_OK) == 0;
        link[n] = '\0';
        length = snprintf(at, sizeof at, "%s%s", link[0] == '/' ? "" : directory, link);
    }
    errno = ENAMETOOLONG;
    return 0;
}

/* Also returns the path without links. */
static int file_is_writable(const char *path, const char *what, char full_path[PATH_MAX]) {
    struct stat before;
    if (stat(path, &before) != 0)
        return (errno == ENOENT && can_create(path, full_path)) || cannot(path, what, strerror(errno));
    int descriptor = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    if (descriptor < 0) return cannot(path, what, errno == ENXIO ? "a FIFO that nobody reads" : strerror(errno));
    if (realpath(path, full_path) == NULL) snprintf(full_path, PATH_MAX, "%s", path);
    if (S_ISFIFO(before.st_mode)) return 1; /* stays open: closing it would be the end for its reader */
    close(descriptor);
    return 1;
}

/* A checkpoint replaces the file, so it must be a regular file. */
static int checkpoint_is_writable(const char *path, char full_path[PATH_MAX]) {
    struct stat before;
    char temporary[PATH_MAX + 4], full_temporary[PATH_MAX]; /* the name under which it is written first */
    if (stat(path, &before) == 0 && !S_ISREG(before.st_mode)) return cannot(path, "checkpoint", "not a regular file");
    if (!file_is_writable(path, "checkpoint", full_path)) return 0;
    snprintf(temporary, sizeof temporary, "%s.tmp", full_path);
    return file_is_writable(temporary, "checkpoint", full_temporary);
}

static int directory_is_there(const char *path) {
    if (mkdir(path, 0777) == 0 || errno == EEXIST) return 1;
    fprintf(stderr, "lockstep: %s: the run's directory cannot be created: %s\n", path, strerror(errno));
    return 0;
}

/* Creates both directories, so that a run may be told to resume from a directory that does not exist yet. Paths in them
 * must fit too. */
static int run_directories_are_there(const trainer_flags *flags, char metrics[PATH_MAX]) {
    char checkpoints[PATH_MAX], directory[PATH_MAX];
    if (flags->run == NULL) return 1;
    if (strlen(flags->run) > PATH_MAX - 128) return cannot(flags->run, "run", strerror(ENAMETOOLONG));
    if (!directory_is_there(flags->run)) return 0;
    if (realpath(flags->run, directory) != NULL)
        snprintf(metrics, PATH_MAX, "%.*s/metrics.jsonl", PATH_MAX - 16, directory);
    trainer_checkpoint_directory(flags, checkpoints, sizeof checkpoints);
    return flags->checkpoint_every == 0 || directory_is_there(checkpoints);
}

/* A file that is written at the end must not overwrite one that was written or read before. */
static int is_apart(const char *path, const char *full_path, const char *what, const char *other, const char *flag) {
    char text[64], full_other[PATH_MAX];
    if (path == NULL || other == NULL || other[0] == '\0' || full_path[0] == '\0') return 1;
    if (realpath(other, full_other) == NULL) snprintf(full_other, sizeof full_other, "%s", other);
    size_t length = strlen(full_other); /* a directory also covers the files in it */
    if (strncmp(full_path, full_other, length) != 0 || (full_path[length] != '\0' && full_path[length] != '/'))
        return 1;
    snprintf(text, sizeof text, "%s %s", flag, full_path[length] == '/' ? "its directory" : "the same file");
    return cannot(path, what, text);
}

/* Checks before training that all outputs can be written. */
static int outputs_are_writable(const trainer_flags *flags) {
    char summary[PATH_MAX] = "", save[PATH_MAX] = "", metrics[PATH_MAX] = "";
    if (!run_directories_are_there(flags, metrics)) return 0;
    if (flags->summary != NULL && !file_is_writable(flags->summary, "summary", summary)) return 0;
    if (flags->save != NULL && !checkpoint_is_writable(flags->save, save)) return 0;
    return is_apart(flags->summary, summary, "summary", save, "--save names") &&
           is_apart(flags->summary, summary, "summary", flags->init, "--init names") &&
           is_apart(flags->summary, summary, "summary", flags->resume, "--resume names") &&
           is_apart(flags->summary, summary, "summary", metrics, "the metrics of --run go to") &&
           is_apart(flags->save, save, "checkpoint", metrics, "the metrics of --run go to");
}

/* Handles what the command line requests instead of training. Returns an exit code, or -1 to continue. */
static int settle(const trainer_flags *flags, const trainer_flag *own, char **argv, lks_group *group) {
    char who[32];
    int rank = lks_group_rank(group), is_failed = flags->error[0] != '\0';
    int lowest = lowest_failed(group, is_failed, who);
    if (lowest < 0) return lks_report(LKS_ERR_PEER, NULL, 0);
    if (lowest == rank) fprintf(stderr, "%s: %s%s\n", argv[0], who, flags->error);
    tell_of(group, lowest);
    if (lowest < lks_group_size(group)) return give_way(group, is_failed), 2;
    if (!flags->wants_help) {
        if (flags_differ(flags, own, group)) return 2;
        return trainer_all_did(group, rank != 0 || outputs_are_writable(flags)) ? -1 : 1;
    }
    if (rank == 0) trainer_flags_help(argv[0], flags, own);
    return 0;
}

int trainer_begin(const trainer_flags *flags, const trainer_flag *own, char **argv, lks_group **group, int *exit_code) {
    lks_status status = lks_init(group, &(lks_init_options){.transport = flags->transport});
    if (status != LKS_OK) {
        (void)lks_report(status, NULL, 0);
        *exit_code = flags->transport != NULL ? trainer_begin_exit_code(status) : 1;
        return 1;
    }
    *exit_code = settle(flags, own, argv, *group);
    if (*exit_code < 0) return 0;
    lks_group_destroy(*group);
    *group = NULL;
    return 1;
}

lks_status trainer_device_create(lks_device **device, const trainer_flags *flags, const lks_group *group) {
    return lks_device_create(device,
                             &(lks_device_options){.name = flags->device,
                                                   .precision = flags->precision == TRAINER_BF16 ? LKS_BF16 : LKS_F32,
                                                   .num_threads = (int)flags->num_threads,
                                                   .group = group});
}

lks_status trainer_data(const trainer_flags *flags, lks_group *group, const char *name, char *directory,
                        size_t nbytes) {
    lks_data_options options = {.shows_progress = !flags->is_quiet};
    lks_status status = flags->downloads ? lks_data_get(group, name, flags->data, &options) : LKS_OK;
    if (status != LKS_OK) return status;
    if (flags->data == NULL) return lks_data_directory(name, directory, nbytes);
    snprintf(directory, nbytes, "%s", flags->data);
    return LKS_OK;
}

lks_status trainer_read_set(const trainer_flags *flags, lks_group *group, lks_dataset **set, lks_read_dataset read,
                            char *directory) {
    return flags->shares_data ? lks_dataset_share(set, group, read, directory) : read(directory, set);
}

/* The interface of base/ to the other rooms. */
#ifndef LKSI_BASE_H
#define LKSI_BASE_H

#include <lockstep/base.h>

#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>

struct cJSON;

/* --- errors: the code that detects an error writes the message; callers only pass the status on --- */

/* Stores the message for this thread and returns `status`, for `return lksi_error(...)`. A message that is too long
 * loses its middle. */
lks_status lksi_error(lks_status status, const char *format, ...) LKS_PRINTF(2, 3);
/* lksi_error(LKS_ERR_SYSTEM, "<what>: <strerror(errno)>") */
lks_status lksi_error_errno(const char *format, ...) LKS_PRINTF(1, 2);
/* lksi_error(LKS_ERR_FILE, "<path>: <strerror(errno)>") */
lks_status lksi_error_file(const char *path);
/* A thread-safe strerror. For too many open files the text includes the limit and how to raise it. */
enum { LKSI_ERRNO_TEXT_NBYTES = 128 };
void lksi_errno_describe(int error, char text[LKSI_ERRNO_TEXT_NBYTES]);
/* lks_error_text for the library itself: it does not count as a look of the program at the text. */
const char *lksi_error_text(void);
/* How often the program has looked at this thread's error text (lks_error_text, lks_report). */
uint64_t lksi_error_n_reads(void);
/* Used around clean-up that may cause further errors: the message remains that of the returned status. */
enum { LKSI_ERROR_TEXT_NBYTES = 1024 };
void lksi_error_keep(char text[LKSI_ERROR_TEXT_NBYTES]);
void lksi_error_restore(const char text[LKSI_ERROR_TEXT_NBYTES]);
/* Set the rank with which lines of lks_report and of the log begin ("rank 1: "). -1: none, also for worlds of one rank.
 * lksi_thread_set_rank is for this thread and the threads that it creates afterwards. lksi_process_set_rank is for all
 * other threads of the process. */
void lksi_thread_set_rank(int rank);
void lksi_process_set_rank(int rank);
int lksi_own_rank(void); /* as set for this thread */
int lksi_process_rank(void);
/* "rank 1: ", or "" if `text` begins with a rank already, or if `lockstep run --prefix` adds the prefix. */
enum { LKSI_RANK_PREFIX_NBYTES = 24 };
void lksi_rank_prefix(const char *text, char prefix[LKSI_RANK_PREFIX_NBYTES]);
/* For calling a user's function, which may fail without a message and return any value. lksi_n_errors, called before,
 * is the number of errors of this thread so far. lksi_error_of_user, called after, maps the status to a known one. If
 * the function has left no message, it sets "`what` returned 7 (...)". */
uint64_t lksi_n_errors(void);
lks_status lksi_error_of_user(lks_status status, uint64_t n_errors_before, const char *format, ...) LKS_PRINTF(3, 4);

#ifdef __clang_analyzer__
/* The analyzer sees one file at a time, so it would follow impossible paths on which an error is LKS_OK. */
#define lksi_error(status, ...) ((lksi_error)((status), __VA_ARGS__), (status))
#define lksi_error_errno(...) ((lksi_error_errno)(__VA_ARGS__), LKS_ERR_SYSTEM)
#define lksi_error_file(path) ((lksi_error_file)(path), LKS_ERR_FILE)
#endif

/* Checks an argument that must not be NULL: LKS_ERR_ARGUMENT "<call>: `<name>` is NULL". */
static inline lks_status lksi_check_given(const char *call, const char *name, const void *pointer) {
    return pointer != NULL ? LKS_OK : lksi_error(LKS_ERR_ARGUMENT, "%s: `%s` is NULL", call, name);
}

#define LKS_TRY(call)                                                                                                  \
    do {                                                                                                               \
        lks_status lks_try_status_ = (call);                                                                           \
        if (lks_try_status_ != LKS_OK) return lks_try_status_;                                                         \
    } while (0)

/* As LKS_TRY, but jumps to a clean-up label. A local `lks_status status` must exist. */
#define LKS_TRY_GOTO(call, label)                                                                                      \
    do {                                                                                                               \
        status = (call);                                                                                               \
        if (status != LKS_OK) goto label;                                                                              \
    } while (0)

/* --- element types --- */

/* lks_type_nbytes, inlined for hot paths. */
static inline size_t lksi_type_nbytes(lks_type type) {
#define LKSI_TYPE_NBYTES(name, nbytes, text) [name] = nbytes,
    static const unsigned char table[] = {LKS_TYPE_TABLE(LKSI_TYPE_NBYTES)};
#undef LKSI_TYPE_NBYTES
    return (unsigned)type < sizeof table ? table[type] : 0;
}
#ifdef __clang_analyzer__
/* The analyzer would follow impossible paths on which a checked type has 0 bytes. */
#define lksi_type_nbytes(type) lks_type_nbytes(type)
#endif

/* --- sizes --- */
static inline size_t lksi_least(size_t a, size_t b) { return a < b ? a : b; }

/* --- log --- */
/* Prints a line, with a newline, to stderr by one write, so that lines of several ranks do not mix. (fprintf to stderr
 * makes a write of every 128 bytes in glibc 2.37 and later.) */
void lksi_say(const char *format, ...) LKS_PRINTF(1, 2);
bool lksi_log_is_on(lks_log_level level); /* whether a line of that level is written */
/* A line that is too long loses its middle. */
void lksi_log(lks_log_level level, const char *format, ...) LKS_PRINTF(2, 3);
/* From now on `line_writer` gets the lines, each with its newline. NULL: they go to stderr. */
void lksi_log_set_writer(void (*line_writer)(const char *line));

/* --- counted memory --- */

enum { LKSI_ALLOC_PAGED_NBYTES = 1 << 20 };
/* Allocates zeroed memory. It is aligned to 64 bytes, from LKSI_ALLOC_PAGED_NBYTES on to at least 4096 bytes. nbytes 0
 * gives a valid pointer. NULL, with the error text set: out of memory. */
void *lksi_alloc(size_t nbytes);
/* count * nbytes_each, checked for overflow. */
void *lksi_alloc_array(size_t count, size_t nbytes_each);
/* Grows an array to hold `count` elements and keeps the contents. *array may be NULL. */
lks_status lksi_grow(void **array, size_t *capacity, size_t count, size_t nbytes_each);
char *lksi_strdup(const char *text);
void lksi_free(void *pointer); /* accepts NULL */
/* For tests: the `countdown`-th allocation from now on fails, once. 0 turns it off. */
void lksi_alloc_fail_after(int64_t countdown);

/* --- clock (monotonic) --- */
#define LKSI_NS_PER_MS INT64_C(1000000)
int64_t lksi_now_ns(void);
void lksi_sleep_ns(int64_t duration_ns);

/* --- threads --- */
typedef struct lksi_thread lksi_thread;
/* Starts `function(argument)` on a new thread. Its OpenMP regions run on one thread. */
lks_status lksi_thread_create(lksi_thread **thread, void (*function)(void *), void *argument, const char *name);
void lksi_thread_join(lksi_thread *thread); /* waits and frees; accepts NULL */
/* Frees without waiting, in a forked child, which does not have its parent's threads. */
void lksi_thread_forget(lksi_thread *thread);
/* pthread_cond_wait with a deadline by lksi_now_ns. */
void lksi_cond_wait_until(pthread_cond_t *condition, pthread_mutex_t *mutex, int64_t deadline_ns);
/* Sets the number of threads of the calling thread's OpenMP regions, on which kernel libraries run. */
void lksi_openmp_set_threads(int n_threads);
/* The length of an array of cpu_set_t that suffices for every kernel. One cpu_set_t ends at 1024 CPUs, and a kernel
 * refuses a set that is smaller than its own. The macros CPU_..._S take such arrays. */
enum { LKSI_N_CPU_SETS = 8 };
/* The smallest CPU quota of the process's cgroups, in CPUs. 0: no quota. */
double lksi_cpu_quota(void);
/* The number of CPUs that this process may use: the size of the affinity mask, limited by the quota (rounded up). At
 * least 1. */
int lksi_cpu_count(void);
/* Yields the CPU. False: other programs have lately kept the CPU for long, and it did not yield. The caller should then
 * sleep until it is woken, which costs less. */
bool lksi_yield(void);
/* For loops that poll memory that another CPU writes. */
static inline void lksi_relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* --- processes --- */
/* The number of forks between the first process and this one, from the first call of lksi_count_forks on. What has
 * threads or connections keeps the number at which it was made. Another number says that this is a copy of it in a
 * forked child, which has none of the threads. */
extern unsigned lksi_n_forks;
void lksi_count_forks(void);
/* This machine's name, cut to fit. "localhost" if it has none. */
void lksi_host_name(char *name, size_t name_nbytes);
/* An environment variable. NULL if it is not set or empty. */
const char *lksi_variable(const char *name);
/* Reads a variable that is 0 or 1. *is_on becomes `otherwise` if it is not set. Errors: LKS_ERR_ARGUMENT, naming it. */
lks_status lksi_variable_switch(const char *name, bool otherwise, bool *is_on);
typedef struct lksi_process_stat {
    int parent;      /* a pid */
    bool is_exiting; /* it has ended, or is ending: its descriptors may be closed already */
    bool is_stopped; /* by a signal or a debugger */
} lksi_process_stat;
/* False if there is no such process, or if this one cannot see it. */
bool lksi_process_read_stat(int pid, lksi_process_stat *stat);
/* Opens stdin, stdout and stderr if the parent had closed them. Otherwise a file, pipe or connection of this process
 * would get such a number, and what is printed would go there. stdin becomes empty. stdout and stderr become
 * descriptors that cannot be written, so output counts as lost. Call it before anything is opened. */
void lksi_fill_standard_descriptors(void);

/* --- files --- */
enum { LKSI_PATH_NBYTES = 4096 }; /* of a path, including its NUL */
/* snprintf of a path. LKS_ERR_FILE: it does not fit. */
lks_status lksi_path(char path[LKSI_PATH_NBYTES], const char *format, ...) LKS_PRINTF(2, 3);
/* Checks that a text contains no NUL byte: LKS_ERR_FORMAT. Skips the first `n_seen` bytes, which were checked before.
 */
lks_status lksi_check_text(const char *path, const char *text, size_t n_seen, size_t nbytes);
/* Reads a whole regular file of at most `max_nbytes`. Decompresses gzip files, which it detects by content. The caller
 * frees *data. */
lks_status lksi_file_read(const char *path, size_t max_nbytes, void **data, size_t *nbytes);
/* The same for a text. It fails at the first NUL byte, without reading the rest. */
lks_status lksi_file_read_text(const char *path, size_t max_nbytes, void **data, size_t *nbytes);
/* The same for any file with an end, also a pipe or a terminal. It waits for the writer. */
lks_status lksi_file_read_any(const char *path, size_t max_nbytes, void **data, size_t *nbytes);
/* Writes a temporary file beside `path`, syncs it and renames it to `path`: a reader sees the old or the new file.
 * The new file has the permissions of the old one. */
lks_status lksi_file_write_atomic(const char *path, const void *data, size_t nbytes);
/* Opens a file for writing, truncated or for appending. A FIFO without a reader is an error, not a wait. */
lks_status lksi_file_open_output(const char *path, bool appends, FILE **file);
bool lksi_file_exists(const char *path);
/* False for a file that may not be accessed, too. Reading it then reports the error. */
bool lksi_file_is_missing(const char *path);
/* Creates the missing directories that `path` names before its last '/'. */
lks_status lksi_make_parents(const char *path);
/* Iterates over the directories of the control groups (v2) of this process, from its own to the mounted root.
 * `directory` is "" before the first call. False: there are no more, or none at all. */
bool lksi_cgroup_next(char directory[LKSI_PATH_NBYTES]);
/* Whether `path` still names the open file. Between opening and locking the name may have gone to another file. */
bool lksi_file_is_still_named(int descriptor, const char *path);

/* lksi_file_write_atomic piece by piece. */
typedef struct lksi_new_file lksi_new_file;
lks_status lksi_new_file_create(lksi_new_file **file, const char *path);
/* Fastest in pieces of LKSI_NEW_FILE_PIECE_NBYTES that begin at a multiple of 4096 in memory and in the file. */
enum { LKSI_NEW_FILE_PIECE_NBYTES = 1 << 20 };
lks_status lksi_new_file_write(lksi_new_file *file, const void *data, size_t nbytes);
/* Overwrites bytes that were written before. */
lks_status lksi_new_file_overwrite(lksi_new_file *file, uint64_t offset, const void *data, size_t nbytes);
/* Frees `file` in any case. On failure `path` is unchanged, or new if only its directory could not be synced. */
lks_status lksi_new_file_commit(lksi_new_file *file);
void lksi_new_file_discard(lksi_new_file *file); /* accepts NULL */

/* --- JSON (cJSON) --- */
/* Parses the value at the beginning of `text`. The caller owns *json. *end is behind the value. NULL: there is no
 * value, and *end is where the text is not JSON. LKS_ERR_MEMORY. */
lks_status lksi_json_parse(const char *text, size_t nbytes, const char **end, struct cJSON **json);
/* Reads a file of at most `max_nbytes` that is exactly one value. The caller owns *json. NULL: the file is not JSON. */
lks_status lksi_json_read(const char *path, size_t max_nbytes, struct cJSON **json);
/* Prints `object` in one line with a newline and writes it atomically. */
lks_status lksi_json_write(const struct cJSON *object, const char *path);

/* --- hashing and secrets (libcrypto) --- */
/* Initialises libcrypto so that exit() does not free its state. The functions below call this. It has no effect on
 * exit() after another library has initialised libcrypto, so it precedes such calls of the library's own. False:
 * libcrypto cannot be used, or its state was freed. */
bool lksi_libcrypto_open(void);
enum { LKSI_SHA256_NBYTES = 32, LKSI_SHA256_HEX_NBYTES = 2 * LKSI_SHA256_NBYTES + 1 };
typedef struct lksi_sha256 lksi_sha256;
lks_status lksi_sha256_create(lksi_sha256 **hash);
void lksi_sha256_update(lksi_sha256 *hash, const void *data, size_t nbytes);
/* Both destroy `hash`. */
void lksi_sha256_finish(lksi_sha256 *hash, unsigned char digest[LKSI_SHA256_NBYTES]);
void lksi_sha256_finish_hex(lksi_sha256 *hash, char hex[LKSI_SHA256_HEX_NBYTES]);
lks_status lksi_hmac_sha256(const unsigned char *key, size_t key_nbytes, const void *data, size_t nbytes,
                            unsigned char code[LKSI_SHA256_NBYTES]);
/* Takes the same time wherever the secrets differ. */
bool lksi_secrets_are_equal(const void *a, const void *b, size_t nbytes);
lks_status lksi_random_secret(unsigned char *secret, size_t nbytes);
/* Writes two digits per byte, and a NUL. */
void lksi_hex(const unsigned char *bytes, size_t nbytes, char *hex);
/* FNV-1a, for fingerprints. It is not secure against an attacker. Start with LKSI_HASH_START. */
#define LKSI_HASH_START 0xcbf29ce484222325u
uint64_t lksi_hash64(uint64_t hash, const void *data, size_t nbytes);

/* --- random numbers: streams over Philox --- */
/* Keyed by (seed, stream); `index` counts draws. The same arguments give the same number on every machine. */
uint32_t lksi_random_u32(uint64_t seed, uint64_t stream, uint64_t index);
/* Uniform in [0, 1) with 24 bits. */
float lksi_random_uniform(uint64_t seed, uint64_t stream, uint64_t index);
/* Standard normal (Box-Muller, 1958; one draw per index). */
double lksi_random_normal(uint64_t seed, uint64_t stream, uint64_t index);
/* Uniform in [0, bound), bound > 0, unbiased to 2^-32. */
uint64_t lksi_random_below(uint64_t seed, uint64_t stream, uint64_t index, uint64_t bound);

/* --- text --- */
/* vsnprintf that cuts the middle of a text that is too long, because the reason stands at the end, after a long path.
 */
void lksi_format(char *text, size_t text_nbytes, const char *format, va_list arguments) LKS_PRINTF(3, 0);
/* snprintf at the end of `text`. The buffer has `text_nbytes` bytes, including the NUL. What does not fit is cut. */
void lksi_append(char *text, size_t text_nbytes, const char *format, ...) LKS_PRINTF(3, 4);
bool lksi_begins_with(const char *text, const char *start);
/* Appends a number to a list: "7", "7, 9". Does nothing if the number might not fit. */
void lksi_append_number(char *text, size_t text_nbytes, int number);
/* Parse a whole string as a number in a range. False if the text is anything else. */
bool lksi_parse_i64(const char *text, int64_t min, int64_t max, int64_t *value);
bool lksi_parse_f64(const char *text, double min, double max, double *value);
/* Length of the UTF-8 character at the beginning of `text`, which has `text_nbytes` bytes. 0: invalid or incomplete. */
size_t lksi_utf8_nbytes(const char *text, size_t text_nbytes);

#endif

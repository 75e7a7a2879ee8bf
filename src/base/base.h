/* What base/ offers to the other rooms. */
#ifndef LKSI_BASE_H
#define LKSI_BASE_H

#include <lockstep/base.h>

#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>

struct cJSON;

/* --- errors: whoever detects one writes the message; callers only pass the status on --- */

/* Stores the message for this thread and returns `status`, so that `return lksi_error(...)` reads as one act. Of what
 * is too long the middle is left out. */
lks_status lksi_error(lks_status status, const char *format, ...) LKS_PRINTF(2, 3);
/* lksi_error(LKS_ERR_SYSTEM, "<what>: <strerror(errno)>") */
lks_status lksi_error_errno(const char *format, ...) LKS_PRINTF(1, 2);
/* lksi_error(LKS_ERR_FILE, "<path>: <strerror(errno)>") */
lks_status lksi_error_file(const char *path);
/* strerror(error), where threads may ask at once; of too many open files also the limit, and what raises it. */
enum { LKSI_ERRNO_TEXT_NBYTES = 128 };
void lksi_errno_describe(int error, char text[LKSI_ERRNO_TEXT_NBYTES]);
/* Around what is done because of an error, and may meet another: the message stays that of the status returned. */
enum { LKSI_ERROR_TEXT_NBYTES = 1024 };
void lksi_error_keep(char text[LKSI_ERROR_TEXT_NBYTES]);
void lksi_error_restore(const char text[LKSI_ERROR_TEXT_NBYTES]);
/* Whose lines those of lks_report and of the log are: a rank's of a world of more than one, which they then begin with
 * ("rank 1: "); -1: nobody's. Of this thread and of those that it makes from now on; and of all threads of the process
 * that are no rank's. */
void lksi_thread_set_rank(int rank);
void lksi_process_set_rank(int rank);
int lksi_own_rank(void); /* as this thread was told */
/* "rank 1: "; "" where `text` begins with a rank itself, or `lockstep run --prefix` says whose it is. */
enum { LKSI_RANK_PREFIX_NBYTES = 24 };
void lksi_rank_prefix(const char *text, char prefix[LKSI_RANK_PREFIX_NBYTES]);
/* Around a user's function, which may fail without a text and return anything: errors of this thread so far, taken
 * before it; and its status as one that is known, with the text "`what` returned 7 (...)" where it has left none. */
uint64_t lksi_n_errors(void);
lks_status lksi_error_of_user(lks_status status, uint64_t n_errors_before, const char *format, ...) LKS_PRINTF(3, 4);

#ifdef __clang_analyzer__
/* The analyzer looks at one file at a time and so would follow a path on which an error is LKS_OK. */
#define lksi_error(status, ...) ((lksi_error)((status), __VA_ARGS__), (status))
#define lksi_error_errno(...) ((lksi_error_errno)(__VA_ARGS__), LKS_ERR_SYSTEM)
#define lksi_error_file(path) ((lksi_error_file)(path), LKS_ERR_FILE)
#endif

/* An argument that must be given: LKS_ERR_ARGUMENT "<call>: `<name>` is NULL" where `pointer` is. */
static inline lks_status lksi_check_given(const char *call, const char *name, const void *pointer) {
    return pointer != NULL ? LKS_OK : lksi_error(LKS_ERR_ARGUMENT, "%s: `%s` is NULL", call, name);
}

#define LKS_TRY(call)                                                                                                  \
    do {                                                                                                               \
        lks_status lks_try_status_ = (call);                                                                           \
        if (lks_try_status_ != LKS_OK) return lks_try_status_;                                                         \
    } while (0)

/* As LKS_TRY, but goes to a clean-up label; a local `lks_status status` must exist. */
#define LKS_TRY_GOTO(call, label)                                                                                      \
    do {                                                                                                               \
        status = (call);                                                                                               \
        if (status != LKS_OK) goto label;                                                                              \
    } while (0)

/* --- element types --- */

/* lks_type_nbytes, for where a call costs too much. */
static inline size_t lksi_type_nbytes(lks_type type) {
#define LKSI_TYPE_NBYTES(name, nbytes, text) [name] = nbytes,
    static const unsigned char table[] = {LKS_TYPE_TABLE(LKSI_TYPE_NBYTES)};
#undef LKSI_TYPE_NBYTES
    return (unsigned)type < sizeof table ? table[type] : 0;
}
#ifdef __clang_analyzer__
/* It would follow a path on which a type that was checked has 0 bytes. */
#define lksi_type_nbytes(type) lks_type_nbytes(type)
#endif

/* --- sizes --- */
static inline size_t lksi_least(size_t a, size_t b) { return a < b ? a : b; }

/* --- log --- */
bool lksi_log_is_on(lks_log_level level); /* whether a line of that level is written */
void lksi_log(lks_log_level level, const char *format, ...) LKS_PRINTF(2, 3);

/* --- counted memory --- */

enum { LKSI_ALLOC_PAGED_NBYTES = 1 << 20 };
/* Zeroed, and aligned to 64 bytes, from LKSI_ALLOC_PAGED_NBYTES on to 4096 or more. nbytes 0 gives a valid pointer.
 * NULL with the error text set when memory is out. */
void *lksi_alloc(size_t nbytes);
/* count * nbytes_each, checked for overflow. */
void *lksi_alloc_array(size_t count, size_t nbytes_each);
/* Grows an array to hold `count` elements, keeping the contents; *array may be NULL. */
lks_status lksi_grow(void **array, size_t *capacity, size_t count, size_t nbytes_each);
char *lksi_strdup(const char *text);
void lksi_free(void *pointer); /* accepts NULL */
/* Tests: the `countdown`-th allocation from now on fails, once. 0 turns it off. */
void lksi_alloc_fail_after(int64_t countdown);

/* --- clock (monotonic) --- */
#define LKSI_NS_PER_MS INT64_C(1000000)
int64_t lksi_now_ns(void);
void lksi_sleep_ns(int64_t duration_ns);

/* --- threads --- */
typedef struct lksi_thread lksi_thread;
/* Starts `function(argument)`; the thread runs its OpenMP regions alone (one thread). */
lks_status lksi_thread_create(lksi_thread **thread, void (*function)(void *), void *argument, const char *name);
void lksi_thread_join(lksi_thread *thread); /* waits and frees; accepts NULL */
/* pthread_cond_wait until that moment of lksi_now_ns at the latest. */
void lksi_cond_wait_until(pthread_cond_t *condition, pthread_mutex_t *mutex, int64_t deadline_ns);
/* How many threads the calling thread's OpenMP regions use from now on (kernel libraries run on them). */
void lksi_openmp_set_threads(int n_threads);
/* So many cpu_set_t in a row hold the CPUs of every kernel, which refuses a set smaller than its own; one ends at 1024.
 * The macros CPU_..._S take such sets. */
enum { LKSI_N_CPU_SETS = 8 };
/* CPUs' worth of time that the least of the cgroups' quotas grants; 0: there is none. */
double lksi_cpu_quota(void);
/* CPUs that this process may use: the affinity mask, cut by that quota, rounded up; at least 1. */
int lksi_cpu_count(void);
/* Gives the CPU to whoever wants it, for a moment. False where other programs have lately taken it for long: it did
 * nothing then, and a sleep until one is woken costs less. */
bool lksi_yield(void);
/* In a loop that waits for another CPU. */
static inline void lksi_relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* --- processes --- */
/* This machine's name, cut to fit; "localhost" where it has none. */
void lksi_host_name(char *name, size_t name_nbytes);
/* A variable of the environment; NULL where it is not set, or empty. */
const char *lksi_variable(const char *name);
/* One that is 0 or 1; `otherwise` where it is not set. Errors: LKS_ERR_ARGUMENT, naming it. */
lks_status lksi_variable_switch(const char *name, bool otherwise, bool *is_on);
typedef struct lksi_process_stat {
    int parent;      /* a pid */
    bool is_exiting; /* its descriptors may be closed already, its end not yet told; or it has ended */
    bool is_stopped; /* by a signal or a debugger */
} lksi_process_stat;
/* False where there is no such process, or none that this one can see. */
bool lksi_process_read_stat(int pid, lksi_process_stat *stat);

/* --- files --- */
enum { LKSI_PATH_NBYTES = 4096 }; /* of a path, its NUL included */
/* snprintf of one: LKS_ERR_FILE where it does not fit. */
lks_status lksi_path(char path[LKSI_PATH_NBYTES], const char *format, ...) LKS_PRINTF(2, 3);
/* Texts hold no NUL; what does is another kind of file. Looks at what follows the first `n_seen` of the bytes. */
lks_status lksi_check_text(const char *path, const char *text, size_t n_seen, size_t nbytes);
/* Whole regular file, at most `max_nbytes`. Reads gzip'd files transparently (.gz or not, by content). Caller frees
 * *data. */
lks_status lksi_file_read(const char *path, size_t max_nbytes, void **data, size_t *nbytes);
/* The same of a text: with the first NUL byte it ends as malformed, however much follows. */
lks_status lksi_file_read_text(const char *path, size_t max_nbytes, void **data, size_t *nbytes);
/* The same of what else can be read to its end, a pipe or a terminal; waits for whoever writes there. */
lks_status lksi_file_read_any(const char *path, size_t max_nbytes, void **data, size_t *nbytes);
/* Writes a temporary file beside `path`, syncs it and renames it over `path`: a reader sees the old or the new one. */
lks_status lksi_file_write_atomic(const char *path, const void *data, size_t nbytes);
/* For writing, from the beginning or at the end. A FIFO that nobody reads is an error and not a wait. */
lks_status lksi_file_open_output(const char *path, bool appends, FILE **file);
bool lksi_file_exists(const char *path);
/* The directories that `path` names before its last '/', where they are not there. */
lks_status lksi_make_parents(const char *path);
/* The directories of the control groups (v2) that this process is in, from its own to the root of what is mounted, one
 * a call; `directory` is "" before the first. False where there are no more, and where there are none. */
bool lksi_cgroup_next(char directory[LKSI_PATH_NBYTES]);
/* Whether `path` is the name of the open file: between opening and locking, it may have gone to another. */
bool lksi_file_is_still_named(int descriptor, const char *path);

/* The same piece by piece. */
typedef struct lksi_new_file lksi_new_file;
lks_status lksi_new_file_create(lksi_new_file **file, const char *path);
/* Costs least in pieces of LKSI_NEW_FILE_PIECE_NBYTES that begin at a multiple of 4096, in memory and in the file. */
enum { LKSI_NEW_FILE_PIECE_NBYTES = 1 << 20 };
lks_status lksi_new_file_write(lksi_new_file *file, const void *data, size_t nbytes);
/* Over bytes that were written before. */
lks_status lksi_new_file_overwrite(lksi_new_file *file, uint64_t offset, const void *data, size_t nbytes);
/* Ends `file` in any case; where it fails, `path` is as it was, or, where only its directory could not be synced, new.
 */
lks_status lksi_new_file_commit(lksi_new_file *file);
void lksi_new_file_discard(lksi_new_file *file); /* accepts NULL */

/* --- JSON (cJSON) --- */
/* A file of at most `max_nbytes` that is one value and nothing more. NULL where it is no JSON; the caller's. */
lks_status lksi_json_read(const char *path, size_t max_nbytes, struct cJSON **json);
/* Prints `object` in one line with a newline and writes it atomically. */
lks_status lksi_json_write(const struct cJSON *object, const char *path);

/* --- hashing and secrets (libcrypto) --- */
enum { LKSI_SHA256_NBYTES = 32, LKSI_SHA256_HEX_NBYTES = 2 * LKSI_SHA256_NBYTES + 1 };
typedef struct lksi_sha256 lksi_sha256;
lks_status lksi_sha256_create(lksi_sha256 **hash);
void lksi_sha256_update(lksi_sha256 *hash, const void *data, size_t nbytes);
/* Both destroy `hash`. */
void lksi_sha256_finish(lksi_sha256 *hash, unsigned char digest[LKSI_SHA256_NBYTES]);
void lksi_sha256_finish_hex(lksi_sha256 *hash, char hex[LKSI_SHA256_HEX_NBYTES]);
lks_status lksi_hmac_sha256(const unsigned char *key, size_t key_nbytes, const void *data, size_t nbytes,
                            unsigned char code[LKSI_SHA256_NBYTES]);
/* Takes the same time wherever they differ. */
bool lksi_secrets_are_equal(const void *a, const void *b, size_t nbytes);
lks_status lksi_random_secret(unsigned char *secret, size_t nbytes);
/* Two digits per byte, and a NUL. */
void lksi_hex(const unsigned char *bytes, size_t nbytes, char *hex);
/* FNV-1a, for fingerprints that are compared and never trusted against an attacker. Start with LKSI_HASH_START. */
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
/* snprintf at the end of `text`, of which there are `text_nbytes`, its NUL included; what does not fit is cut. */
void lksi_append(char *text, size_t text_nbytes, const char *format, ...) LKS_PRINTF(3, 4);
bool lksi_begins_with(const char *text, const char *start);
/* A list that grows: "7", "7, 9". Ends where the next number might not fit. */
void lksi_append_number(char *text, size_t text_nbytes, int number);
/* Whole-string parses with a range; false where the text is anything else. */
bool lksi_parse_i64(const char *text, int64_t min, int64_t max, int64_t *value);
bool lksi_parse_f64(const char *text, double min, double max, double *value);
/* Bytes of the UTF-8 character with which the `text_nbytes` at `text` begin; 0 where they begin with none. */
size_t lksi_utf8_nbytes(const char *text, size_t text_nbytes);

#endif

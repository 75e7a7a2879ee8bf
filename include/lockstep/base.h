/* Lockstep, room base/: status codes, error text, element types, log, counted memory, random numbers.
 *
 * Conventions of all public headers:
 * - `count` is a number of elements, `nbytes` a number of bytes. Times carry their unit.
 * - A function that can fail returns lks_status. If it fails, its outputs are unchanged, unless it says otherwise.
 * - A pointer to an option struct may be NULL. That means a struct of zeros: the default of every field, and an error
 *   for a required field.
 * - Any other pointer must not be NULL, unless the function says otherwise. NULL is LKS_ERR_ARGUMENT, and the text
 *   names the argument. A function without a status then does nothing and returns 0 or NULL.
 * - "Errors:" lists the errors that a caller should know. "Fatal:" lists errors after which the group is dead (comm.h).
 *   The text is that of lks_error_text. */
#ifndef LOCKSTEP_BASE_H
#define LOCKSTEP_BASE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define LKS_API __attribute__((visibility("default")))
#define LKS_PRINTF(format_index, first_argument) __attribute__((format(printf, format_index, first_argument)))
#else
#define LKS_API
#define LKS_PRINTF(format_index, first_argument)
#endif

/* The table of status codes and their texts: X(name, text). LKS_OK is 0. */
#define LKS_STATUS_TABLE(X)                                                                                            \
    X(LKS_OK, "success")                                                                                               \
    X(LKS_ERR_ARGUMENT, "invalid argument")                                                                            \
    X(LKS_ERR_SHAPE, "shapes do not fit")                                                                              \
    X(LKS_ERR_MEMORY, "out of memory")                                                                                 \
    X(LKS_ERR_SYSTEM, "system call failed")                                                                            \
    X(LKS_ERR_FILE, "file cannot be read or written")                                                                  \
    X(LKS_ERR_FORMAT, "malformed data")                                                                                \
    X(LKS_ERR_STATE, "not possible in this state")                                                                     \
    X(LKS_ERR_UNSUPPORTED, "not supported")                                                                            \
    X(LKS_ERR_MISMATCH, "ranks disagree")                                                                              \
    X(LKS_ERR_PEER, "a rank was lost")                                                                                 \
    X(LKS_ERR_TIMEOUT, "deadline passed")                                                                              \
    X(LKS_ERR_TORN, "parameters are half updated")                                                                     \
    X(LKS_ERR_NUMERIC, "not a finite number")

/* From C23 and C++17 on, compilers warn of a call whose status is ignored. */
#if (defined(__cplusplus) && __cplusplus >= 201703L) || (defined(__STDC_VERSION__) && __STDC_VERSION__ >= 202311L)
#define LKS_NODISCARD [[nodiscard]]
#else
#define LKS_NODISCARD
#endif

typedef enum LKS_NODISCARD lks_status {
#define LKS_STATUS_ENUM(name, text) name,
    LKS_STATUS_TABLE(LKS_STATUS_ENUM)
#undef LKS_STATUS_ENUM
} lks_status;

/* The general text of a status, such as "a rank was lost". Never NULL. */
LKS_API const char *lks_status_text(lks_status status);

/* The error text of this thread's last failed call, as one line. Valid until the next failure. */
LKS_API const char *lks_error_text(void);

/* Sets this thread's error text, like printf, and returns `status`. For the caller's functions that the library calls
 * (custom operators, read functions, callbacks of lks_on_gradient): their error then has this text on all ranks.
 *
 *     return lks_error_set(LKS_ERR_FORMAT, "%s is not a JPEG file", path);
 *
 * A text of more than 1023 bytes loses its middle. NULL: the text of the status. */
LKS_API lks_status lks_error_set(lks_status status, const char *format, ...) LKS_PRINTF(2, 3);

/* Prints "lockstep: <error text> [file:line]" to stderr and returns 1, an exit code for main. LKS_CHECK uses it.
 *
 * In a world of several ranks "rank N: " stands before the text, unless the text begins so or `lockstep run --prefix`
 * prints it already. The place is omitted for LKS_ERR_FILE and LKS_ERR_FORMAT, which may be the mistake of the
 * program's user. */
LKS_API int lks_report(lks_status status, const char *file, int line);

/* For functions that return an exit code, such as main: reports a failure and returns 1 from the calling function. */
#define LKS_CHECK(call)                                                                                                \
    do {                                                                                                               \
        lks_status lks_check_status_ = (call);                                                                         \
        if (lks_check_status_ != LKS_OK) return lks_report(lks_check_status_, __FILE__, __LINE__);                     \
    } while (0)

/* Element types: X(name, nbytes, text). */
#define LKS_TYPE_TABLE(X)                                                                                              \
    X(LKS_F32, 4, "f32")                                                                                               \
    X(LKS_F64, 8, "f64")                                                                                               \
    X(LKS_F16, 2, "f16")                                                                                               \
    X(LKS_BF16, 2, "bf16")                                                                                             \
    X(LKS_I8, 1, "i8")                                                                                                 \
    X(LKS_U8, 1, "u8")                                                                                                 \
    X(LKS_I32, 4, "i32")                                                                                               \
    X(LKS_I64, 8, "i64")

typedef enum lks_type {
#define LKS_TYPE_ENUM(name, nbytes, text) name,
    LKS_TYPE_TABLE(LKS_TYPE_ENUM)
#undef LKS_TYPE_ENUM
} lks_type;

/* Bytes of one element. 0 for an invalid type. */
LKS_API size_t lks_type_nbytes(lks_type type);
/* "f32", ... "?" for an invalid type. */
LKS_API const char *lks_type_name(lks_type type);

/* In option structs 0 means the default. LKS_ZERO means the value 0 in fields where 0 is useful (a momentum, Adam's
 * beta1). */
#define LKS_ZERO (-9.332636185032189e-302)

/* Sets the log level. Lines at or above it go to stderr. Default: LOCKSTEP_LOG=error|warning|info|debug, or
 * LKS_LOG_WARNING. */
typedef enum lks_log_level { LKS_LOG_ERROR, LKS_LOG_WARNING, LKS_LOG_INFO, LKS_LOG_DEBUG } lks_log_level;
LKS_API void lks_log_set_level(lks_log_level level);

/* --- timeline ---
 *
 * If LOCKSTEP_TIMELINE names a directory, each rank writes what its threads did when to DIR/rank<R>.json: steps,
 * kernels, collectives, waits, batches and checkpoints (docs/timeline.md). The format is Chrome's trace events, which
 * https://ui.perfetto.dev shows. A rank records its first 300000 sections. A process that is no rank writes
 * DIR/process<PID>.json. */

/* Begins a section of the caller's own. Returns 0, at the cost of a function call, if there is no timeline. */
LKS_API int64_t lks_timeline_begin(void);
/* Ends the section that began at `began_ns`, with category "user". Sections of one thread must nest. 0: does nothing.
 *
 * Buffers:    `name` is copied, and cut after 79 bytes. */
LKS_API void lks_timeline_end(int64_t began_ns, const char *name);

/* The bytes that the library currently holds in this process, and its number of allocations since the program began.
 *
 * The bytes are 0 when every object is destroyed, including those of rank threads and of their launcher. The number of
 * allocations does not change while programs run. */
LKS_API int64_t lks_memory_nbytes(void);
LKS_API int64_t lks_memory_allocation_count(void);

/* Philox4x32-10: four 32-bit random words from a 128-bit counter and a 64-bit key.
 *
 * It has no state. Any thread may call it, in any order.
 * Source:     Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011. */
LKS_API void lks_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

/* The version, such as "0.1.0". */
LKS_API const char *lks_version(void);

#ifdef __cplusplus
}
#endif
#endif

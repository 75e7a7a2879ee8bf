/* The interface of comm/ to the other rooms, beyond the public header. */
#ifndef LKSI_COMM_H
#define LKSI_COMM_H

#include "base/base.h"

#include <lockstep/comm.h>

/* --- worlds of threads (used by launch/) --- */

typedef struct lksi_thread_world lksi_thread_world;
lks_status lksi_thread_world_create(lksi_thread_world **world, int size);
/* After this, lks_init on this thread joins `world` as `rank`. */
void lksi_thread_world_enter(lksi_thread_world *world, int rank);
/* This thread stops being a rank. It counts as lost if it leaves while it is in a group, or before it has joined while
 * others wait in lks_init. `exit_code` is what its rank function returned. */
void lksi_thread_world_leave(lksi_thread_world *world, int exit_code);
void lksi_thread_world_destroy(lksi_thread_world *world); /* after all ranks have left; accepts NULL */

/* --- arithmetic (used by parallel/) --- */

/* The largest power of two below n (n > 1). The canonical tree splits there. */
static inline int lksi_split(int n) {
    int half = 1;
    while (half * 2 < n) half *= 2;
    return half;
}
/* out[i] = op over k of inputs[k][i], in canonical order over k. `out` may be one of the inputs. All instruction sets
 * give the same bits. avg does not divide here. */
void lksi_reduce_many(void *out, const void *const *inputs, int n_inputs, size_t count, lks_type type, lks_operator op);

/* --- the first exchange of a call (used by parallel/ for its own collectives) --- */

enum { LKSI_PAYLOAD_NBYTES = 104, LKSI_MAX_RANKS = 1024 };

/* A barrier in which every rank sends the same number of bytes, at most LKSI_PAYLOAD_NBYTES, to all. `mine` is this
 * rank's payload. `all` gets the payloads of all ranks (size * nbytes, in rank order). `operation` and `fingerprint`
 * must be the same on all ranks: this checks calls of higher rooms as the operations of comm/ are checked. Works on
 * every transport. Deadline and errors are as for any collective. */
lks_status lksi_exchange(lks_group *group, const char *operation, uint64_t fingerprint, const void *mine, size_t nbytes,
                         void *all);
/* Explains the fingerprint in words, for the error that shows two calls. */
typedef struct lksi_meaning {
    void (*write)(const void *context, char *text, size_t text_nbytes);
    const void *context;
} lksi_meaning;
lks_status lksi_exchange_meaning(lks_group *group, const char *operation, uint64_t fingerprint,
                                 const lksi_meaning *meaning, const void *mine, size_t nbytes, void *all);

/* --- threads that run collectives beside one that computes (used by parallel/) --- */

/* Makes the calling thread a worker: it spins only if there are spare CPUs (if `is_patient`, on the network for
 * milliseconds), and does not touch point-to-point messages. */
void lksi_work_become_worker(bool is_patient);
/* Whether every rank of this host has a CPU for its worker and one for its computing thread. */
bool lksi_group_worker_may_spin(const lks_group *group);

/* Binds `other`, a group of the same ranks, to `group`: it fails when `group` fails, so no rank waits there for a rank
 * that gave up. No other thread may use `group` while a group is bound to it or one of both is destroyed. `owner`, a
 * string literal ("optimizer"), names the user of `other` in errors. */
void lksi_group_bind(lks_group *group, lks_group *other, const char *owner);

/* Lends the group: until it is given back, only worker threads of `borrower` may run collectives on it. On other
 * threads these return LKS_ERR_STATE, and so does lending it to another borrower. `name` names the user in the error.
 */
lks_status lksi_group_lend(lks_group *group, const void *borrower, const char *name);
void lksi_group_give_back(lks_group *group, const void *borrower); /* does nothing if it is not lent to `borrower` */
/* LKS_ERR_STATE if the group is lent to another than `borrower`. */
lks_status lksi_group_refuse_lent(const lks_group *group, const void *borrower, const char *name);

/* --- the operations and their algorithms (used by cli/ and the tests) --- */

typedef struct lksi_operation lksi_operation;
/* The operation called `name` ("all_reduce"). NULL if there is none. */
const lksi_operation *lksi_operation_find(const char *name);
/* Operation `index`, from 0 on. NULL past the last. */
const lksi_operation *lksi_operation_at(int index);
const char *lksi_operation_name(const lksi_operation *operation);
/* The names that lks_collective_options.algorithm takes besides "auto", by index from 0 on. NULL past the last. */
const char *lksi_operation_algorithm(const lksi_operation *operation, int index);
/* Checks LOCKSTEP_ALGORITHM. Errors: LKS_ERR_ARGUMENT, the error that lks_init would return. */
lks_status lksi_algorithm_variable_check(void);
/* The cost of a message over a transport between hosts. */
typedef struct lksi_tuning {
    bool is_given; /* false: LOCKSTEP_TUNING is not set, or its file has no entry for the transport */
    double latency_ns, ns_per_byte;
} lksi_tuning;
/* Reads the entry of `transport` ("tcp", "mpi") in the file of LOCKSTEP_TUNING. Errors: LKS_ERR_FILE, LKS_ERR_FORMAT.
 */
lks_status lksi_tuning_read(const char *transport, lksi_tuning *tuning);
/* The algorithm that `auto` chooses between `n_ranks` hosts with one rank each, in the canonical order. `nbytes` is the
 * size of the call's count. */
const char *lksi_operation_cheapest(const lksi_operation *operation, const lksi_tuning *tuning, int n_ranks,
                                    size_t nbytes);
/* The algorithm of the group's last collective. NULL before the first. */
const char *lksi_group_last_algorithm(const lks_group *group);

/* Marks the group dead on this rank with the current error, and tells the others why. Returns `status`. */
lks_status lksi_group_fail(lks_group *group, lks_status status);
/* The group's first error, or LKS_OK while it lives. */
lks_status lksi_group_status(const lks_group *group);
/* For a thread that computes for long between two calls: checks whether the group has died meanwhile (a lost rank), and
 * returns the error. `doing` names the activity in the error. It does not wait. No other thread may use the group
 * meanwhile. */
lks_status lksi_group_look_around(lks_group *group, const char *doing);
int64_t lksi_group_timeout_ms(const lks_group *group);
/* A text that says why the group's sums may not keep the canonical order: the group's order option, or an algorithm
 * that LOCKSTEP_ALGORITHM names. "" if they keep it. Otherwise their bits depend on the number of ranks and on how data
 * is divided into calls. */
void lksi_group_order_obstacle(const lks_group *group, char *text, size_t text_nbytes);

#endif

/* What comm/ offers to the other rooms, beyond its public face. */
#ifndef LKSI_COMM_H
#define LKSI_COMM_H

#include "base/base.h"

#include <lockstep/comm.h>

/* --- worlds of threads (used by launch/) --- */

typedef struct lksi_thread_world lksi_thread_world;
lks_status lksi_thread_world_create(lksi_thread_world **world, int size);
/* From now on lks_init on this thread joins `world` as `rank`. */
void lksi_thread_world_enter(lksi_thread_world *world, int rank);
/* This thread is no rank any more; one that leaves with a group still joined, or without having joined while others
 * wait in lks_init, counts as lost. `exit_code` is what its rank function returned. */
void lksi_thread_world_leave(lksi_thread_world *world, int exit_code);
void lksi_thread_world_destroy(lksi_thread_world *world); /* after all have left; accepts NULL */

/* --- arithmetic (used by parallel/) --- */

/* The largest power of two below n, n > 1: where the canonical tree splits. */
static inline int lksi_split(int n) {
    int half = 1;
    while (half * 2 < n) half *= 2;
    return half;
}
/* out[i] = op over inputs of scale[k] * inputs[k][i], in canonical order over k. `scales` may be NULL (all 1). `out`
 * may be one of the inputs. Equal bits on every instruction set. avg does not divide here. */
void lksi_reduce_many(void *out, const void *const *inputs, const double *scales, int n_inputs, size_t count,
                      lks_type type, lks_operator op);

/* --- the first exchange of a call (used by parallel/ for its own collectives) --- */

enum { LKSI_PAYLOAD_NBYTES = 104, LKSI_MAX_RANKS = 1024 };

/* A barrier in which every rank hands every other LKSI_PAYLOAD_NBYTES at most: payload `mine` out, all ranks' payloads
 * (size * nbytes, in rank order) in `all`. `operation` and `fingerprint` must agree on all ranks: it is how a call of a
 * higher room is checked as the operations of comm/ are. Works on every transport. Deadline and errors as any
 * collective. */
lks_status lksi_exchange(lks_group *group, const char *operation, uint64_t fingerprint, const void *mine, size_t nbytes,
                         void *all);
/* What the fingerprint is made of, in words, for the error that shows two calls. */
typedef struct lksi_meaning {
    void (*write)(const void *context, char *text, size_t text_nbytes);
    const void *context;
} lksi_meaning;
lks_status lksi_exchange_meaning(lks_group *group, const char *operation, uint64_t fingerprint,
                                 const lksi_meaning *meaning, const void *mine, size_t nbytes, void *all);

/* --- threads that run collectives beside one that computes (used by parallel/) --- */

/* The calling thread is such a one from now on: it spins only where CPUs are left over (where `is_patient`, on the
 * network for milliseconds), and leaves messages alone. */
void lksi_work_become_worker(bool is_patient);
/* Whether there is a CPU for it and one for the thread that computes, on every rank of this host. */
bool lksi_group_worker_may_spin(const lks_group *group);

/* `other`, of the same ranks, fails when `group` does: a rank that gives up is not waited for there either. Neither is
 * bound or destroyed while another thread uses `group`. */
void lksi_group_bind(lks_group *group, lks_group *other);

/* Until it gives the group back, its collectives are for `borrower`'s such threads alone: on any other they are
 * LKS_ERR_STATE, and so is lending it to another. `name` is what needs it, for the error. */
lks_status lksi_group_lend(lks_group *group, const void *borrower, const char *name);
void lksi_group_give_back(lks_group *group, const void *borrower); /* nothing where it is not lent to that one */
/* LKS_ERR_STATE where the group is lent to another than `borrower`. */
lks_status lksi_group_refuse_lent(const lks_group *group, const void *borrower, const char *name);

/* --- the operations and their algorithms (used by cli/ and the tests) --- */

typedef struct lksi_operation lksi_operation;
/* The operation called `name` ("all_reduce"); NULL where there is none. */
const lksi_operation *lksi_operation_find(const char *name);
/* All of them, counted from 0; NULL past the last. */
const lksi_operation *lksi_operation_at(int index);
const char *lksi_operation_name(const lksi_operation *operation);
/* The names that lks_collective_options.algorithm takes besides "auto", counted from 0; NULL past the last. */
const char *lksi_operation_algorithm(const lksi_operation *operation, int index);
/* Whether LOCKSTEP_ALGORITHM can be followed. Errors: LKS_ERR_ARGUMENT, as every collective would have it. */
lks_status lksi_algorithm_variable_check(void);
/* What a message over a transport between hosts costs. */
typedef struct lksi_tuning {
    bool is_given; /* false: LOCKSTEP_TUNING is not set, or its file says nothing of the transport */
    double latency_ns, ns_per_byte;
} lksi_tuning;
/* What LOCKSTEP_TUNING's file says of `transport` ("tcp", "mpi"). Errors: LKS_ERR_FILE, LKS_ERR_FORMAT. */
lks_status lksi_tuning_read(const char *transport, lksi_tuning *tuning);
/* What `auto` takes between `n_ranks` hosts of a rank each, in the canonical order, for `nbytes` of the call's count.
 */
const char *lksi_operation_cheapest(const lksi_operation *operation, const lksi_tuning *tuning, int n_ranks,
                                    size_t nbytes);
/* What the group's last collective ran: what `auto` chose, or what was asked for. NULL before the first. */
const char *lksi_group_last_algorithm(const lks_group *group);

/* A status that cannot be undone: marks the group dead on this rank and tells the others why. Returns `status`. */
lks_status lksi_group_fail(lks_group *group, lks_status status);
/* The group's first error, LKS_OK while it lives. */
lks_status lksi_group_status(const lks_group *group);
/* The same for whoever computes for long between two calls, now and then: a rank that was lost meanwhile has killed the
 * group, and need not wait for the next call to be named. `doing` is what goes on, for the error. Waits for nothing.
 * Not while another thread uses the group. */
lks_status lksi_group_look_around(lks_group *group, const char *doing);
int64_t lksi_group_timeout_ms(const lks_group *group);
/* Why the group's sums need not keep the canonical order, for people; "" where they do: what it was made with, or an
 * algorithm that LOCKSTEP_ALGORITHM names. Where they do not, their bits depend on the number of ranks, and on where
 * data is cut into calls. Errors: LKS_ERR_ARGUMENT: the variable. */
lks_status lksi_group_order_obstacle(lks_group *group, char *text, size_t text_nbytes);

#endif

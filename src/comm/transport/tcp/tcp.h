/* Communication with other hosts over TCP: byte streams, and the control connections that report a lost rank. */
#ifndef LKSI_TCP_H
#define LKSI_TCP_H

#include "comm/bootstrap/star.h"
#include "comm/comm_internal.h"
#include "comm/world.h"

#include <pthread.h>
#include <stdatomic.h>

/* Sets group->remote. `connections` are the control connections that the rendezvous made (rank 0: one to every rank,
 * others: [0]). Those that are taken over become -1, also on failure. The caller closes the rest. NULL: they are made
 * now, to members[0]. */
lks_status lksi_tcp_join(lks_group *group, int *connections);
/* Takes a connection for this group that the world has accepted. Called with the world's lock held. Owns `descriptor`.
 */
void lksi_tcp_take(lks_group *group, const lksi_door_hello *hello, int descriptor);
/* --- between the files of tcp/ --- */

enum { LKSI_TCP_READ_AHEAD_NBYTES = 16 * 1024 };

/* The stream from one rank in one context. The watch thread stores `descriptor` when the rank has connected. */
typedef struct lksi_tcp_in {
    atomic_int descriptor; /* -1: not connected yet */
    unsigned char *ahead;  /* bytes read beyond what was asked for */
    size_t begin, end;
} lksi_tcp_in;

/* The control connections with one rank: `descriptor`, on which this rank learns of the other, and `visitor`, on which
 * the other as a visitor learns of this rank. */
typedef struct lksi_line {
    lks_group *group;
    int rank;
    atomic_int descriptor, visitor; /* -1: none */
    lksi_star_reader reader;
    lksi_reason farewell; /* why the rank has left; written before has_left is set */
    atomic_bool has_left;
    atomic_bool is_visited, is_welcome; /* this rank has visited it; it has answered */
    _Atomic int64_t next_visit_ns;      /* after an unanswered visit: not to be visited again before */
    _Atomic int64_t gone_since_ns;      /* it has left or was lost, unknown which; 0: not known to be gone */
    lksi_doing answer;                  /* of a roll call */
} lksi_line;

typedef struct lksi_star {
    pthread_mutex_t mutex; /* guards the descriptors while the star is made, and the answers */
    pthread_cond_t arrived, answered;
    atomic_bool is_abort_told; /* by this rank */
    lksi_line lines[];         /* by rank; ranks other than 0 use only the connection of [0], unless they visit */
} lksi_star;

typedef struct lksi_tcp {
    int epoll[LKSI_N_CONTEXTS];
    int *out[LKSI_N_CONTEXTS]; /* by rank; -1: not connected yet */
    lksi_tcp_in *in[LKSI_N_CONTEXTS];
    lksi_star *star;
} lksi_tcp;

/* For lksi_dial: a connection attempt for a group ends when the group is dead. Accepts NULL. */
static inline bool lksi_tcp_is_over(void *group) {
    return group != NULL && lksi_control_is_aborted(((const lks_group *)group)->control);
}

static inline lksi_star *lksi_star_of(const lks_group *group) { return ((lksi_tcp *)group->remote_state)->star; }

/* star.c: the control connections. */
lks_status lksi_tcp_star_join(lks_group *group, int *connections);
/* Before the star is made, on the same connections: returns an error if one of them ended, or brought an abort. Rank 0
 * passes that on. tell_early is the abort of a rank that cannot join. */
lks_status lksi_tcp_look_out(const lks_group *group, const int *connections);
void lksi_tcp_tell_early(const lks_group *group, const int *connections, const lksi_reason *reason, int except);
void lksi_tcp_star_take(lks_group *group, int from, int descriptor);
bool lksi_tcp_star_has_left(const lks_group *group, int rank);
void lksi_tcp_star_close(lks_group *group);
bool lksi_star_notice(void *line, int descriptor); /* for the watch */
/* Rank 0 sends to all ranks except `except`. Others send to rank 0. All send to their visitors, too. */
void lksi_star_tell(const lks_group *group, const lksi_star_record *record, int except);
void lksi_star_tell_one(const lksi_line *to, const lksi_star_record *record);
void lksi_tcp_announce(lks_group *group, const lksi_reason *reason);
/* visit.c: replaces the star after its first rank has left. */
void lksi_tcp_attend(lks_group *group, int rank);
void lksi_tcp_welcome(lks_group *group, int from, int descriptor); /* called in a notice of the watch */
void lksi_tcp_find_gone(lksi_line *line);                          /* a visit to the rank has failed */
bool lksi_tcp_is_gone(const lks_group *group, int rank);           /* it has left, or a visit has failed a while ago */
/* The error of a rank that waits for a rank that is gone, or whose stream has ended. */
lks_status lksi_tcp_refuse_gone(lks_group *group, lksi_context context, int rank);
/* roll_call.c */
void lksi_tcp_roll_call(const lks_group *group, int64_t patience_ms, lksi_doing *doing);
/* Handles a question or an answer that has arrived. */
void lksi_roll_call_hear(lks_group *group, const lksi_star_record *record);

#endif

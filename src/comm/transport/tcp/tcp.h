/* Ranks of other hosts: byte streams over TCP, and the control connections by which a group learns of a lost rank. */
#ifndef LKSI_TCP_H
#define LKSI_TCP_H

#include "comm/bootstrap/star.h"
#include "comm/comm_internal.h"
#include "comm/world.h"

#include <pthread.h>
#include <stdatomic.h>

/* Sets group->remote. `connections` are the control connections that the rendezvous made (rank 0: one to every rank;
 * others: [0]), taken over also on failure; NULL: they are made now, to members[0]. */
lks_status lksi_tcp_join(lks_group *group, int *connections);
/* A connection for this group has come in through the door (called with the world's lock held). Owns `descriptor`. */
void lksi_tcp_take(lks_group *group, const lksi_door_hello *hello, int descriptor);
/* --- between the files of tcp/ --- */

enum { LKSI_TCP_READ_AHEAD_NBYTES = 16 * 1024 };

/* What comes from one rank in one context. `descriptor` is stored by the watch's thread when the rank has connected. */
typedef struct lksi_tcp_in {
    atomic_int descriptor; /* -1: not yet */
    unsigned char *ahead;  /* bytes read beyond what was asked for */
    size_t begin, end;
} lksi_tcp_in;

/* The control connection of one rank, by which we hear of it, and that by which a visitor hears of us. */
typedef struct lksi_line {
    lks_group *group;
    int rank;
    atomic_int descriptor, visitor; /* -1: none */
    lksi_star_reader reader;
    lksi_reason farewell; /* why it has left; written before that */
    atomic_bool has_left;
    atomic_bool is_visited, is_welcome; /* we have gone to it, and it has received us */
    _Atomic int64_t next_visit_ns;      /* it has not answered the last one */
    _Atomic int64_t gone_since_ns;      /* it has left or was lost, and nobody can tell which; 0: not known to be */
    lksi_doing answer;                  /* of a roll call */
} lksi_line;

typedef struct lksi_star {
    pthread_mutex_t mutex; /* over the descriptors while the star is made, and over the answers */
    pthread_cond_t arrived, answered;
    lksi_line lines[]; /* by rank; ranks other than 0 use the connection of [0] only */
} lksi_star;

typedef struct lksi_tcp {
    int epoll[LKSI_N_CONTEXTS];
    int *out[LKSI_N_CONTEXTS]; /* by rank; -1: not yet */
    lksi_tcp_in *in[LKSI_N_CONTEXTS];
    lksi_star *star;
} lksi_tcp;

/* For lksi_dial: whoever makes a connection for a group gives up with it. Accepts NULL. */
static inline bool lksi_tcp_is_over(void *group) {
    return group != NULL && lksi_control_is_aborted(((const lks_group *)group)->control);
}

static inline lksi_star *lksi_star_of(const lks_group *group) { return ((lksi_tcp *)group->remote_state)->star; }

/* star.c: the control connections. */
lks_status lksi_tcp_star_join(lks_group *group, int *connections);
void lksi_tcp_star_take(lks_group *group, int from, int descriptor);
bool lksi_tcp_star_has_left(const lks_group *group, int rank);
void lksi_tcp_star_close(lks_group *group);
bool lksi_star_notice(void *line, int descriptor); /* for the watch */
/* Rank 0 tells everyone but `except`; others tell rank 0. */
void lksi_star_tell(const lks_group *group, const lksi_star_record *record, int except);
void lksi_star_tell_one(const lksi_line *to, const lksi_star_record *record);
void lksi_tcp_announce(lks_group *group, const lksi_reason *reason);
/* visit.c: what takes the star's place when its first rank has left. */
void lksi_tcp_attend(lks_group *group, int rank);
void lksi_tcp_welcome(lks_group *group, int from, int descriptor); /* called in a notice of the watch */
void lksi_tcp_find_gone(lksi_line *line);                          /* it did not receive us */
bool lksi_tcp_is_gone(const lks_group *group, int rank);           /* has left, or did not receive us some time ago */
/* The error for who waits for a rank whose stream has ended, or who is gone. */
lks_status lksi_tcp_refuse_gone(lks_group *group, lksi_context context, int rank);
/* roll_call.c */
void lksi_tcp_roll_call(const lks_group *group, int64_t patience_ms, lksi_doing *doing);
/* A question or an answer has come in. */
void lksi_roll_call_hear(lks_group *group, const lksi_star_record *record);

#endif

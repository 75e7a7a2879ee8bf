/* What the groups of one lks_init share in this process: the job's environment, the watch thread, and, if the job spans
 * hosts, the door: the listener through which ranks of other hosts connect. */
#ifndef LKSI_WORLD_H
#define LKSI_WORLD_H

#include "comm/bootstrap/acceptor.h"
#include "comm/bootstrap/environment.h"
#include "comm/bootstrap/job.h"
#include "comm/bootstrap/rendezvous.h"
#include "comm/comm.h"
#include "comm/transport/segment/control.h"
#include "comm/watch.h"

#include <pthread.h>
#include <stdatomic.h>

/* The purpose of a connection: a stream of one of the contexts, the control connection of a group, or a visit (visit.c)
 * in a group that both ranks have made. */
enum { LKSI_DOOR_CONTROL = 2, LKSI_DOOR_VISIT };
typedef struct lksi_door_hello {
    uint64_t group_id;
    int32_t purpose; /* an lksi_context, or one of the above */
    int32_t from;    /* rank in the group */
} lksi_door_hello;

typedef struct lksi_caller lksi_caller;

typedef struct lksi_world {
    struct lksi_world *next; /* of this process, while it exists */
    atomic_int n_holding;
    unsigned n_forks;           /* lksi_n_forks when it was made */
    lksi_thread_world *threads; /* NULL if ranks are processes */
    bool is_apart;              /* ranks of one host also use tcp or mpi: it was requested by name */
    bool is_over_mpi;           /* ranks of different hosts use MPI */
    bool is_mpi;                /* MPI runs in all ranks, with the same rank numbers */
    bool is_first;              /* the first world of the job; several may exist at once */
    lksi_watch *watch;          /* NULL if there is nothing to watch */
    lksi_environment environment;
    lksi_job_secret secret; /* if the job spans hosts */
    atomic_bool has_warned; /* an algorithm in LOCKSTEP_ALGORITHM cannot serve a call; told of only once */
    int door;               /* the listening socket behind `acceptor`; -1: none */
    lksi_acceptor *acceptor;
    lksi_abort failure;    /* of the first group that failed on this rank: its farewell in the other groups */
    pthread_mutex_t mutex; /* guards what follows */
    lks_group *groups;     /* of this process, linked by next_in_world */
    lksi_caller *callers;  /* connections for groups that this process has not made yet */
    uint64_t *left;        /* ids of groups that were left, if there is a door: connections for them are dismissed */
    size_t n_left, left_capacity;
} lksi_world;

/* The caller holds one reference. lksi_world_release drops one, and the last one frees the world. */
lks_status lksi_world_create(lksi_world **world, lksi_thread_world *threads);
void lksi_world_hold(lksi_world *world);
void lksi_world_release(lksi_world *world); /* accepts NULL */
/* Serves the listener `door` from now on. The world owns it, also on failure. */
lks_status lksi_world_open_door(lksi_world *world, int door);
/* Adds a group that has its control segment. From now on the group gets its connections, including those that arrived
 * before. Accepts a group that has entered already. */
void lksi_world_enter(lksi_world *world, lks_group *group);
void lksi_world_leave(lksi_world *world, lks_group *group); /* accepts a group that has not entered */

#endif

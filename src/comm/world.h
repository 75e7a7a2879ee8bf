/* What the groups of one lks_init have in common in this process: who takes part in the job, the thread that watches
 * connections, and, where the job spans hosts, the door through which other hosts' ranks connect. */
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

/* What a connecting rank says it is for: a stream of one of the contexts, the control connection of a group, or a visit
 * to a rank of a group that both have made. */
enum { LKSI_DOOR_CONTROL = 2, LKSI_DOOR_VISIT };
typedef struct lksi_door_hello {
    uint64_t group_id;
    int32_t purpose; /* an lksi_context, or one of the above */
    int32_t from;    /* rank in the group */
} lksi_door_hello;

typedef struct lksi_caller lksi_caller;

typedef struct lksi_world {
    atomic_int n_holding;
    lksi_thread_world *threads; /* NULL where ranks are processes */
    bool is_apart;              /* ranks of one host, too, talk over tcp or mpi: it was asked for by name */
    bool is_over_mpi;           /* ranks of different hosts talk over MPI */
    bool is_mpi;                /* MPI runs in all ranks, which it knows by the same numbers */
    bool is_first;              /* of its ranks, which may have several at once */
    lksi_watch *watch;          /* NULL where there is nothing to watch */
    lksi_environment environment;
    lksi_job_secret secret; /* of several hosts */
    int door;               /* the listening socket behind `acceptor`; -1: none */
    lksi_acceptor *acceptor;
    lksi_abort failure;    /* of the first of its groups that failed here; with it, a rank leaves the others */
    pthread_mutex_t mutex; /* over what follows */
    lks_group *groups;     /* of this process, linked by next_in_world */
    lksi_caller *callers;  /* connections for groups that this process has yet to make */
    uint64_t *left;        /* the ids of those that it has left, where there is a door; for them nobody comes in */
    size_t n_left, left_capacity;
} lksi_world;

/* Held once by the caller. */
lks_status lksi_world_create(lksi_world **world, lksi_thread_world *threads);
void lksi_world_hold(lksi_world *world);
void lksi_world_release(lksi_world *world); /* accepts NULL */
/* Serves `door` from now on; the world owns it, also on failure. */
lks_status lksi_world_open_door(lksi_world *world, int door);
/* The group has its control segment; from now on, connections for it go to it, those that came before among them.
 * Accepts one that has entered. */
void lksi_world_enter(lksi_world *world, lks_group *group);
void lksi_world_leave(lksi_world *world, lks_group *group); /* accepts one that has not entered */

#endif

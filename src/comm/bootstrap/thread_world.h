/* A world whose ranks are threads: it is what lks_init joins, and it owns the segments of its groups. */
#ifndef LKSI_THREAD_WORLD_H
#define LKSI_THREAD_WORLD_H

#include "comm/comm.h"
#include "comm/transport/segment/control.h"
#include "comm/watch.h"

#include <pthread.h>

/* Memory that the ranks share. It is freed when all holders have released it, at the latest with the world. */
typedef struct lksi_thread_block {
    struct lksi_thread_block *next;
    void *base;
    size_t nbytes;
    int n_holding;
} lksi_thread_block;

/* A group of this world, and its control segment, which is a block. */
typedef struct lksi_thread_group {
    struct lksi_thread_group *next;
    uint64_t id;
    lksi_control *control;
    int n_members;
    int members[]; /* rank in the world, by seat */
} lksi_thread_group;

typedef struct lksi_thread_rank {
    uint64_t n_worlds; /* how often this thread has called lks_init */
    bool has_left;
    int exit_code;
} lksi_thread_rank;

struct lksi_thread_world {
    lksi_thread_world *next; /* in the list of leaked worlds */
    int size;
    lksi_watch *watch;     /* of the clock only; NULL if there is one rank */
    pthread_mutex_t mutex; /* protects the fields below; taken to join, leave and allocate, never in a collective */
    lksi_thread_group *groups;
    lksi_thread_block *blocks;
    lksi_thread_rank *ranks;
    int n_joined; /* number of joined and not yet released control segments, summed over the ranks */
};

/* The world of which this thread is a rank, or NULL. */
lksi_thread_world *lksi_thread_world_current(int *rank);
/* Counts this thread's calls of lks_init. The n-th calls of all threads form a world. */
uint64_t lksi_thread_world_next(lksi_thread_world *world, int rank);
/* Returns the control segment of the group `id`, whose members are `ranks` of the world. The first rank that calls it
 * creates the segment. */
lks_status lksi_thread_world_join(lksi_thread_world *world, uint64_t id, const int *ranks, int n_ranks,
                                  lksi_control **control);

/* Allocates zeroed, pre-faulted memory, held once by its creator. It is freed when all holders have released it. */
lks_status lksi_thread_block_create(lksi_thread_world *world, size_t nbytes, void **base);
/* Adds a holder. Returns false if all holders have already released the block. */
bool lksi_thread_block_hold(lksi_thread_world *world, const void *base);
void lksi_thread_block_release(lksi_thread_world *world, const void *base);

#endif

/* A world whose ranks are threads: what lks_init joins, and the segments that its groups live in. */
#ifndef LKSI_THREAD_WORLD_H
#define LKSI_THREAD_WORLD_H

#include "comm/comm.h"
#include "comm/transport/segment/control.h"
#include "comm/watch.h"

#include <pthread.h>

/* Memory that the ranks share; it goes when all have released it, at the latest with the world. */
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
    int members[]; /* ranks in the world, by seat */
} lksi_thread_group;

typedef struct lksi_thread_rank {
    uint64_t n_worlds; /* how often this thread has called lks_init */
    bool has_left;
    int exit_code;
} lksi_thread_rank;

struct lksi_thread_world {
    lksi_thread_world *next; /* of those that are left for good */
    int size;
    lksi_watch *watch;     /* of the clock alone; NULL where nobody waits for another */
    pthread_mutex_t mutex; /* over what follows: taken to join, leave and allocate, never in a collective */
    lksi_thread_group *groups;
    lksi_thread_block *blocks;
    lksi_thread_rank *ranks;
    int n_joined; /* control segments that ranks have joined and not released, counted for each rank */
};

/* The world that this thread is a rank of, or NULL. */
lksi_thread_world *lksi_thread_world_current(int *rank);
/* Numbers this thread's calls of lks_init: the n-th of every thread meet. */
uint64_t lksi_thread_world_next(lksi_thread_world *world, int rank);
/* The control segment of the group `id`, whose members are `ranks` of the world: the first to come makes it. */
lks_status lksi_thread_world_join(lksi_thread_world *world, uint64_t id, const int *ranks, int n_ranks,
                                  lksi_control **control);

/* Zeroed, pre-faulted memory, held once by its creator; it goes when all who hold it have released it. */
lks_status lksi_thread_block_create(lksi_thread_world *world, size_t nbytes, void **base);
/* False where it is gone: all who held it have let it go. */
bool lksi_thread_block_hold(lksi_thread_world *world, const void *base);
void lksi_thread_block_release(lksi_thread_world *world, const void *base);

#endif

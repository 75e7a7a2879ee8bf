/* A world whose ranks are threads: what lks_init joins, and the segments that its groups live in. */
#ifndef LKSI_THREAD_WORLD_H
#define LKSI_THREAD_WORLD_H

#include "comm/comm.h"
#include "comm/transport/segment/control.h"

#include <pthread.h>

/* Memory that the ranks share; it goes when all have released it, at the latest with the world. */
typedef struct lksi_thread_block {
    struct lksi_thread_block *next;
    void *base;
    size_t nbytes;
    int n_holding;
} lksi_thread_block;

/* The n-th lks_init of every thread joins the n-th generation; its control segment is a block. */
typedef struct lksi_generation {
    struct lksi_generation *next;
    uint64_t index;
    lksi_control *control;
} lksi_generation;

typedef struct lksi_thread_rank {
    uint64_t n_joined;
    bool has_left;
    int exit_code;
} lksi_thread_rank;

struct lksi_thread_world {
    int size;
    pthread_mutex_t mutex; /* over what follows: taken to join, leave and allocate, never in a collective */
    lksi_generation *generations;
    lksi_thread_block *blocks;
    lksi_thread_rank *ranks;
};

/* The world that this thread is a rank of, or NULL. */
lksi_thread_world *lksi_thread_world_current(int *rank);
/* The control segment of this rank's next generation. */
lks_status lksi_thread_world_join(lksi_thread_world *world, int rank, lksi_control **control);

/* Zeroed, pre-faulted memory, held once by its creator; it goes when all who hold it have released it. */
lks_status lksi_thread_block_create(lksi_thread_world *world, size_t nbytes, void **base);
void lksi_thread_block_hold(lksi_thread_world *world, const void *base);
void lksi_thread_block_release(lksi_thread_world *world, const void *base);

#endif

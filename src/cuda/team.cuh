/* Rows that a block's threads take in teams: short rows several at a time, long ones one after the other.
 *
 *     lksi_team team = lksi_team_for(n_columns), kept by the host; grid lksi_team_grid(&team, n_rows)
 *     in the kernel:  LKSI_FOR_EACH_ROW(team, row, n_rows) {
 *                         for (j = lksi_team_lane(team); j < n_columns; j += team) ...
 *                         sum = lksi_team_sum(team, sum, room);
 *                     }
 *
 * All threads of a block go round as often, so that they meet at barriers; the last time, row may be n_rows or more. */
#ifndef LKSI_TEAM_CUH
#define LKSI_TEAM_CUH

#include "cuda/kernel.cuh"

/* Threads of one team: a power of two, 1 to LKSI_BLOCK. A thread has at least two columns where there are many. */
static inline unsigned lksi_team_for(size_t n_columns) {
    unsigned team = 1;
    while (team < LKSI_BLOCK && team * 2 < n_columns) team *= 2;
    return team;
}

static inline unsigned lksi_team_grid(unsigned team, size_t n_rows) { return lksi_grid(n_rows * team); }

static __device__ unsigned lksi_team_lane(unsigned team) { return threadIdx.x % team; }

#define LKSI_FOR_EACH_ROW(team, row, n_rows)                                                                           \
    for (size_t row = (size_t)blockIdx.x * (LKSI_BLOCK / (team)) + threadIdx.x / (team),                               \
                first_ = (size_t)blockIdx.x * (LKSI_BLOCK / (team));                                                   \
         first_ < (n_rows);                                                                                            \
         row += (size_t)gridDim.x * (LKSI_BLOCK / (team)), first_ += (size_t)gridDim.x * (LKSI_BLOCK / (team)))

/* The sum of one value per thread of a team, up a fixed tree; each of its threads gets it. `room` as for
 * lksi_block_sum. */
template <typename T> static __device__ T lksi_team_sum(unsigned team, T value, T *room) {
    unsigned lane = lksi_team_lane(team);
    room[threadIdx.x] = value;
    __syncthreads();
    for (unsigned n = team / 2; n > 0; n /= 2) {
        if (lane < n) room[threadIdx.x] += room[threadIdx.x + n];
        __syncthreads();
    }
    T sum = room[threadIdx.x - lane];
    __syncthreads();
    return sum;
}

#endif

/* Loops over rows by teams of a block's threads. A block processes several short rows at a time, or one long row.
 *
 *     __global__ void sum_rows(const float *x, float *y, size_t n_rows, size_t n_columns, unsigned team) {
 *         __shared__ float room[LKSI_BLOCK];
 *         LKSI_FOR_EACH_ROW(team, row, n_rows) {
 *             float sum = 0;
 *             for (size_t j = lksi_team_lane(team); j < n_columns && row < n_rows; j += team)
 *                 sum += x[row * n_columns + j];
 *             sum = lksi_team_sum(team, sum, room);
 *             if (row < n_rows) y[row] = sum;
 *         }
 *     }
 *     unsigned team = lksi_team_for(n_columns);
 *     LKSI_LAUNCH(sum_rows, lksi_team_grid(team, n_rows), LKSI_BLOCK, stream, x, y, n_rows, n_columns, team);
 *
 * All threads of a block run the same number of iterations, so that they meet at barriers. In the last iteration `row`
 * may be n_rows or more. */
#ifndef LKSI_TEAM_CUH
#define LKSI_TEAM_CUH

#include "cuda/kernel.cuh"

/* Threads of one team: a power of two, 1 to LKSI_BLOCK. With many columns a thread has at least two. */
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

/* Sums one value per thread of a team along a fixed tree. Each thread of the team gets the sum. All threads of the
 * block must call it. `room` as for lksi_block_sum. */
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

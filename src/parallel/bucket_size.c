/* The default bucket size: large enough that latency is a small part of a reduction's time.
 *
 * A reduction of b bytes takes latency + b / bandwidth. Measuring two sizes gives both values. The latency is a tenth
 * of the total at 9 * latency * bandwidth bytes. Larger buckets would start later and leave a longer last reduction
 * after the backward pass, where nothing hides it. So there are at least 16 buckets, even if a disturbed measurement
 * asks for fewer, unless they would be smaller than the minimum size. */
#include "parallel/parallel_internal.h"

enum { SMALL_COUNT = 1 << 10, LARGE_COUNT = 1 << 17, N_SMALL = 16, N_LARGE = 3 }; /* of f32: 4 KiB and 512 KiB */
enum { LEAST_NBYTES = 64 << 10, GREATEST_NBYTES = 32 << 20, ON_ONE_HOST_NBYTES = 1 << 20, LEAST_BUCKETS = 16 };

/* Takes the minimum of several runs, because disturbances only add time. */
static lks_status time_one(lks_group *group, float *data, size_t count, int n_repeats, double *elapsed_ns) {
    for (int i = 0; i < n_repeats; i++) {
        LKS_TRY(lks_barrier(group, NULL));
        int64_t began_ns = lksi_now_ns();
        LKS_TRY(lks_all_reduce(group, data, data, count, LKS_F32, LKS_SUM, NULL));
        double ns = (double)(lksi_now_ns() - began_ns);
        if (i == 0 || ns < *elapsed_ns) *elapsed_ns = ns;
    }
    return LKS_OK;
}

static size_t choose(double small_ns, double large_ns, size_t greatest_nbytes) {
    double bytes = (double)(LARGE_COUNT - SMALL_COUNT) * sizeof(float), ns = large_ns - small_ns;
    if (!(ns > 0)) return greatest_nbytes; /* bandwidth too high to measure */
    double per_byte_ns = ns / bytes, latency_ns = small_ns - SMALL_COUNT * sizeof(float) * per_byte_ns;
    double wanted = 9 * latency_ns / per_byte_ns;
    if (!(wanted > LEAST_NBYTES)) return LEAST_NBYTES;
    return wanted < (double)greatest_nbytes ? (size_t)wanted : greatest_nbytes;
}

static size_t greatest(size_t whole_nbytes) {
    size_t nbytes = whole_nbytes / LEAST_BUCKETS;
    return nbytes < LEAST_NBYTES ? LEAST_NBYTES : nbytes < GREATEST_NBYTES ? nbytes : GREATEST_NBYTES;
}

lks_status lksi_bucket_nbytes_find(lks_group *group, size_t whole_nbytes, size_t *nbytes) {
    *nbytes = ON_ONE_HOST_NBYTES; /* shared memory has hardly any latency */
    if (lks_symmetric_supported(group)) return LKS_OK;
    float *data = lksi_alloc_array(LARGE_COUNT, sizeof *data);
    if (data == NULL) return LKS_ERR_MEMORY;
    double small_ns = 0, large_ns = 0;
    lks_status status = time_one(group, data, SMALL_COUNT, N_SMALL, &small_ns);
    if (status == LKS_OK) status = time_one(group, data, LARGE_COUNT, N_LARGE, &large_ns);
    lksi_free(data);
    if (status != LKS_OK) return status;
    int64_t chosen = (int64_t)choose(small_ns, large_ns, greatest(whole_nbytes));
    /* Ranks measure different times, so all of them use rank 0's choice. */
    LKS_TRY(lks_broadcast(group, &chosen, 1, LKS_I64, 0, NULL));
    *nbytes = (size_t)chosen;
    return LKS_OK;
}

/* labels: no-tsan */
/* Training over NCCL when a rank is lost. NCCL's communicator ends only after the recordings, which the trainer frees
 * after the error. */
#include "comm/fate.h"
#include "cuda/small_training.h"

enum { N_RANKS = 2, LAST_STEP = 10 };

/* With sharding, each rank updates its own part. The parts were not exchanged, so the parameters on this rank are of no
 * single step. */
static int check_torn(const small_training *t) {
    char hex[65];
    MUST(lks_store_sha256(lks_trainer_store(t->trainer), hex) == LKS_ERR_TORN);
    return 0;
}

/* If NCCL's end would wait in vain, a block of counted memory remains. start_process checks for it. */
static int train_until_error(int rank, int size, void *argument) {
    (void)size;
    const fate *f = argument;
    const lks_strategy strategy = *(const lks_strategy *)f->argument;
    char host[16];
    small_training t;
    lks_status status = LKS_OK;
    snprintf(host, sizeof host, "rank-%d", rank);
    setenv("NCCL_HOSTID", host, 1); /* both ranks share the one GPU */
    f->pids[rank] = getpid();
    MUST_OK(begin_training_by(&t, 0, strategy));
    for (int i = 0; status == LKS_OK; i++) {
        if (rank == f->doomed && i == LAST_STEP) meet_fate(f);
        status = take_step(&t);
    }
    int line = check_fate(f, status);
    if (line == 0 && strategy == LKS_STRATEGY_SHARDED) line = check_torn(&t);
    if (line != 0) return line;
    end_training(&t);
    return 0;
}

static void the_survivor_hears_of_it_and_ends(void **state) {
    (void)state;
    const lks_strategy strategies[] = {LKS_STRATEGY_BUCKETED, LKS_STRATEGY_SHARDED};
    for (int i = 0; i < 2; i++)
        for (int doomed = 0; doomed < N_RANKS; doomed++)
            run_fate(&(fate){.doomed = doomed, .argument = &strategies[i]}, N_RANKS, train_until_error);
}

/* Rank 0 has an invalid label. The error is found when its next step is already on the GPU, and rank 0 ends. Freeing
 * its memory must not wait for the sums of a step that rank 1 does not take. */
static int bring_a_bad_label(int rank, int size, void *argument) {
    (void)size, (void)argument;
    char host[16];
    small_training t;
    snprintf(host, sizeof host, "rank-%d", rank);
    setenv("NCCL_HOSTID", host, 1);
    MUST_OK(begin_training_of(&t, 1));
    for (int i = 0; i < 3; i++) MUST_OK(take_step(&t));
    MUST_OK(take_step_of(&t, 1, rank == 0 ? 99 : 0));
    if (rank == 1) lksi_sleep_ns(INT64_C(300) * 1000 * 1000);
    lks_status status = LKS_OK;
    for (int i = 0; i < 4 && status == LKS_OK; i++) status = take_step(&t);
    MUST(status == (rank == 0 ? LKS_ERR_ARGUMENT : LKS_ERR_PEER));
    MUST_SAY("label 99 of sample 0");
    end_training(&t);
    return 0;
}

static void a_rank_with_an_error_of_its_own_ends(void **state) {
    (void)state;
    run_processes(N_RANKS, bring_a_bad_label, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_survivor_hears_of_it_and_ends),
                                       cmocka_unit_test(a_rank_with_an_error_of_its_own_ends)};
    if (!choose_gpu()) return puts("skipped: this build has no CUDA toolkit"), 0;
    return run_gpu_group_tests("cuda lost rank", tests);
}

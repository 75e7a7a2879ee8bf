/* labels: busy no-asan no-tsan */
/* comm/: under mpirun. Without arguments this program is the test, and starts itself under each installed MPI. With a
 * name as argument it is a rank, and runs the function of that name. */
#define _GNU_SOURCE /* RTLD_DEFAULT */
#include "test.h"

#include "comm/collective/native.h"
#include "comm/transport/mpi/mpi.h"

#include "suite.h"

#include <dirent.h>
#include <dlfcn.h>
#include <sys/resource.h>

/* --- ranks --- */

static int conformance(int rank, int size, void *argument) {
    static const rank_function suite[] = {payloads_are_exchanged, rows_of_small_calls_agree,  random_rows_agree,
                                          barriers_hold,          symmetric_copies_are_found, mixed_buffers_agree,
                                          operations_agree};
    for (size_t i = 0; i < sizeof suite / sizeof suite[0]; i++) MUST(suite[i](rank, size, argument) == 0);
    return 0;
}

/* Runs also with a limit on MPI's counts so low that every call is split into many. */
static int native(int rank, int size, void *argument) {
    (void)rank, (void)argument;
    static const size_t most[] = {2147483647, 5003};
    lks_group *world;
    memory m;
    MUST_OK(lks_init(&world, NULL));
    MUST(acquire(world, &m) == 0);
    stepper s = {.state = (uint64_t)size};
    for (size_t k = 0; k < sizeof most / sizeof most[0]; k++)
        for (int i = 1; lksi_operation_at(i) != NULL; i++) {
            lksi_native_most = most[k];
            const lksi_operation *operation = lksi_operation_at(i);
            bool is_whole = operation->has_counts && !operation->has_own_counts && !operation->is_reduction;
            if (is_whole && k > 0) continue; /* refused */
            MUST(check_algorithm(world, &m, operation, "native", &s) == 0);
        }
    MUST_OK(lks_barrier(world, &(lks_collective_options){.algorithm = "native"}));
    release(&m);
    return leave(world);
}

/* A rank without elements passes no buffers, or one for both. Then counts are too long for MPI on one rank only. */
static int uneven(int rank, int size, void *argument) {
    (void)size, (void)argument;
    const lks_collective_options options = {.algorithm = "native"};
    lks_group *world;
    unsigned char in[200], out[200];
    size_t own[] = {rank == 0 ? 100 : 0, 0}, all[] = {100, 100}, none[] = {0, 0};
    size_t to_1[] = {0, rank == 0 ? 100 : 0}, from_0[] = {rank == 1 ? 100 : 0, 0};
    MUST_OK(lks_init(&world, NULL));
    memset(in, rank + 1, sizeof in);
    MUST_OK(lks_all_to_allv(world, rank == 0 ? in : NULL, own, rank == 0 ? out : NULL, own, LKS_U8, &options));
    MUST_OK(lks_all_to_allv(world, in, to_1, rank == 0 ? in : out, from_0, LKS_U8, &options));
    MUST(rank == 0 || (out[0] == 1 && out[99] == 1));
    MUST_OK(lks_all_to_allv(world, in, none, in, none, LKS_U8, &options));
    for (int i = 0; i < 2; i++) {
        if (rank == 0 && i == 1) lksi_native_most = 150;
        MUST_OK(lks_all_to_allv(world, in, all, out, all, LKS_U8, &options));
        MUST(out[0] == 1 && out[99] == 1 && out[100] == 2 && out[199] == 2);
    }
    return leave(world);
}

static int what_mpi_lacks_is_refused(int rank, int size, void *argument) {
    (void)rank, (void)size, (void)argument;
    const lks_collective_options options = {.algorithm = "native"};
    lks_group *world;
    uint16_t half = 0;
    float value = 1, sum;
    MUST_OK(lks_init(&world, NULL));
    MUST(lks_all_reduce(world, &half, &half, 1, LKS_BF16, LKS_SUM, &options) == LKS_ERR_ARGUMENT);
    MUST_SAY("all_reduce: native: MPI has no reductions of f16 and bf16");
    MUST(lks_all_reduce(world, &value, &sum, 1, LKS_F32, LKS_MIN, &options) == LKS_ERR_ARGUMENT);
    MUST_SAY("all_reduce: native: MPI's min and max of floats may lose a NaN");
    MUST_OK(lks_all_reduce(world, &value, &sum, 1, LKS_F32, LKS_SUM, NULL));
    MUST(strcmp(lksi_group_last_algorithm(world), "native") != 0);
    return leave(world);
}

/* Workers and the calling thread use overlapping groups at the same time. */
static int subgroups(int rank, int size, void *argument) {
    (void)argument;
    lks_group *world, *part, *reversed;
    lks_work *works[3];
    lks_collective_options options = {.algorithm = "native"};
    int32_t one = 1, n_all = 0, n_part = 0, sum_reversed = 0, last = -1;
    MUST_OK(lks_init(&world, NULL));
    MUST_OK(lks_group_split(world, rank % 2, 0, &part));
    MUST_OK(lks_group_split(world, 0, -rank, &reversed));
    MUST(lks_group_rank(reversed) == size - 1 - rank);
    for (int i = 0; i < 20; i++) {
        options.work = &works[0];
        MUST_OK(lks_all_reduce(part, &one, &n_part, 1, LKS_I32, LKS_SUM, &options));
        options.work = &works[1];
        MUST_OK(lks_all_reduce(reversed, &rank, &sum_reversed, 1, LKS_I32, LKS_SUM, &options));
        options.work = NULL;
        MUST_OK(lks_all_reduce(world, &one, &n_all, 1, LKS_I32, LKS_SUM, &options));
        if (rank == size - 1) last = i; /* rank 0 of `reversed` */
        options.work = &works[2];
        MUST_OK(lks_broadcast(reversed, &last, 1, LKS_I32, 0, &options));
        for (int k = 0; k < 3; k++) MUST_OK(lks_work_wait(works[k]));
        MUST(n_all == size && n_part == (size + 1 - rank % 2) / 2);
        MUST(sum_reversed == size * (size - 1) / 2 && last == i);
    }
    lks_group_destroy(part);
    lks_group_destroy(reversed);
    return leave(world);
}

/* Two worlds exist at once. Each rank starts their calls in another order. */
static int two_worlds(int rank, int size, void *argument) {
    (void)argument;
    lks_group *worlds[2];
    MUST_OK(lks_init(&worlds[0], NULL));
    MUST_OK(lks_init(&worlds[1], NULL));
    for (int i = 0; i < 20; i++) {
        int32_t one = 1, sums[2] = {0};
        lks_work *works[2];
        for (int turn = 0; turn < 2; turn++) {
            int w = (rank + turn) % 2;
            MUST_OK(lks_all_reduce(worlds[w], w == 0 ? &one : &rank, &sums[w], 1, LKS_I32, LKS_SUM,
                                   &(lks_collective_options){.algorithm = "native", .work = &works[w]}));
        }
        for (int w = 0; w < 2; w++) MUST_OK(lks_work_wait(works[w]));
        MUST(sums[0] == size && sums[1] == size * (size - 1) / 2);
    }
    lks_group_destroy(worlds[1]);
    return leave(worlds[0]);
}

/* All ranks send to all at once, messages longer than what may be in flight. Some messages are never received. */
static int messages(int rank, int size, void *argument) {
    (void)argument;
    enum { COUNT = 300001, TAG = 7 };
    lks_group *world;
    lks_work *works[MAX_TEST_RANKS];
    int32_t *sent = lksi_alloc_array(COUNT, 4), *got = lksi_alloc_array(COUNT, 4), unwanted = rank;
    MUST_OK(lks_init(&world, NULL));
    for (int i = 0; i < COUNT; i++) sent[i] = rank + i;
    for (int to = 0; to < size; to++) MUST_OK(lks_isend(world, sent, COUNT, LKS_I32, to, TAG, &works[to]));
    for (int i = 0; i < size; i++) {
        lks_received received;
        MUST_OK(lks_recv(world, got, COUNT, LKS_I32, LKS_ANY_SOURCE, TAG, &received));
        for (int k = 0; k < COUNT; k++) MUST(got[k] == received.from + k);
    }
    for (int to = 0; to < size; to++) MUST_OK(lks_work_wait(works[to]));
    MUST_OK(lks_send(world, &unwanted, 1, LKS_I32, (rank + 1) % size, TAG));
    lksi_free(sent);
    lksi_free(got);
    return leave(world);
}

/* After an error MPI is not finalised, and mpirun may call that a failure. A rank therefore prints that its checks
 * passed. */
static int survive(lks_group *world, int rank) {
    lks_group_destroy(world);
    printf("survivor %d\n", rank);
    fflush(stdout);
    return 0;
}

/* A late rank may get the error while it still joins. Then lks_init returns it. */
static int mismatch(int rank, int size, void *argument) {
    (void)size, (void)argument;
    lks_group *world = NULL;
    int32_t data[8] = {0};
    size_t count = rank == 1 ? 6 : 5;
    lks_status status = lks_init(&world, NULL);
    if (status == LKS_OK)
        status = lks_all_reduce(world, data, data, count, LKS_I32, LKS_SUM,
                                &(lks_collective_options){.algorithm = "native"});
    MUST(status == LKS_ERR_MISMATCH);
    MUST_SAY("all_reduce(count 5, i32, sum, algorithm native)");
    MUST_SAY("rank 1 called all_reduce(count 6, i32, sum, algorithm native)");
    return survive(world, rank);
}

/* Every rank takes itself for the root: all send, and none receives. MPI may still read from a rank that has its error
 * (MPICH's UCX ends a process whose peer has ended meanwhile), so each rank keeps its data and stays for a while. */
static int roots(int rank, int size, void *argument) {
    (void)size, (void)argument;
    enum { NBYTES = 32 << 20, STAY_MS = 2000 };
    static char data[NBYTES];
    lks_group *world = NULL;
    lks_status status = lks_init(&world, NULL);
    if (status == LKS_OK)
        status = lks_broadcast(world, data, NBYTES, LKS_U8, rank, &(lks_collective_options){.timeout_ms = 60000});
    MUST(status == LKS_ERR_MISMATCH);
    MUST_SAY("ranks disagree at call 1: rank ");
    MUST_SAY("broadcast(count 33554432, u8, root ");
    lksi_sleep_ns(STAY_MS * LKSI_NS_PER_MS);
    return survive(world, rank);
}

/* MPI would not detect the mismatch. */
static int other_counts(int rank, int size, void *argument) {
    (void)size, (void)argument;
    lks_group *world = NULL;
    int32_t in[9] = {0}, out[9];
    size_t in_counts[] = {2, 2, 2}, out_counts[] = {2, rank == 0 ? 3 : 2, 2};
    lks_status status = lks_init(&world, NULL);
    if (status == LKS_OK)
        status = lks_all_to_allv(world, in, in_counts, out, out_counts, LKS_I32,
                                 &(lks_collective_options){.algorithm = "native"});
    MUST(status == LKS_ERR_MISMATCH);
    MUST_SAY("rank 1 has 2 elements for rank 0, which expects 3");
    return survive(world, rank);
}

static int loss(int rank, int size, void *argument) {
    (void)size, (void)argument;
    lks_group *world;
    float data[5000] = {0};
    lks_status status = LKS_OK;
    MUST_OK(lks_init(&world, &(lks_init_options){.timeout_ms = 20000}));
    for (int i = 0; status == LKS_OK; i++) {
        if (rank == 1 && i == 20) raise(SIGKILL);
        const char *algorithm = i % 2 == 0 ? "native" : "ring";
        status = lks_all_reduce(world, data, data, 5000, LKS_F32, LKS_SUM,
                                &(lks_collective_options){.algorithm = algorithm});
    }
    MUST(status == LKS_ERR_PEER);
    MUST_SAY("rank 1 (host ");
    MUST_SAY("was lost");
    return survive(world, rank);
}

/* Initialises MPI as a program does that uses MPI itself. There is no MPI header here: both functions have the same
 * signature in both MPIs. */
static int init_mpi(int (**finalize)(void)) {
    enum { THREAD_MULTIPLE = 3 };
    int (*init_thread)(int *, char ***, int, int *), level;
    char path[LKSI_MPI_PATH_NBYTES], version[LKSI_MPI_VERSION_NBYTES];
    MUST(lksi_mpi_find(getenv("OMPI_COMM_WORLD_RANK") != NULL ? "openmpi" : "mpich", path, version));
    MUST(dlopen(path, RTLD_NOW | RTLD_GLOBAL) != NULL);
    *(void **)&init_thread = dlsym(RTLD_DEFAULT, "MPI_Init_thread");
    *(void **)finalize = dlsym(RTLD_DEFAULT, "MPI_Finalize");
    MUST(init_thread(NULL, NULL, THREAD_MULTIPLE, &level) == 0 && level == THREAD_MULTIPLE);
    return 0;
}

static int own_mpi(int rank, int size, void *argument) {
    (void)argument;
    int (*finalize)(void), one = 1, n = 0;
    lks_group *world;
    MUST(init_mpi(&finalize) == 0);
    MUST_OK(lks_init(&world, NULL));
    MUST(!lksi_mpi_facts_get()->is_ours && lksi_mpi_facts_get()->rank == rank);
    MUST_OK(lks_all_reduce(world, &one, &n, 1, LKS_I32, LKS_SUM, &(lks_collective_options){.algorithm = "native"}));
    MUST(n == size);
    MUST(leave(world) == 0);
    MUST(finalize() == 0);
    return 0;
}

static int finalised_before(int rank, int size, void *argument) {
    (void)rank, (void)size, (void)argument;
    int (*finalize)(void);
    lks_group *world;
    MUST(init_mpi(&finalize) == 0);
    MUST(finalize() == 0);
    MUST(lks_init(&world, NULL) == LKS_ERR_STATE);
    MUST_SAY("lks_init: the program has called MPI_Finalize before");
    return 0;
}

/* MPI remains initialised by Lockstep, which finalises it. */
static int second_start(int rank, int size, void *argument) {
    (void)argument;
    MUST(lksi_mpi_start(&(lksi_environment){.rank = rank, .size = size + 1}, 60000) == LKS_ERR_MISMATCH);
    MUST_OK(lksi_mpi_start(&(lksi_environment){.rank = rank, .size = size}, 60000));
    MUST(lksi_mpi_facts_get()->is_ours);
    return 0;
}

/* By default MPI would abort the job for this error. */
static int errors_of_a_part(int rank, int size, void *argument) {
    (void)argument;
    int ranks[] = {0, 1}, number = 0;
    MUST_OK(lksi_mpi_start(&(lksi_environment){.rank = rank, .size = size}, 60000));
    const lksi_mpi_module *mpi = lksi_mpi_module_get();
    lksi_mpi_communicator *made;
    lksi_mpi_transfer *transfer;
    MUST(size == 2 && mpi->make_communicator(ranks, size, 1, &made) == 0);
    lksi_mpi_collective c = {.kind = LKSI_MPI_BROADCAST, .out = &number, .count = 1, .rank = rank, .root = size};
    c.type = LKS_I32, c.communicator = made;
    MUST(mpi->collective(&c, &transfer) != 0);
    mpi->free_communicator(made);
    return 0;
}

static bool has_thread(const char *name) {
    char path[300], found[32] = "";
    bool is_there = false;
    DIR *threads = opendir("/proc/self/task");
    for (const struct dirent *each; threads != NULL && (each = readdir(threads)) != NULL;) {
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", each->d_name);
        FILE *file = fopen(path, "re");
        if (file == NULL) continue;
        if (fgets(found, sizeof found, file) != NULL) found[strcspn(found, "\n")] = '\0';
        is_there |= strcmp(found, name) == 0;
        fclose(file);
    }
    closedir(threads);
    return is_there;
}

/* The thread that progresses MPI runs until the last group is destroyed. */
static int outlived(int rank, int size, void *argument) {
    (void)size, (void)argument;
    lks_group *world, *part;
    MUST_OK(lks_init(&world, NULL));
    MUST_OK(lks_group_split(world, 0, rank, &part));
    lks_group_destroy(world);
    MUST(has_thread("lockstep-mpi"));
    MUST_OK(lks_barrier(part, NULL));
    lks_group_destroy(part);
    return 0;
}

/* All ranks have passed MPI_Init, which has no deadline. Rank 1 does not call lks_init. */
static int absent(int rank, int size, void *argument) {
    (void)size, (void)argument;
    int (*finalize)(void);
    lks_group *world;
    MUST(init_mpi(&finalize) == 0);
    if (rank == 1) {
        lksi_sleep_ns(INT64_C(3000) * 1000 * 1000);
        return 0;
    }
    MUST(lks_init(&world, &(lks_init_options){.timeout_ms = 1000}) == LKS_ERR_TIMEOUT);
    MUST_SAY("not all of the 3 MPI ranks arrived in time to begin");
    return survive(NULL, rank);
}

/* Rank 1 is late. The other ranks give up and get their buffers back. MPI completes the first call during the second
 * one. */
static int given_up(int rank, int size, void *argument) {
    (void)argument;
    const int64_t soon_ns = 200000000, later_ns = INT64_C(1500000000), much_later_ns = INT64_C(60000000000);
    int64_t one = 1, first = -1, second = -1;
    lksi_mpi_collective c = {.kind = LKSI_MPI_ALL_REDUCE, .in = &one, .out = &first, .count = 1, .rank = rank};
    c.type = LKS_I64, c.op = LKS_SUM;
    MUST_OK(lksi_mpi_start(&(lksi_environment){.rank = rank, .size = size}, 60000));
    if (rank == 1) lksi_sleep_ns(later_ns);
    lks_status status = lksi_mpi_run_unwatched(&c, lksi_now_ns() + (rank == 1 ? much_later_ns : soon_ns));
    MUST(status == (rank == 1 ? LKS_OK : LKS_ERR_TIMEOUT));
    c.out = &second;
    MUST_OK(lksi_mpi_run_unwatched(&c, lksi_now_ns() + much_later_ns));
    MUST(second == size && first == (rank == 1 ? size : -1));
    MUST(rank != 1 || lks_memory_nbytes() == 0);
    lksi_mpi_give_up(); /* as lks_init does */
    return survive(NULL, rank);
}

/* MPI_Finalize is called before the group is destroyed, which is the wrong order. */
static int finalised_too_early(int rank, int size, void *argument) {
    (void)rank, (void)argument;
    int (*finalize)(void), one = 1, n = 0;
    lks_group *world, *again;
    MUST(init_mpi(&finalize) == 0);
    MUST_OK(lks_init(&world, NULL));
    MUST_OK(lks_all_reduce(world, &one, &n, 1, LKS_I32, LKS_SUM, &(lks_collective_options){.algorithm = "native"}));
    MUST(n == size);
    MUST(finalize() == 0);
    lks_collective_options ring = {.algorithm = "ring"};
    MUST(lks_all_reduce(world, &one, &n, 1, LKS_I32, LKS_SUM, &ring) != LKS_OK); /* here, or on a rank before */
    MUST_SAY("the program has called MPI_Finalize before the last lks_group_destroy");
    MUST(lks_init(&again, NULL) == LKS_ERR_STATE);
    MUST_SAY("MPI_Finalize");
    lks_group_destroy(world);
    return 0;
}

/* Rank 0 works longer after the last collective than the deadline of any wait. */
static int late(int rank, int size, void *argument) {
    (void)argument;
    lks_group *world;
    int one = 1, n = 0;
    MUST_OK(lks_init(&world, NULL));
    MUST_OK(lks_all_reduce(world, &one, &n, 1, LKS_I32, LKS_SUM, NULL));
    MUST(n == size);
    lks_group_destroy(world);
    if (rank == 0) lksi_sleep_ns(INT64_C(3000) * 1000 * 1000);
    printf("rank %d is done\n", rank);
    return 0;
}

/* Rank 0 fails after its last collective. */
static int fails_at_last(int rank, int size, void *argument) {
    (void)size, (void)argument;
    lks_group *world;
    MUST_OK(lks_init(&world, NULL));
    MUST_OK(lks_barrier(world, NULL));
    lks_group_destroy(world);
    return rank == 0;
}

static long n_switches(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return used.ru_nvcsw;
}

/* Nothing is in progress after a while, and no thread polls. A message is then read although its sender has left and
 * MPI has not been called since it came. */
static int belated(int rank, int size, void *argument) {
    (void)size, (void)argument;
    enum { QUIET_MS = 1500, LOOK_MS = 500, LATE_MS = 1300, MOST_SWITCHES = 400 };
    lks_group *world, *group;
    int32_t number = rank == 0 ? 40 : 0;
    MUST_OK(lks_init(&world, NULL));
    MUST_OK(lks_group_split(world, 0, 0, &group));
    lks_group_destroy(world);
    lksi_sleep_ns(QUIET_MS * LKSI_NS_PER_MS);
    const long n_before = n_switches();
    lksi_sleep_ns(LOOK_MS * LKSI_NS_PER_MS);
    MUST(n_switches() - n_before < MOST_SWITCHES);
    if (rank == 0) MUST_OK(lks_send(group, &number, 1, LKS_I32, 1, 7));
    if (rank == 1) lksi_sleep_ns(LATE_MS * LKSI_NS_PER_MS);
    if (rank == 1) MUST_OK(lks_recv(group, &number, 1, LKS_I32, 0, 7, NULL));
    lks_group_destroy(group);
    MUST(number == 40);
    return 0;
}

static const struct {
    const char *name;
    rank_function function;
} parts[] = {{"conformance", conformance},
             {"native", native},
             {"uneven", uneven},
             {"other_counts", other_counts},
             {"refusals", what_mpi_lacks_is_refused},
             {"subgroups", subgroups},
             {"two_worlds", two_worlds},
             {"messages", messages},
             {"mismatch", mismatch},
             {"roots", roots},
             {"loss", loss},
             {"own_mpi", own_mpi},
             {"finalised_before", finalised_before},
             {"finalised_too_early", finalised_too_early},
             {"second_start", second_start},
             {"errors_of_a_part", errors_of_a_part},
             {"outlived", outlived},
             {"late", late},
             {"fails_at_last", fails_at_last},
             {"belated", belated},
             {"absent", absent},
             {"given_up", given_up}};

static int number(const char *first, const char *second) {
    const char *text = getenv(first) != NULL ? getenv(first) : getenv(second);
    return text != NULL ? (int)strtol(text, NULL, 10) : 0;
}

static int be_a_rank(const char *name) {
    signal(SIGUSR1, SIG_IGN); /* MPICH's launcher sends it when another rank has failed */
    int rank = number("OMPI_COMM_WORLD_RANK", "PMI_RANK"), size = number("OMPI_COMM_WORLD_SIZE", "PMI_SIZE");
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (strcmp(parts[i].name, name) != 0) continue;
        int line = parts[i].function(rank, size, NULL);
        bool is_some_left_to_mpi = strcmp(name, "loss") == 0 || strcmp(name, "given_up") == 0;
        if (line == 0 && lks_memory_nbytes() != 0 && !is_some_left_to_mpi) {
            fprintf(stderr, "rank %d still holds %lld bytes\n", rank, (long long)lks_memory_nbytes());
            line = 1;
        }
        return line == 0 ? 0 : 1;
    }
    fprintf(stderr, "there is no part '%s'\n", name);
    return 2;
}

/* --- the test --- */

static const char *self;

static bool has_mpi(const char *family) {
    char command[128], path[LKSI_MPI_PATH_NBYTES], version[LKSI_MPI_VERSION_NBYTES];
    snprintf(command, sizeof command, "command -v mpirun.%s >/dev/null", family);
    return system(command) == 0 && lksi_mpi_find(family, path, version);
}

/* Runs a test program under mpirun. Returns mpirun's exit status, and the output of the ranks. */
static int start(const char *family, const char *options, int n_ranks, const char *name, char *output,
                 size_t output_nbytes) {
    char command[512];
    snprintf(command, sizeof command, "timeout 120 mpirun.%s %s -np %d %s %s 2>&1", family, options, n_ranks, self,
             name);
    FILE *pipe = popen(command, "re");
    if (pipe == NULL) return -1;
    size_t n = fread(output, 1, output_nbytes - 1, pipe);
    output[n] = '\0';
    int state = pclose(pipe);
    return WIFEXITED(state) ? WEXITSTATUS(state) : -1;
}

static void under_every_mpi(const char *transport, int n_ranks, const char *name) {
    const char *family;
    int n_found = 0;
    setenv("LOCKSTEP_TRANSPORT", transport, 1);
    for (int i = 0; (family = lksi_mpi_family(i)) != NULL; i++) {
        char output[4096];
        if (!has_mpi(family)) continue;
        n_found++;
        int status = start(family, "", n_ranks, name, output, sizeof output);
        if (status != 0) fail_msg("%s, %d ranks, %s over %s: %d\n%s", family, n_ranks, name, transport, status, output);
    }
    unsetenv("LOCKSTEP_TRANSPORT");
    if (n_found == 0) skip();
}

static int count(const char *text, const char *part) {
    int n = 0;
    for (; (text = strstr(text, part)) != NULL; text++) n++;
    return n;
}

/* Runs 3 ranks under an mpirun that keeps ranks alive when one fails. `n_survivors` of them must print that they
 * survived. */
static void survive_under(const char *family, const char *options, const char *name, int n_survivors) {
    static const char *const transports[] = {"mpi", "auto"};
    for (int i = 0; i < 2; i++) {
        char output[4096];
        setenv("LOCKSTEP_TRANSPORT", transports[i], 1);
        (void)start(family, options, 3, name, output, sizeof output);
        unsetenv("LOCKSTEP_TRANSPORT");
        if (count(output, "survivor") != n_survivors)
            fail_msg("%s over %s, %s: %s", family, transports[i], name, output);
    }
}

static void operations_agree_over_mpi(void **state) {
    (void)state;
    under_every_mpi("mpi", 2, "conformance");
    under_every_mpi("mpi", 4, "conformance");
}

static void mpi_s_own_collectives_agree(void **state) {
    (void)state;
    under_every_mpi("mpi", 3, "native");
    under_every_mpi("auto", 2, "native");
    under_every_mpi("mpi", 2, "uneven");
}

static void what_mpi_lacks_is_refused_by_name(void **state) {
    (void)state;
    under_every_mpi("auto", 2, "refusals");
}

static void subgroups_work_over_mpi(void **state) {
    (void)state;
    under_every_mpi("mpi", 4, "subgroups");
    under_every_mpi("auto", 4, "subgroups");
    under_every_mpi("mpi", 3, "two_worlds");
    under_every_mpi("auto", 3, "two_worlds");
    under_every_mpi("mpi", 2, "outlived");
    under_every_mpi("mpi", 2, "errors_of_a_part");
}

static void long_messages_and_unwanted_ones_go_over_mpi(void **state) {
    (void)state;
    under_every_mpi("mpi", 3, "messages");
    under_every_mpi("mpi", 2, "belated");
}

static void calls_that_differ_are_named_before_mpi_gets_them(void **state) {
    (void)state;
    bool has_openmpi = has_mpi("openmpi"), has_mpich = has_mpi("mpich");
    if (has_openmpi) survive_under("openmpi", "--enable-recovery", "mismatch", 3);
    if (has_mpich) survive_under("mpich", "-disable-auto-cleanup", "mismatch", 3);
    if (has_openmpi) survive_under("openmpi", "--enable-recovery", "roots", 3);
    if (has_mpich) survive_under("mpich", "-disable-auto-cleanup", "roots", 3);
    if (has_openmpi) survive_under("openmpi", "--enable-recovery", "other_counts", 3);
    if (has_mpich) survive_under("mpich", "-disable-auto-cleanup", "other_counts", 3);
    if (!has_openmpi && !has_mpich) skip();
}

static void mpi_of_the_program_is_used_and_left_to_it(void **state) {
    (void)state;
    under_every_mpi("mpi", 2, "own_mpi");
    under_every_mpi("mpi", 3, "finalised_too_early");
    under_every_mpi("mpi", 2, "finalised_before");
    under_every_mpi("mpi", 2, "second_start");
}

/* lks_init still looks for the other ranks then. */
static void lks_init_keeps_to_its_deadline(void **state) {
    (void)state;
    bool has_openmpi = has_mpi("openmpi"), has_mpich = has_mpi("mpich");
    if (has_openmpi) survive_under("openmpi", "--enable-recovery", "absent", 2);
    if (has_mpich) survive_under("mpich", "-disable-auto-cleanup", "absent", 2);
    if (!has_openmpi && !has_mpich) skip();
}

static void mpi_writes_to_nobody_who_has_given_up(void **state) {
    (void)state;
    bool has_openmpi = has_mpi("openmpi"), has_mpich = has_mpi("mpich");
    if (has_openmpi) survive_under("openmpi", "--enable-recovery", "given_up", 3);
    if (has_mpich) survive_under("mpich", "-disable-auto-cleanup", "given_up", 3);
    if (!has_openmpi && !has_mpich) skip();
}

/* If a rank exited earlier, mpirun would end the rank at work. */
static void a_rank_at_work_is_waited_for_at_the_end(void **state) {
    (void)state;
    const char *family;
    int n_found = 0;
    setenv("LOCKSTEP_TIMEOUT_MS", "2000", 1);
    for (int i = 0; (family = lksi_mpi_family(i)) != NULL; i++) {
        char output[4096];
        if (!has_mpi(family)) continue;
        n_found++;
        int status = start(family, "", 2, "late", output, sizeof output);
        if (status != 0 || count(output, "rank 0 is done") != 1) fail_msg("%s: %d\n%s", family, status, output);
    }
    unsetenv("LOCKSTEP_TIMEOUT_MS");
    if (n_found == 0) skip();
}

/* If it had left without MPI_Finalize, MPICH's launcher would kill the others, and end with their status or its. */
static void a_rank_that_fails_at_last_has_its_status(void **state) {
    (void)state;
    const char *family;
    int n_found = 0;
    for (int i = 0; (family = lksi_mpi_family(i)) != NULL; i++) {
        char output[4096];
        if (!has_mpi(family)) continue;
        n_found++;
        for (int j = 0; j < 4; j++) {
            int status = start(family, "", 3, "fails_at_last", output, sizeof output);
            if (status != 1) fail_msg("%s: %d\n%s", family, status, output);
        }
    }
    if (n_found == 0) skip();
}

/* MPICH's launcher kills all ranks when one dies. Version 4.0.2 fails an assertion, and the ranks end with it. */
static void a_killed_rank_is_named(void **state) {
    (void)state;
    if (!has_mpi("openmpi")) skip();
    survive_under("openmpi", "--enable-recovery", "loss", 2);
}

int main(int argc, char **argv) {
    if (argc > 1) return be_a_rank(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_mpi_lacks_is_refused_by_name),
        cmocka_unit_test(calls_that_differ_are_named_before_mpi_gets_them),
        cmocka_unit_test(subgroups_work_over_mpi),
        cmocka_unit_test(long_messages_and_unwanted_ones_go_over_mpi),
        cmocka_unit_test(mpi_of_the_program_is_used_and_left_to_it),
        cmocka_unit_test(lks_init_keeps_to_its_deadline),
        cmocka_unit_test(mpi_writes_to_nobody_who_has_given_up),
        cmocka_unit_test(a_rank_at_work_is_waited_for_at_the_end),
        cmocka_unit_test(a_rank_that_fails_at_last_has_its_status),
        cmocka_unit_test(a_killed_rank_is_named),
        cmocka_unit_test(mpi_s_own_collectives_agree),
        cmocka_unit_test(operations_agree_over_mpi),
    };
    self = argv[0];
    setenv("LOCKSTEP_MPI_MODULE", LKSI_BUILD_DIR, 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1), setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 1); /* version 4; 5: */
    setenv("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe", 1);
    return run_group(tests);
}

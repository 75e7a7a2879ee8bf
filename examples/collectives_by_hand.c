/* Collectives by hand: the algorithms of a communication library, written with send and receive only.
 *
 *     lockstep run -n 4 collectives_by_hand
 *
 * Each algorithm is a function of a few lines below a drawing of who sends to whom. All of them work for any number of
 * ranks and any root. At the end each result is checked, and its time is printed beside that of the library's own call.
 *
 * Two numbers determine the time of an algorithm. The number of consecutive rounds of messages dominates for small
 * data. The bytes through the busiest rank dominate for large data. n is the number of ranks, N the bytes of one rank's
 * data.
 *
 * One danger is everywhere: deadlock. A large send returns only when the receiver takes the message, so ranks that all
 * send first wait for each other for ever. If two ranks exchange data, one of them has to receive first; see
 * exchange().
 */
#include <lockstep/comm.h>
#include <lockstep/launch.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TAG = 1, CHUNK = 8192 };

/* One rank's part in a collective. `in` has `count` elements. `out` and `scratch` have space for a block of every rank.
 */
typedef struct task {
    lks_group *group;
    int rank, size, root;
    size_t count;
    const float *in;
    float *out, *scratch;
} task;

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        lks_status try_status_ = (call);                                                                               \
        if (try_status_ != LKS_OK) return try_status_;                                                                 \
    } while (0)

static lks_status send_to(const task *t, int to, const float *data, size_t count) {
    return lks_send(t->group, data, count, LKS_F32, to, TAG);
}
static lks_status receive_from(const task *t, int from, float *data, size_t count) {
    return lks_recv(t->group, data, count, LKS_F32, from, TAG, NULL);
}

/* Sends to one rank and receives from another (or the same) while they do likewise. If all ranks send first, none
 * receives, so odd ranks receive first. In a ring with an odd number of ranks two even ranks are neighbours. This is
 * still deadlock-free: the first of them sends to an odd rank, which receives. */
static lks_status exchange(const task *t, int to, const float *sent, size_t sent_count, int from, float *data,
                           size_t count) {
    if (t->rank % 2 == 0) TRY(send_to(t, to, sent, sent_count));
    TRY(receive_from(t, from, data, count));
    return t->rank % 2 == 0 ? LKS_OK : send_to(t, to, sent, sent_count);
}

/* Exchanges data between two arbitrary ranks: the lower rank sends first. */
static lks_status swap(const task *t, int peer, const float *sent, float *data, size_t count) {
    if (t->rank < peer) TRY(send_to(t, peer, sent, count));
    TRY(receive_from(t, peer, data, count));
    return t->rank < peer ? LKS_OK : send_to(t, peer, sent, count);
}

static void add(float *sum, const float *data, size_t count) {
    for (size_t i = 0; i < count; i++) sum[i] += data[i];
}
static void copy(float *to, const float *from, size_t count) { memmove(to, from, count * sizeof *to); }

/* Ranks are numbered from the root on, so that every tree below has its root at 0. to_rank is the inverse. */
static int from_root(const task *t, int rank) { return (rank - t->root + t->size) % t->size; }
static int to_rank(const task *t, int position) { return (position + t->root) % t->size; }

/* ---- broadcast: `out` of every rank becomes the root's `in` ---- */

/* naive: the root sends to every rank, one after the other. n-1 rounds, (n-1) N bytes out of the root.
 *
 *     0 -> 1    0 -> 2    0 -> 3
 */
static lks_status broadcast_naive(const task *t) {
    if (t->rank != t->root) return receive_from(t, t->root, t->out, t->count);
    copy(t->out, t->in, t->count);
    for (int rank = 0; rank < t->size; rank++)
        if (rank != t->root) TRY(send_to(t, rank, t->out, t->count));
    return LKS_OK;
}

/* tree: every rank that has the data sends it to one that does not, so each round doubles their number. log2 n rounds,
 * rounded up.
 *
 *     round 1    0 -> 1
 *     round 2    0 -> 2    1 -> 3
 *     round 3    0 -> 4    1 -> 5    2 -> 6    3 -> 7
 */
static lks_status broadcast_tree(const task *t) {
    int me = from_root(t, t->rank);
    if (me == 0) copy(t->out, t->in, t->count);
    for (int n_knowing = 1; n_knowing < t->size; n_knowing *= 2) {
        if (me < n_knowing && me + n_knowing < t->size)
            TRY(send_to(t, to_rank(t, me + n_knowing), t->out, t->count));
        else if (me >= n_knowing && me < 2 * n_knowing)
            TRY(receive_from(t, to_rank(t, me - n_knowing), t->out, t->count));
    }
    return LKS_OK;
}

/* ring: a pipeline. Each rank forwards a chunk while its neighbour forwards the one before, so all ranks work at the
 * same time. Every rank sends N bytes for any n. The number of rounds is that of the chunks plus n-2.
 *
 *     0 -c-> 1 -b-> 2 -a-> 3        chunks a, b, c in flight
 */
static lks_status broadcast_ring(const task *t) {
    int me = from_root(t, t->rank);
    if (me == 0) copy(t->out, t->in, t->count);
    for (size_t first = 0; first < t->count; first += CHUNK) {
        size_t count = t->count - first < CHUNK ? t->count - first : CHUNK;
        if (me > 0) TRY(receive_from(t, to_rank(t, me - 1), t->out + first, count));
        if (me < t->size - 1) TRY(send_to(t, to_rank(t, me + 1), t->out + first, count));
    }
    return LKS_OK;
}

/* ---- reduce: `out` of the root becomes the sum of all `in` ---- */

/* naive: every rank sends to the root, which adds. n-1 rounds, (n-1) N bytes into the root, all additions there.
 *
 *     1 -> 0    2 -> 0    3 -> 0
 */
static lks_status reduce_naive(const task *t) {
    if (t->rank != t->root) return send_to(t, t->root, t->in, t->count);
    copy(t->out, t->in, t->count);
    for (int rank = 0; rank < t->size; rank++) {
        if (rank == t->root) continue;
        TRY(receive_from(t, rank, t->scratch, t->count));
        add(t->out, t->scratch, t->count);
    }
    return LKS_OK;
}

/* tree: the tree of broadcast in reverse, with sums instead of copies. log2 n rounds, in which many ranks add at once.
 *
 *     round 1    1 -> 0    3 -> 2    5 -> 4    7 -> 6
 *     round 2    2 -> 0    6 -> 4
 *     round 3    4 -> 0
 */
static lks_status reduce_tree(const task *t) {
    int me = from_root(t, t->rank);
    copy(t->out, t->in, t->count);
    for (int distance = 1; distance < t->size; distance *= 2) {
        if (me & distance) return send_to(t, to_rank(t, me - distance), t->out, t->count);
        if (me + distance >= t->size) continue;
        TRY(receive_from(t, to_rank(t, me + distance), t->scratch, t->count));
        add(t->out, t->scratch, t->count);
    }
    return LKS_OK;
}

/* ---- all_reduce: `out` of every rank becomes the sum of all `in` ---- */

/* naive: reduce to the root and broadcast back. 2 (n-1) rounds. */
static lks_status all_reduce_naive(const task *t) {
    TRY(reduce_naive(t));
    task back = *t;
    back.in = t->out;
    return broadcast_naive(&back);
}

/* butterfly: in each round a rank exchanges its sum with a rank at twice the distance of the round before. Both then
 * have the sum over twice as many ranks. log2 n rounds, each with N bytes out of each rank.
 *
 *     round 1    0 <-> 1    2 <-> 3
 *     round 2    0 <-> 2    1 <-> 3
 *
 * If n is not a power of two, the ranks beyond the largest power of two send their data first and get the result last.
 * (The library does this differently: it adds in an order that gives the same bits for every algorithm.)
 */
static lks_status all_reduce_butterfly(const task *t) {
    int power = 1;
    while (2 * power <= t->size) power *= 2;
    copy(t->out, t->in, t->count);
    if (t->rank >= power) {
        TRY(send_to(t, t->rank - power, t->out, t->count));
        return receive_from(t, t->rank - power, t->out, t->count);
    }
    int guest = t->rank + power < t->size ? t->rank + power : -1;
    if (guest >= 0) {
        TRY(receive_from(t, guest, t->scratch, t->count));
        add(t->out, t->scratch, t->count);
    }
    for (int distance = 1; distance < power; distance *= 2) {
        TRY(swap(t, t->rank ^ distance, t->out, t->scratch, t->count));
        add(t->out, t->scratch, t->count);
    }
    return guest >= 0 ? send_to(t, guest, t->out, t->count) : LKS_OK;
}

/* Start of block `block` of n. Blocks may differ by one element. */
static size_t begin_of(const task *t, int block) { return t->count * (size_t)block / (size_t)t->size; }

/* One step of the ring: sends block `sent` to the right and receives block `received` from the left into `to`. */
static lks_status turn(const task *t, int sent, int received, float *to) {
    int right = (t->rank + 1) % t->size, left = (t->rank + t->size - 1) % t->size;
    return exchange(t, right, t->out + begin_of(t, sent), begin_of(t, sent + 1) - begin_of(t, sent), left, to,
                    begin_of(t, received + 1) - begin_of(t, received));
}

/* ring: the data is cut into n blocks, each of which goes round twice. First every rank adds its part, then every rank
 * copies the sum. 2 (n-1) rounds of N/n bytes: each rank sends less than 2 N, for any n.
 *
 *     0 -> 1 -> 2 -> 3 -> 0        in round k rank r sends block r-k
 */
static lks_status all_reduce_ring(const task *t) {
    int n = t->size;
    copy(t->out, t->in, t->count);
    for (int k = 0; k < n - 1; k++) {
        int sent = (t->rank - k + n) % n, received = (sent - 1 + n) % n;
        TRY(turn(t, sent, received, t->scratch));
        add(t->out + begin_of(t, received), t->scratch, begin_of(t, received + 1) - begin_of(t, received));
    }
    for (int k = 0; k < n - 1; k++) {
        int sent = (t->rank + 1 - k + n) % n, received = (sent - 1 + n) % n;
        TRY(turn(t, sent, received, t->out + begin_of(t, received)));
    }
    return LKS_OK;
}

/* ---- gather: `out` of the root becomes the `in` of all ranks, in rank order ---- */

/* naive: every rank sends to the root. n-1 rounds, (n-1) N bytes into the root. */
static lks_status gather_naive(const task *t) {
    if (t->rank != t->root) return send_to(t, t->root, t->in, t->count);
    for (int rank = 0; rank < t->size; rank++) {
        float *block = t->out + (size_t)rank * t->count;
        if (rank == t->root)
            copy(block, t->in, t->count);
        else
            TRY(receive_from(t, rank, block, t->count));
    }
    return LKS_OK;
}

/* tree: the tree of reduce, with concatenation instead of sums. log2 n rounds. The last messages are the longest. The
 * root receives the same number of bytes as with naive.
 *
 *     round 1    1 -> 0    3 -> 2    5 -> 4    7 -> 6        one block each
 *     round 2    2 -> 0    6 -> 4                            two blocks: 2 and 3, 6 and 7
 *     round 3    4 -> 0                                      four blocks
 */
static lks_status gather_tree(const task *t) {
    int me = from_root(t, t->rank), n_mine = 1;
    copy(t->scratch, t->in, t->count);
    for (int distance = 1; distance < t->size; distance *= 2) {
        if (me & distance) return send_to(t, to_rank(t, me - distance), t->scratch, (size_t)n_mine * t->count);
        if (me + distance >= t->size) continue;
        int n_theirs = t->size - (me + distance) < distance ? t->size - (me + distance) : distance;
        TRY(receive_from(t, to_rank(t, me + distance), t->scratch + (size_t)n_mine * t->count,
                         (size_t)n_theirs * t->count));
        n_mine += n_theirs;
    }
    for (int position = 0; position < t->size; position++)
        copy(t->out + (size_t)to_rank(t, position) * t->count, t->scratch + (size_t)position * t->count, t->count);
    return LKS_OK;
}

/* ---- all_gather: `out` of every rank becomes the `in` of all ranks ---- */

static task broadcast_of_all_blocks(const task *t) {
    task all = *t;
    all.in = t->out, all.count = t->count * (size_t)t->size;
    return all;
}

/* naive: gather, then broadcast, both naive. 2 (n-1) rounds. */
static lks_status all_gather_naive(const task *t) {
    task all = broadcast_of_all_blocks(t);
    TRY(gather_naive(t));
    return broadcast_naive(&all);
}

/* tree: gather, then broadcast, both by trees. 2 log2 n rounds. */
static lks_status all_gather_tree(const task *t) {
    task all = broadcast_of_all_blocks(t);
    TRY(gather_tree(t));
    return broadcast_tree(&all);
}

/* ---- the library's own calls ---- */

static lks_status library_broadcast(const task *t) {
    if (t->rank == t->root) copy(t->out, t->in, t->count);
    return lks_broadcast(t->group, t->out, t->count, LKS_F32, t->root, NULL);
}
static lks_status library_reduce(const task *t) {
    return lks_reduce(t->group, t->in, t->out, t->count, LKS_F32, LKS_SUM, t->root, NULL);
}
static lks_status library_all_reduce(const task *t) {
    return lks_all_reduce(t->group, t->in, t->out, t->count, LKS_F32, LKS_SUM, NULL);
}
static lks_status library_gather(const task *t) {
    return lks_gather(t->group, t->in, t->out, t->count, LKS_F32, t->root, NULL);
}
static lks_status library_all_gather(const task *t) {
    return lks_all_gather(t->group, t->in, t->out, t->count, LKS_F32, NULL);
}

/* ---- checks and times ---- */

/* Small integers, whose sums are exact in any order. */
static float input_of(int rank, size_t i) { return (float)(rank + 1) + (float)(i % 7); }

static float sum_at(const task *t, size_t i) {
    float sum = 0;
    for (int rank = 0; rank < t->size; rank++) sum += input_of(rank, i);
    return sum;
}
static float block_at(const task *t, size_t i) { return input_of((int)(i / t->count), i % t->count); }
static float root_at(const task *t, size_t i) { return input_of(t->root, i); }

typedef struct lesson {
    const char *operation, *algorithm;
    lks_status (*by_hand)(const task *t);
    lks_status (*by_library)(const task *t);
    float (*expected)(const task *t, size_t i);
    int is_for_root_alone, has_blocks;
} lesson;

static const lesson lessons[] = {
    {"broadcast", "naive", broadcast_naive, library_broadcast, root_at, 0, 0},
    {"broadcast", "tree", broadcast_tree, library_broadcast, root_at, 0, 0},
    {"broadcast", "ring", broadcast_ring, library_broadcast, root_at, 0, 0},
    {"reduce", "naive", reduce_naive, library_reduce, sum_at, 1, 0},
    {"reduce", "tree", reduce_tree, library_reduce, sum_at, 1, 0},
    {"all_reduce", "naive", all_reduce_naive, library_all_reduce, sum_at, 0, 0},
    {"all_reduce", "butterfly", all_reduce_butterfly, library_all_reduce, sum_at, 0, 0},
    {"all_reduce", "ring", all_reduce_ring, library_all_reduce, sum_at, 0, 0},
    {"gather", "naive", gather_naive, library_gather, block_at, 1, 1},
    {"gather", "tree", gather_tree, library_gather, block_at, 1, 1},
    {"all_gather", "naive", all_gather_naive, library_all_gather, block_at, 0, 1},
    {"all_gather", "tree", all_gather_tree, library_all_gather, block_at, 0, 1},
};
enum { N_LESSONS = sizeof lessons / sizeof *lessons };

/* Counts the wrong elements of this rank's result after one run by hand. */
static lks_status check(const lesson *l, const task *t, int64_t *n_wrong) {
    size_t count = l->has_blocks ? t->count * (size_t)t->size : t->count;
    for (size_t i = 0; i < count; i++) t->out[i] = -1;
    TRY(l->by_hand(t));
    if (l->is_for_root_alone && t->rank != t->root) return LKS_OK;
    for (size_t i = 0; i < count; i++) *n_wrong += t->out[i] != l->expected(t, i);
    return LKS_OK;
}

static double now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return 1e6 * (double)now.tv_sec + 1e-3 * (double)now.tv_nsec;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Measures from the moment when all ranks are ready until the slowest is done. Takes the median of several calls.
 * (Calls without barriers between them would favour a root that only sends: small messages leave it before anyone has
 * received them.) */
static lks_status measure(lks_status (*run)(const task *t), const task *t, double *call_us) {
    enum { N_CALLS = 9 };
    double times_us[N_CALLS];
    TRY(run(t));
    for (int i = 0; i < N_CALLS; i++) {
        TRY(lks_barrier(t->group, NULL));
        double started_us = now_us();
        TRY(run(t));
        times_us[i] = now_us() - started_us;
    }
    TRY(lks_all_reduce(t->group, times_us, times_us, N_CALLS, LKS_F64, LKS_MAX, NULL));
    qsort(times_us, N_CALLS, sizeof *times_us, compare);
    *call_us = times_us[N_CALLS / 2];
    return LKS_OK;
}

static lks_status take_lesson(const lesson *l, task *t, int64_t *n_wrong) {
    double by_hand_us, by_library_us;
    int64_t mine = 0, everyones = 0;
    for (t->root = 0; t->root < t->size; t->root++) TRY(check(l, t, &mine));
    t->root = 0;
    TRY(lks_all_reduce(t->group, &mine, &everyones, 1, LKS_I64, LKS_SUM, NULL));
    TRY(measure(l->by_hand, t, &by_hand_us));
    TRY(measure(l->by_library, t, &by_library_us));
    *n_wrong += everyones;
    if (t->rank == 0)
        printf("%-11s %-10s %9zu %12.1f %12.1f %9s\n", l->operation, l->algorithm, t->count * sizeof(float), by_hand_us,
               by_library_us, everyones == 0 ? "right" : "WRONG");
    return LKS_OK;
}

static lks_status take_lessons(task *t, size_t count, int64_t *n_wrong) {
    float *in = malloc(count * sizeof *in);
    t->out = malloc((size_t)t->size * count * sizeof *t->out);
    t->scratch = malloc((size_t)t->size * count * sizeof *t->scratch);
    lks_status status = in != NULL && t->out != NULL && t->scratch != NULL ? LKS_OK : LKS_ERR_MEMORY;
    for (size_t i = 0; status == LKS_OK && i < count; i++) in[i] = input_of(t->rank, i);
    t->in = in, t->count = count;
    for (int i = 0; status == LKS_OK && i < N_LESSONS; i++) status = take_lesson(&lessons[i], t, n_wrong);
    free(in);
    free(t->out);
    free(t->scratch);
    return status;
}

static int collectives_by_hand(int argc, char **argv) {
    if (argc > 1) {
        fprintf(stderr, "collectives_by_hand: unknown argument '%s'; it takes none\n", argv[1]);
        return 2;
    }
    lks_group *world;
    LKS_CHECK(lks_init(&world, NULL));
    task t = {.group = world, .rank = lks_group_rank(world), .size = lks_group_size(world)};
    int64_t n_wrong = 0;
    if (t.rank == 0)
        printf("%d rank%s, %s\n%-11s %-10s %9s %12s %12s %9s\n", t.size, t.size > 1 ? "s" : "",
               lks_group_transport(world), "operation", "algorithm", "bytes", "by hand, us", "library, us", "result");
    LKS_CHECK(take_lessons(&t, 5, &n_wrong));          /* 20 bytes: rounds dominate */
    LKS_CHECK(take_lessons(&t, 250 * 1000, &n_wrong)); /* 1 MB: bytes dominate */
    lks_group_destroy(world);
    return n_wrong == 0 ? 0 : 1;
}

int main(int argc, char **argv) { return lks_main(argc, argv, collectives_by_hand); }

/* Collectives by hand: what a communication library does, written with send and recv alone.
 *
 *     lockstep run -n 4 collectives_by_hand
 *
 * Each algorithm is a function of a few lines under a drawing of who sends to whom. All work for any number of ranks
 * and any root. At the end each result is checked, and its time stands beside that of the library's own call.
 *
 * Two numbers tell how long an algorithm takes: its rounds of messages, one after the other, which decide for small
 * data, and the bytes that go through the busiest rank, which decide for large data. n is the number of ranks, N the
 * bytes of one rank's data.
 *
 * One trap is everywhere: a large send returns when the receiver takes the message, so ranks that all send first wait
 * for each other for ever. Wherever two ranks exchange, one of them has to receive first; see exchange() below.
 */
#include <lockstep/comm.h>
#include <lockstep/launch.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TAG = 1, CHUNK = 8192 };

/* One rank's part in a collective: `count` elements in; out and scratch have room for a block of every rank. */
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

/* Sends to one rank and receives from another (or the same) while they do likewise. Where everyone sends first, nobody
 * receives; so odd ranks receive first. In a circle of an odd number two even neighbours meet, and all still ends: the
 * first of them sends to an odd one, who takes it. */
static lks_status exchange(const task *t, int to, const float *sent, size_t sent_count, int from, float *data,
                           size_t count) {
    if (t->rank % 2 == 0) TRY(send_to(t, to, sent, sent_count));
    TRY(receive_from(t, from, data, count));
    return t->rank % 2 == 0 ? LKS_OK : send_to(t, to, sent, sent_count);
}

/* The same between two ranks that send each other, whichever they are: the lower one sends first. */
static lks_status swap(const task *t, int peer, const float *sent, float *data, size_t count) {
    if (t->rank < peer) TRY(send_to(t, peer, sent, count));
    TRY(receive_from(t, peer, data, count));
    return t->rank < peer ? LKS_OK : send_to(t, peer, sent, count);
}

static void add(float *sum, const float *data, size_t count) {
    for (size_t i = 0; i < count; i++) sum[i] += data[i];
}
static void copy(float *to, const float *from, size_t count) { memmove(to, from, count * sizeof *to); }

/* Ranks counted from the root on, so that every tree below has its root at 0; and back. */
static int from_root(const task *t, int rank) { return (rank - t->root + t->size) % t->size; }
static int to_rank(const task *t, int position) { return (position + t->root) % t->size; }

/* ---- broadcast: out of every rank becomes the root's in ---- */

/* naive: the root tells everyone, one after the other. n-1 rounds, (n-1) N bytes out of the root.
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

/* tree: whoever knows tells one who does not, so that each round doubles those who know. log2 n rounds, rounded up.
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

/* ring: a bucket chain. Each rank passes a chunk on while its neighbour passes on the one before, so that all are at
 * work; every rank sends N bytes, whatever n is. As many rounds as there are chunks, and n-2 more.
 *
 *     0 -c-> 1 -b-> 2 -a-> 3        chunks a, b, c under way
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

/* ---- reduce: out of the root becomes the sum of all ins ---- */

/* naive: everyone sends to the root, who adds. n-1 rounds, (n-1) N bytes into the root, all additions there.
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

/* tree: broadcast's tree backwards, sums instead of copies. log2 n rounds, in which many ranks add at once.
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

/* ---- all_reduce: out of every rank becomes the sum of all ins ---- */

/* naive: to the root and back. 2 (n-1) rounds. */
static lks_status all_reduce_naive(const task *t) {
    TRY(reduce_naive(t));
    task back = *t;
    back.in = t->out;
    return broadcast_naive(&back);
}

/* butterfly: in each round a rank swaps its sum with one at twice the distance of the round before, and both have the
 * sum of twice as many. log2 n rounds, N bytes out of each rank in every one.
 *
 *     round 1    0 <-> 1    2 <-> 3
 *     round 2    0 <-> 2    1 <-> 3
 *
 * Where n is no power of two, the ranks beyond the last one hand theirs in first and get the result last. (The library
 * goes about this differently: it adds in an order that gives the same bits for every algorithm.)
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

/* Where block `block` of n begins; blocks may differ by one element. */
static size_t begin_of(const task *t, int block) { return t->count * (size_t)block / (size_t)t->size; }

/* One turn of the ring: passes block `sent` to the right; block `received` comes from the left into `to`. */
static lks_status turn(const task *t, int sent, int received, float *to) {
    int right = (t->rank + 1) % t->size, left = (t->rank + t->size - 1) % t->size;
    return exchange(t, right, t->out + begin_of(t, sent), begin_of(t, sent + 1) - begin_of(t, sent), left, to,
                    begin_of(t, received + 1) - begin_of(t, received));
}

/* ring: the data in n blocks, each of which goes round twice: first every rank adds its own to it, then every rank
 * copies the sum. 2 (n-1) rounds of N/n bytes: each rank sends less than 2 N, however many there are.
 *
 *     0 -> 1 -> 2 -> 3 -> 0        in round k rank r passes block r-k on
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

/* ---- gather: out of the root becomes the ins of all ranks, in their order ---- */

/* naive: everyone sends to the root. n-1 rounds, (n-1) N bytes into the root. */
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

/* tree: reduce's tree, blocks side by side instead of sums. log2 n rounds; the last messages are the longest, the bytes
 * into the root are the same.
 *
 *     round 1    1 -> 0    3 -> 2    5 -> 4    7 -> 6        a block each
 *     round 2    2 -> 0    6 -> 4                            two: 2 and 3, 6 and 7
 *     round 3    4 -> 0                                      four
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

/* ---- all_gather: out of every rank becomes the ins of all ranks ---- */

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

/* tree: the same with trees. 2 log2 n rounds. */
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

/* Small integers, so that sums are exact in any order. */
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

/* How many elements of this rank's result are wrong after one run by hand. */
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

/* From the moment when all ranks are there until the slowest is done; the median of some calls. (Calls back to back
 * would flatter a root that only sends: small messages leave it before anyone has taken them.) */
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
    LKS_CHECK(take_lessons(&t, 5, &n_wrong));          /* 20 bytes: rounds decide */
    LKS_CHECK(take_lessons(&t, 250 * 1000, &n_wrong)); /* 1 MB: bytes decide */
    lks_group_destroy(world);
    return n_wrong == 0 ? 0 : 1;
}

int main(int argc, char **argv) { return lks_main(argc, argv, collectives_by_hand); }

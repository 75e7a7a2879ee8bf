/* Inputs whose result is exact in every type: small integers, different on every rank. Their period is a prime, 61, so
 * that block lengths are not multiples of it, and an element in the wrong place is a wrong element. */
#include "cli/bench.h"
#include "comm/arithmetic/half.h"

#include <string.h>

enum { PERIOD = 61, MAX_ELEMENT_NBYTES = 8 };

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static int64_t scramble(int rank, int place) {
    return (int64_t)(lksi_random_u32(1, (uint64_t)rank, (uint64_t)place) >> 8);
}

/* Integers up to this limit are exact in the type. */
static int64_t exact_limit(lks_type type) {
    switch (type) {
    case LKS_I8:
        return 127;
    case LKS_U8:
        return 255;
    case LKS_BF16:
        return 256;
    case LKS_F16:
        return 2048;
    default:
        return 1 << 20;
    }
}

/* Input for a sum: each rank gets its share of the limit. If there are more ranks than that, the others contribute 0.
 */
static int64_t summand(const lksi_bench_call *call, int rank, int place) {
    int64_t limit = exact_limit(call->type);
    if (rank >= limit) return 0;
    return scramble(rank, place) % (least(limit / least(call->size, limit), 7) + 1);
}

/* Input for an average: a number that all ranks share, plus one on each even rank and minus one on its odd neighbour.
 */
static int64_t averaged(const lksi_bench_call *call, int rank, int place) {
    bool has_neighbour = (rank ^ 1) < call->size;
    return 2 + place % 5 + (has_neighbour ? rank % 2 == 0 ? 1 : -1 : 0);
}

/* Element `place` (modulo the period) of the input of rank `rank`. */
static int64_t input_at(const lksi_bench_operation *operation, const lksi_bench_call *call, int rank, int place) {
    if (!operation->is_reduction) return scramble(rank, place) % 100;
    switch (call->op) {
    case LKS_SUM:
        return summand(call, rank, place);
    case LKS_AVG:
        return averaged(call, rank, place);
    case LKS_PRODUCT:
        return rank < 6 ? 1 + scramble(rank, place) % 2 : 1; /* 64 at most */
    default:
        return scramble(rank, place) % 100;
    }
}

static int64_t combine(lks_operator op, int64_t a, int64_t b) {
    switch (op) {
    case LKS_PRODUCT:
        return a * b;
    case LKS_MIN:
        return a < b ? a : b;
    case LKS_MAX:
        return a > b ? a : b;
    case LKS_BAND:
        return a & b;
    case LKS_BOR:
        return a | b;
    case LKS_BXOR:
        return a ^ b;
    default:
        return a + b;
    }
}

static int64_t combined_at(const lksi_bench_operation *operation, const lksi_bench_call *call, int place) {
    int64_t result = input_at(operation, call, 0, place);
    for (int rank = 1; rank < call->size; rank++)
        result = combine(call->op, result, input_at(operation, call, rank, place));
    return call->op == LKS_AVG ? result / call->size : result;
}

static void put(void *to, lks_type type, int64_t value) {
    switch (type) {
    case LKS_F32:
        memcpy(to, &(float){(float)value}, 4);
        break;
    case LKS_F64:
        memcpy(to, &(double){(double)value}, 8);
        break;
    case LKS_F16:
        memcpy(to, &(uint16_t){lksi_f32_to_f16((float)value)}, 2);
        break;
    case LKS_BF16:
        memcpy(to, &(uint16_t){lksi_f32_to_bf16((float)value)}, 2);
        break;
    case LKS_I8:
    case LKS_U8:
        memcpy(to, &(uint8_t){(uint8_t)value}, 1);
        break;
    case LKS_I32:
        memcpy(to, &(int32_t){(int32_t)value}, 4);
        break;
    case LKS_I64:
        memcpy(to, &value, 8);
        break;
    }
}

/* Computes one period of a rank's input, or of the combined result. */
static void make_period(const lksi_bench_operation *operation, const lksi_bench_call *call, int source,
                        unsigned char period[PERIOD * MAX_ELEMENT_NBYTES]) {
    size_t each = lks_type_nbytes(call->type);
    for (int place = 0; place < PERIOD; place++) {
        int64_t value = source == LKSI_BENCH_COMBINED ? combined_at(operation, call, place)
                                                      : input_at(operation, call, source, place);
        put(period + (size_t)place * each, call->type, value);
    }
}

void lksi_bench_fill(const lksi_bench_operation *operation, const lksi_bench_call *call, void *data, size_t count) {
    unsigned char period[PERIOD * MAX_ELEMENT_NBYTES];
    make_period(operation, call, call->rank, period);
    size_t nbytes = count * lks_type_nbytes(call->type), period_nbytes = PERIOD * lks_type_nbytes(call->type);
    for (size_t done = 0; done < nbytes; done += period_nbytes)
        memcpy((unsigned char *)data + done, period, nbytes - done < period_nbytes ? nbytes - done : period_nbytes);
}

static int64_t count_wrong(const unsigned char *found, const unsigned char *right, size_t count, size_t each) {
    if (memcmp(found, right, count * each) == 0) return 0;
    int64_t n_wrong = 0;
    for (size_t i = 0; i < count; i++) n_wrong += memcmp(found + i * each, right + i * each, each) != 0;
    return n_wrong;
}

static int64_t count_errors_in(const unsigned char *found, const lksi_bench_segment *segment,
                               const unsigned char *period, size_t each) {
    int64_t n_wrong = 0;
    size_t phase = segment->first % PERIOD;
    for (size_t done = 0; done < segment->count; phase = 0) {
        size_t run = PERIOD - phase < segment->count - done ? PERIOD - phase : segment->count - done;
        n_wrong += count_wrong(found + done * each, period + phase * each, run, each);
        done += run;
    }
    return n_wrong;
}

int64_t lksi_bench_count_errors(const lksi_bench_operation *operation, const lksi_bench_call *call) {
    unsigned char period[PERIOD * MAX_ELEMENT_NBYTES];
    const unsigned char *found = call->out;
    size_t each = lks_type_nbytes(call->type);
    int64_t n_wrong = 0;
    for (int i = 0; i < operation->segment_count(call); i++) {
        lksi_bench_segment segment = operation->segment(call, i);
        make_period(operation, call, segment.source, period);
        n_wrong += count_errors_in(found, &segment, period, each);
        found += segment.count * each;
    }
    return n_wrong;
}

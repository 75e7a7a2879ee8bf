/* Reductions of any number of inputs in canonical order, one block at a time.
 *
 * A block of 4 KiB is reduced along the whole tree before the next block begins. So each input is read once, partial
 * results stay in L1 (one block per level of the tree, on the stack), and the result is written to all outputs while it
 * is in L1. It is written after the block of every input has been read, so an output may be one of the inputs. A single
 * output that is not an input is used for the partial results itself.
 *
 * Two cases avoid the blocks, because a fused loop is faster: two inputs with two outputs (two ranks that each reduce a
 * slice for both), and sums of four inputs with four outputs past the caches.
 *
 * Results larger than the caches are written past them, so that their lines are not read before they are written. For
 * smaller results that is slower, because whoever reads the result or writes the next input then has to go to memory.
 */
#include "base/cache.h"
#include "comm/arithmetic/arithmetic.h"
#include "comm/arithmetic/kernels.h"
#include "comm/copy.h"

#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

enum {
    BLOCK_NBYTES = 4096,
    STREAMED_NBYTES = 512, /* of a block written past the caches; small, so that reads continue between the writes */
};

/* --- writing a result from L1 to its outputs --- */

#if defined(__SSE2__)
/* With vector stores. The copies of copy.h compile to `rep movs`, which is slower into lines that another core
 * holds. */
static void write_cached(void *to, const void *from, size_t nbytes) {
    unsigned char *out = to;
    const unsigned char *in = from;
    size_t done = (size_t)(-(uintptr_t)out & 15) < nbytes ? (size_t)(-(uintptr_t)out & 15) : nbytes;
    memcpy(out, in, done);
    for (; done + 16 <= nbytes; done += 16)
        _mm_store_si128((__m128i *)(void *)(out + done), _mm_loadu_si128((const __m128i *)(const void *)(in + done)));
    memcpy(out + done, in + done, nbytes - done);
}
#else
static void write_cached(void *to, const void *from, size_t nbytes) { memcpy(to, from, nbytes); }
#endif

/* Whether the result is written past the caches: if the buffers of all ranks together exceed the caches, and no output
 * is an input. The lines of an output that is an input are read anyway. The number of inputs is the number of ranks. */
static bool is_past_caches(const lksi_reduction *reduction, size_t count) {
    size_t n_buffers = (size_t)reduction->n_inputs + (size_t)reduction->n_outputs;
    if (!lksi_exceeds_caches(count * lksi_type_nbytes(reduction->type) * n_buffers * (size_t)reduction->n_inputs))
        return false;
    for (int i = 0; i < reduction->n_inputs; i++)
        for (int k = 0; k < reduction->n_outputs; k++)
            if (reduction->inputs[i] == reduction->outputs[k]) return false;
    return true;
}

typedef union block {
    unsigned char bytes[BLOCK_NBYTES];
    double alignment;
} block;

typedef struct tree {
    const lksi_reduce_kernels *loops;
    const lksi_reduction *reduction;
    size_t first, count; /* of the block, in elements */
} tree;

static const unsigned char *leaf(const tree *t, int k) {
    return (const unsigned char *)t->reduction->inputs[k] + t->first * lksi_type_nbytes(t->reduction->type);
}

static double scale_of(const tree *t, int k) { return t->reduction->scales == NULL ? 1 : t->reduction->scales[k]; }

static void four_leaves(const tree *t, int low, const void *inputs[4], double scales[4]) {
    for (int i = 0; i < 4; i++) inputs[i] = leaf(t, low + i), scales[i] = scale_of(t, low + i);
}

/* acc = op over inputs low .. low + n - 1. */
static void climb(const tree *t, int low, int n, void *acc) {
    lks_type type = t->reduction->type;
    lks_operator op = t->reduction->op;
    bool is_sum = op == LKS_SUM || op == LKS_AVG;
    if (n == 1) {
        t->loops->contribute[type](acc, leaf(t, low), scale_of(t, low), t->count);
    } else if (n == 2) {
        t->loops->pair[type][op](acc, leaf(t, low), scale_of(t, low), leaf(t, low + 1), scale_of(t, low + 1), t->count);
    } else if (n == 4 && is_sum && t->loops->quad_sum[type] != NULL) {
        const void *inputs[4];
        double scales[4];
        four_leaves(t, low, inputs, scales);
        t->loops->quad_sum[type](acc, inputs, scales, t->count);
    } else {
        block right;
        int half = lksi_split(n);
        climb(t, low, half, acc);
        climb(t, low + half, n - half, right.bytes);
        t->loops->combine[type][op](acc, right.bytes, t->count);
    }
}

static bool must_conclude(lks_type type, double divisor) { return divisor != 1 || lksi_accumulator_type(type) != type; }

static void run_twice(lksi_pair_twice_kernel kernel, const tree *t, size_t first, size_t count) {
    const tree part = {t->loops, t->reduction, first, count};
    size_t begin = first * lksi_type_nbytes(t->reduction->type);
    kernel((unsigned char *)t->reduction->outputs[0] + begin, (unsigned char *)t->reduction->outputs[1] + begin,
           leaf(&part, 0), scale_of(t, 0), leaf(&part, 1), scale_of(t, 1), count);
}

/* *n_before: elements of [first, first + count) before the first whole line of the outputs. Returns false if it differs
 * between the outputs. */
static bool find_lines(const tree *t, size_t *n_before) {
    const lksi_reduction *reduction = t->reduction;
    uintptr_t out = (uintptr_t)reduction->outputs[0];
    size_t each = lksi_type_nbytes(reduction->type), begin = t->first * each;
    for (int k = 1; k < reduction->n_outputs; k++)
        if ((out - (uintptr_t)reduction->outputs[k]) % LKSI_CACHE_LINE_NBYTES != 0) return false;
    *n_before = -(out + begin) % LKSI_CACHE_LINE_NBYTES / each;
    if (*n_before > t->count) *n_before = t->count;
    return true;
}

/* Two inputs and two outputs whose sums need no division or conversion. Returns false in other cases. Past the caches,
 * the elements before the first whole line are written through the caches. */
static bool reduce_pair(const tree *t, bool is_streamed) {
    const lksi_reduction *reduction = t->reduction;
    if (reduction->n_inputs != 2 || reduction->n_outputs != 2 || must_conclude(reduction->type, reduction->divisor))
        return false;
    lksi_pair_twice_kernel twice = t->loops->pair_twice[reduction->type][reduction->op];
    if (!is_streamed) {
        run_twice(twice, t, t->first, t->count);
        return true;
    }
    size_t n_before;
    if (!find_lines(t, &n_before)) return false;
    run_twice(twice, t, t->first, n_before);
    run_twice(t->loops->pair_twice_past[reduction->type][reduction->op], t, t->first + n_before, t->count - n_before);
    lksi_written_past_caches();
    return true;
}

/* The same for sums of four inputs with four outputs, past the caches. */
static bool reduce_quad_past(const tree *t) {
    const lksi_reduction *reduction = t->reduction;
    lksi_quad_each_kernel sum = t->loops->quad_sum_each_past[reduction->type];
    size_t each = lksi_type_nbytes(reduction->type), n_before;
    if (reduction->n_inputs != 4 || reduction->n_outputs != 4 || reduction->op != LKS_SUM || sum == NULL ||
        must_conclude(reduction->type, reduction->divisor) || !find_lines(t, &n_before))
        return false;
    lksi_reduce_range(reduction, t->first, n_before);
    const tree lines = {t->loops, reduction, t->first + n_before, t->count - n_before};
    const void *inputs[4];
    void *outputs[4];
    double scales[4];
    four_leaves(&lines, 0, inputs, scales);
    for (int k = 0; k < 4; k++) outputs[k] = (unsigned char *)reduction->outputs[k] + lines.first * each;
    sum(outputs, inputs, scales, lines.count);
    lksi_written_past_caches();
    return true;
}

/* Whether the partial results can be computed in the output: there is one, it is not an input, and the sums need no
 * division or conversion. */
static bool is_in_place(const lksi_reduction *reduction) {
    if (reduction->n_outputs != 1 || must_conclude(reduction->type, reduction->divisor)) return false;
    for (int i = 0; i < reduction->n_inputs; i++)
        if (reduction->inputs[i] == reduction->outputs[0]) return false;
    return lksi_is_aligned(reduction->outputs[0], reduction->type);
}

static void read_ahead(const lksi_reduction *reduction, size_t begin) {
    for (int k = 0; k < reduction->n_inputs; k++)
        for (size_t i = 0; i < STREAMED_NBYTES; i += LKSI_CACHE_LINE_NBYTES)
            __builtin_prefetch((const unsigned char *)reduction->inputs[k] + begin + LKSI_AHEAD_NBYTES + i);
}

void lksi_reduce_range(const lksi_reduction *reduction, size_t first, size_t count) {
    const lksi_reduce_kernels *loops = LKSI_ISA_PICK(lksi_reduce_loops);
    size_t each = lksi_type_nbytes(reduction->type);
    bool is_streamed = is_past_caches(reduction, count);
    size_t step =
        (is_streamed ? STREAMED_NBYTES : BLOCK_NBYTES) / lksi_type_nbytes(lksi_accumulator_type(reduction->type));
    const tree all = {loops, reduction, first, count};
    if (reduce_pair(&all, is_streamed) || (is_streamed && reduce_quad_past(&all))) return;
    bool is_made_there = !is_streamed && is_in_place(reduction);
    for (size_t end = first + count; first < end; first += step) {
        tree t = {loops, reduction, first, end - first < step ? end - first : step};
        if (is_streamed) read_ahead(reduction, first * each);
        if (is_made_there) {
            climb(&t, 0, reduction->n_inputs, (unsigned char *)reduction->outputs[0] + first * each);
            continue;
        }
        block acc, rounded;
        const unsigned char *result = acc.bytes;
        climb(&t, 0, reduction->n_inputs, acc.bytes);
        if (must_conclude(reduction->type, reduction->divisor)) {
            loops->conclude[reduction->type](rounded.bytes, acc.bytes, reduction->divisor, t.count);
            result = rounded.bytes;
        }
        for (int k = 0; k < reduction->n_outputs; k++)
            (is_streamed ? lksi_write_past_caches : write_cached)((unsigned char *)reduction->outputs[k] + first * each,
                                                                  result, t.count * each);
    }
    if (is_streamed) lksi_written_past_caches();
}

/* The contributions are accumulators of `type`, without scales. */
static void combine_all(void *out, const void *const *contributions, int n, size_t first, size_t count, lks_type type,
                        lks_operator op) {
    const lksi_reduce_kernels *loops = LKSI_ISA_PICK(lksi_reduce_loops);
    size_t begin = first * lksi_type_nbytes(type);
    if (n == 2) {
        const unsigned char *low = contributions[0], *high = contributions[1];
        loops->pair[type][op](out, low + begin, 1, high + begin, 1, count);
        return;
    }
    const lksi_reduction sum = {.inputs = contributions, .n_inputs = n, .type = type, .op = op, .divisor = 1};
    const tree t = {loops, &sum, first, count};
    climb(&t, 0, n, out);
}

void lksi_reduce_contributions(void *out, const void *const *contributions, int n, size_t first, size_t count,
                               lks_type type, lks_operator op, double divisor) {
    lks_type wide = lksi_accumulator_type(type);
    if (type == wide && divisor == 1 && lksi_is_aligned(out, type)) {
        combine_all(out, contributions, n, first, count, type, op);
        return;
    }
    block acc;
    combine_all(acc.bytes, contributions, n, first, count, wide, op);
    lksi_conclude(out, acc.bytes, divisor, count, type);
}

void lksi_reduce_many(void *out, const void *const *inputs, int n_inputs, size_t count, lks_type type,
                      lks_operator op) {
    lksi_reduce_range(&(lksi_reduction){.inputs = inputs,
                                        .n_inputs = n_inputs,
                                        .outputs = &out,
                                        .n_outputs = 1,
                                        .type = type,
                                        .op = op,
                                        .divisor = 1},
                      0, count);
}

/* Unaligned input is copied to an aligned block first, because the loops require alignment. */
static void contribute_unaligned(const lksi_reduce_kernels *loops, void *out, const void *in, double scale,
                                 size_t count, lks_type type) {
    size_t each = lksi_type_nbytes(type), wide = lksi_type_nbytes(lksi_accumulator_type(type));
    for (size_t first = 0, n; first < count; first += n) {
        block aligned;
        n = count - first < BLOCK_NBYTES / each ? count - first : BLOCK_NBYTES / each;
        lksi_copy(aligned.bytes, (const unsigned char *)in + first * each, n * each);
        loops->contribute[type]((unsigned char *)out + first * wide, aligned.bytes, scale, n);
    }
}

void lksi_contribute(void *out, const void *in, double scale, size_t count, lks_type type) {
    const lksi_reduce_kernels *loops = LKSI_ISA_PICK(lksi_reduce_loops);
    if (lksi_is_aligned(in, type))
        loops->contribute[type](out, in, scale, count);
    else
        contribute_unaligned(loops, out, in, scale, count, type);
}

void lksi_conclude(void *out, const void *contributions, double divisor, size_t count, lks_type type) {
    const lksi_reduce_kernels *loops = LKSI_ISA_PICK(lksi_reduce_loops);
    size_t each = lksi_type_nbytes(type), wide = lksi_type_nbytes(lksi_accumulator_type(type));
    if (!must_conclude(type, divisor)) {
        if (out != contributions) lksi_copy(out, contributions, count * each);
        return;
    }
    size_t step = BLOCK_NBYTES / wide;
    for (size_t first = 0; first < count; first += step) {
        size_t n = count - first < step ? count - first : step;
        block rounded;
        loops->conclude[type](rounded.bytes, (const unsigned char *)contributions + first * wide, divisor, n);
        lksi_copy((unsigned char *)out + first * each, rounded.bytes, n * each);
    }
}

/* --- which operator is defined on which type --- */

const char *lksi_operator_name(lks_operator op) {
    switch (op) {
#define OPERATOR_CASE(name, text)                                                                                      \
    case name:                                                                                                         \
        return text;
        LKS_OPERATOR_TABLE(OPERATOR_CASE)
#undef OPERATOR_CASE
    }
    return "?";
}

lks_status lksi_reduction_check(const char *operation, lks_type type, lks_operator op, double scale) {
    bool is_integer = type >= LKS_I8;
    if ((unsigned)op >= LKSI_N_OPERATORS)
        return lksi_error(LKS_ERR_ARGUMENT, "%s: %d is no operator", operation, (int)op);
    if (op == LKS_AVG ? is_integer : op >= LKS_BAND && !is_integer)
        return lksi_error(LKS_ERR_ARGUMENT, "%s: %s is not defined on %s", operation, lksi_operator_name(op),
                          lks_type_name(type));
    if (is_integer && scale != 1)
        return lksi_error(LKS_ERR_ARGUMENT, "%s: a scale (%g) is not defined on %s", operation, scale,
                          lks_type_name(type));
    return LKS_OK;
}

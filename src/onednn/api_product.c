/* Primitives of matrix products in oneDNN 2.x and 3.x, and whether this CPU has them in bf16. */
#include "onednn/api_internal.h"

/* --- instruction sets --- */

/* The bits of an instruction set include those of its subsets: AMX includes AVX512-BF16. */
static bool has(int isa) { return ((int)dnnl_get_effective_cpu_isa() & isa) == isa; }

const char *lksi_dnnl_isa_text(bool is_for_bf16) {
    static const struct {
        int isa;
        const char *text;
    } known[] = {{dnnl_cpu_isa_avx512_core_amx, "AMX"},
                 {dnnl_cpu_isa_avx512_core_bf16, "AVX-512 with BF16"},
                 {dnnl_cpu_isa_avx512_core, "AVX-512"},
                 {dnnl_cpu_isa_avx2, "AVX2"},
                 {dnnl_cpu_isa_avx, "AVX"},
                 {dnnl_cpu_isa_sse41, "SSE4.1"}};
    for (size_t i = is_for_bf16 ? 0 : 2; i < sizeof known / sizeof known[0]; i++)
        if (has(known[i].isa)) return known[i].text;
    return "no instruction set of x86 that oneDNN knows";
}

bool lksi_dnnl_has_avx512(void) { return has(dnnl_cpu_isa_avx512_core); }

lks_status lksi_dnnl_check_bf16(void) {
    if (has(dnnl_cpu_isa_avx512_core_bf16)) return LKS_OK;
    return lksi_error(
        LKS_ERR_UNSUPPORTED,
        "precision bf16 needs a CPU with AVX512-BF16 or AMX, this one has %s; device reference emulates it",
        lksi_dnnl_isa_text(true));
}

/* --- products --- */

/* The descriptors of three matrices and an optional bias. They have a leading axis of `count` unless that is 1. */
typedef struct product_request {
    lksi_dnnl_desc a, b, c, bias;
} product_request;

static dnnl_status_t describe(lksi_dnnl_desc *desc, dnnl_data_type_t type, int64_t count, int64_t rows, int64_t columns,
                              dnnl_format_tag_t pair, dnnl_format_tag_t triple) {
    bool is_single = count == 1;
    const int64_t dims[] = {count, rows, columns};
    return lksi_dnnl_desc_create(desc, type, is_single ? 2 : 3, dims + is_single, is_single ? pair : triple);
}

static dnnl_status_t describe_lying(lksi_dnnl_desc *desc, const lksi_dnnl_product *p, int64_t rows, int64_t columns,
                                    bool is_transposed) {
    return describe(desc, dnnl_f32, p->count, rows, columns, is_transposed ? dnnl_ba : dnnl_ab,
                    is_transposed ? dnnl_acb : dnnl_abc);
}

/* Rounded operands are copied anyway, so the primitive chooses their layout. Exact ones are used as they are stored. */
static dnnl_status_t describe_operands(product_request *r, const lksi_dnnl_product *p, dnnl_data_type_t type) {
    const dnnl_format_tag_t any = dnnl_format_tag_any;
    if (p->is_exact) {
        dnnl_status_t status = describe_lying(&r->a, p, p->m, p->k, p->transpose_a);
        return status != dnnl_success ? status : describe_lying(&r->b, p, p->k, p->n, p->transpose_b);
    }
    dnnl_status_t status = describe(&r->a, type, p->count, p->m, p->k, any, any);
    return status != dnnl_success ? status : describe(&r->b, type, p->count, p->k, p->n, any, any);
}

static dnnl_status_t fill_request(product_request *r, const lksi_dnnl_product *p, dnnl_data_type_t operands) {
    dnnl_status_t status = describe_operands(r, p, operands);
    if (status == dnnl_success) status = describe_lying(&r->c, p, p->m, p->n, false);
    if (status == dnnl_success && p->has_bias) status = describe(&r->bias, dnnl_f32, 1, 1, p->n, dnnl_ab, dnnl_abc);
    return status;
}

static void free_request(product_request *r) {
    lksi_dnnl_desc_destroy(&r->bias);
    lksi_dnnl_desc_destroy(&r->c);
    lksi_dnnl_desc_destroy(&r->b);
    lksi_dnnl_desc_destroy(&r->a);
}

#if LKSI_DNNL_IS_V3
static dnnl_status_t make_product(dnnl_primitive_desc_t *pd, const product_request *r, bool has_bias,
                                  const_dnnl_primitive_attr_t attr) {
    return dnnl_matmul_primitive_desc_create(pd, lksi_dnnl_engine(), r->a, r->b, has_bias ? r->bias : NULL, r->c, attr);
}
#else
static dnnl_status_t make_product(dnnl_primitive_desc_t *pd, const product_request *r, bool has_bias,
                                  const_dnnl_primitive_attr_t attr) {
    dnnl_matmul_desc_t operation;
    dnnl_status_t status = dnnl_matmul_desc_init(&operation, &r->a, &r->b, has_bias ? &r->bias : NULL, &r->c);
    return status != dnnl_success ? status : dnnl_primitive_desc_create(pd, &operation, attr, lksi_dnnl_engine(), NULL);
}
#endif

static dnnl_status_t make_desc(dnnl_primitive_desc_t *pd, const lksi_dnnl_product *p, dnnl_data_type_t operands) {
    product_request request = {0};
    dnnl_primitive_attr_t attr = NULL;
    dnnl_status_t status = lksi_dnnl_attr_create(&attr);
    if (status == dnnl_success) status = fill_request(&request, p, operands);
    if (status == dnnl_success) status = make_product(pd, &request, p->has_bias, attr);
    if (attr != NULL) dnnl_primitive_attr_destroy(attr);
    free_request(&request);
    return status;
}

/* Has operand i rounded, which may be stored transposed. */
static lks_status round_operand(lksi_dnnl_primitive *primitive, int i, const_dnnl_primitive_desc_t pd,
                                const lksi_dnnl_product *p) {
    lksi_dnnl_desc given = {0};
    lks_status status = lksi_dnnl_check(i == 0 ? describe_lying(&given, p, p->m, p->k, p->transpose_a)
                                               : describe_lying(&given, p, p->k, p->n, p->transpose_b),
                                        p->what);
    if (status == LKS_OK) status = lksi_dnnl_primitive_round(primitive, i, lksi_dnnl_desc_get(&given), pd);
    lksi_dnnl_desc_destroy(&given);
    return status;
}

lks_status lksi_dnnl_product_create(lksi_dnnl_primitive **primitive, const lksi_dnnl_product *product) {
    static const int arguments[] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_BIAS};
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t made = make_desc(&pd, product, product->is_exact ? dnnl_f32 : dnnl_bf16);
    if (made == dnnl_unimplemented) made = make_desc(&pd, product, dnnl_f32); /* f32 operands, rounded */
    LKS_TRY(lksi_dnnl_check(made, product->what));
    lksi_dnnl_primitive *created = NULL;
    lks_status status = lksi_dnnl_primitive_create(&created, pd, arguments, product->has_bias ? 4 : 3, product->what);
    for (int i = 0; !product->is_exact && i < 2 && status == LKS_OK; i++)
        status = round_operand(created, i, pd, product);
    dnnl_primitive_desc_destroy(pd);
    if (status == LKS_OK)
        *primitive = created;
    else
        lksi_dnnl_primitive_destroy(created);
    return status;
}

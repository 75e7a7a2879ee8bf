/* The C API of oneDNN 2.x and 3.x. Primitives are made at compile time and executed with the memory of the moment. */
#include "onednn/api_internal.h"

#include <pthread.h>

#define IS_V3 LKSI_DNNL_IS_V3

static dnnl_engine_t cpu_engine; /* one for the process; oneDNN's engines are thread-safe */
static pthread_once_t engine_once = PTHREAD_ONCE_INIT;

static void make_engine(void) {
    if (dnnl_engine_create(&cpu_engine, dnnl_cpu, 0) != dnnl_success) cpu_engine = NULL;
}

dnnl_engine_t lksi_dnnl_engine(void) {
    pthread_once(&engine_once, make_engine);
    return cpu_engine;
}

lks_status lksi_dnnl_check(dnnl_status_t status, const char *what) {
    if (status == dnnl_success) return LKS_OK;
    return lksi_error(status == dnnl_out_of_memory ? LKS_ERR_MEMORY : LKS_ERR_SYSTEM,
                      "oneDNN: %s failed with status %d", what, (int)status);
}

const char *lksi_dnnl_version_text(void) {
    static _Thread_local char text[32];
    const dnnl_version_t *version = dnnl_version();
    snprintf(text, sizeof text, "%d.%d.%d", version->major, version->minor, version->patch);
    return text;
}

lks_status lksi_dnnl_gemm(char trans_a, char trans_b, int64_t m, int64_t n, int64_t k, const float *a, int64_t lda,
                          const float *b, int64_t ldb, float beta, float *c, int64_t ldc) {
    return lksi_dnnl_check(dnnl_sgemm(trans_a, trans_b, m, n, k, 1.0f, a, lda, b, ldb, beta, c, ldc), "sgemm");
}

/* --- element-wise primitives --- */

struct lksi_dnnl_eltwise {
    dnnl_primitive_t primitive;
    dnnl_stream_t stream;
    dnnl_memory_t x, y;
};

#if IS_V3
typedef dnnl_memory_desc_t vector_desc;
static dnnl_status_t make_vector(vector_desc *desc, int64_t count) {
    return dnnl_memory_desc_create_with_tag(desc, 1, (dnnl_dims_t){count}, dnnl_f32, dnnl_a);
}
static void free_vector(vector_desc *desc) { dnnl_memory_desc_destroy(*desc); }
static dnnl_status_t make_memory(dnnl_memory_t *memory, const vector_desc *desc) {
    return dnnl_memory_create(memory, *desc, cpu_engine, DNNL_MEMORY_NONE);
}
static dnnl_status_t make_forward(dnnl_primitive_desc_t *pd, dnnl_alg_kind_t kind, const vector_desc *desc) {
    return dnnl_eltwise_forward_primitive_desc_create(pd, cpu_engine, dnnl_forward_training, kind, *desc, *desc, 0, 0,
                                                      NULL);
}
#else
typedef dnnl_memory_desc_t vector_desc;
static dnnl_status_t make_vector(vector_desc *desc, int64_t count) {
    return dnnl_memory_desc_init_by_tag(desc, 1, (dnnl_dims_t){count}, dnnl_f32, dnnl_a);
}
static void free_vector(vector_desc *desc) { (void)desc; }
static dnnl_status_t make_memory(dnnl_memory_t *memory, const vector_desc *desc) {
    return dnnl_memory_create(memory, desc, cpu_engine, DNNL_MEMORY_NONE);
}
static dnnl_status_t make_forward(dnnl_primitive_desc_t *pd, dnnl_alg_kind_t kind, const vector_desc *desc) {
    dnnl_eltwise_desc_t operation;
    dnnl_status_t status = dnnl_eltwise_forward_desc_init(&operation, dnnl_forward_training, kind, desc, 0, 0);
    return status != dnnl_success ? status : dnnl_primitive_desc_create(pd, &operation, NULL, cpu_engine, NULL);
}
#endif

static dnnl_status_t make_primitive(lksi_dnnl_eltwise *eltwise, lksi_op op, const vector_desc *desc) {
    dnnl_primitive_desc_t pd;
    dnnl_status_t status = make_forward(&pd, op == LKSI_OP_TANH ? dnnl_eltwise_tanh : dnnl_eltwise_logistic, desc);
    if (status != dnnl_success) return status;
    status = dnnl_primitive_create(&eltwise->primitive, pd);
    dnnl_primitive_desc_destroy(pd);
    return status;
}

lks_status lksi_dnnl_eltwise_create(lksi_dnnl_eltwise **eltwise, lksi_op op, int64_t count) {
    pthread_once(&engine_once, make_engine);
    lksi_dnnl_eltwise *created = lksi_alloc(sizeof *created);
    if (created == NULL) return LKS_ERR_MEMORY;
    vector_desc desc;
    dnnl_status_t status = make_vector(&desc, count);
    if (status == dnnl_success) {
        status = make_primitive(created, op, &desc);
        if (status == dnnl_success) status = dnnl_stream_create(&created->stream, cpu_engine, dnnl_stream_in_order);
        if (status == dnnl_success) status = make_memory(&created->x, &desc);
        if (status == dnnl_success) status = make_memory(&created->y, &desc);
        free_vector(&desc);
    }
    if (status != dnnl_success) {
        lksi_dnnl_eltwise_destroy(created);
        return lksi_dnnl_check(status, lksi_op_name(op));
    }
    *eltwise = created;
    return LKS_OK;
}

void lksi_dnnl_eltwise_destroy(lksi_dnnl_eltwise *eltwise) {
    if (eltwise == NULL) return;
    if (eltwise->y != NULL) dnnl_memory_destroy(eltwise->y);
    if (eltwise->x != NULL) dnnl_memory_destroy(eltwise->x);
    if (eltwise->stream != NULL) dnnl_stream_destroy(eltwise->stream);
    if (eltwise->primitive != NULL) dnnl_primitive_destroy(eltwise->primitive);
    lksi_free(eltwise);
}

static dnnl_status_t point_at(dnnl_memory_t memory, const float *data) {
    return dnnl_memory_set_data_handle(memory, (void *)(uintptr_t)data); /* oneDNN has no const handles */
}

lks_status lksi_dnnl_eltwise_run(lksi_dnnl_eltwise *eltwise, const float *x, float *y) {
    dnnl_exec_arg_t arguments[] = {{DNNL_ARG_SRC, eltwise->x}, {DNNL_ARG_DST, eltwise->y}};
    dnnl_status_t status = point_at(eltwise->x, x);
    if (status == dnnl_success) status = point_at(eltwise->y, y);
    if (status == dnnl_success) status = dnnl_primitive_execute(eltwise->primitive, eltwise->stream, 2, arguments);
    return lksi_dnnl_check(status, "eltwise");
}

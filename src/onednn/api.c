/* The C API of oneDNN 2.x and 3.x: engine, errors, version and sgemm. Primitives are created at compile time. Each run
 * sets their data pointers. */
#include "base/isa.h"
#include "base/signals.h"
#include "onednn/api_internal.h"

#include <pthread.h>

static dnnl_engine_t cpu_engine; /* one per process; oneDNN's engines are thread-safe */
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
    dnnl_status_t status = dnnl_success;
    int64_t most = lksi_isa_level() == 2 ? LKSI_CHAIN : k;
    lksi_signals_hold();
    for (int64_t done = 0; done < k && status == dnnl_success; done += most) {
        int64_t n_terms = k - done < most ? k - done : most;
        status = dnnl_sgemm(trans_a, trans_b, m, n, n_terms, 1.0f, trans_a == 'N' ? a + done : a + done * lda, lda,
                            trans_b == 'N' ? b + done * ldb : b + done, ldb, done == 0 ? beta : 1.0f, c, ldc);
    }
    lksi_signals_release();
    return lksi_dnnl_check(status, "sgemm");
}

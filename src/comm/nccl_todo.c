#include <lockstep/gpu.h>
#include "base/base.h"
static lks_status no(void) { return lksi_error(LKS_ERR_UNSUPPORTED, "todo"); }
LKS_API int lks_gpu_can_capture(const lks_gpu_group *g) { (void)g; return 0; }
lks_status lks_gpu_all_reduce(lks_gpu_group *g, const void *in, void *out, size_t c, lks_type t, lks_operator o, lks_order r, void *s) { (void)g,(void)in,(void)out,(void)c,(void)t,(void)o,(void)r,(void)s; return no(); }
lks_status lks_gpu_reduce_scatter(lks_gpu_group *g, const void *in, void *out, size_t c, lks_type t, lks_operator o, lks_order r, void *s) { (void)g,(void)in,(void)out,(void)c,(void)t,(void)o,(void)r,(void)s; return no(); }
uint64_t lks_gpu_fingerprint(const lks_gpu_group *g) { (void)g; return 0; }
lks_status lks_gpu_all_gather(lks_gpu_group *g, const void *in, void *out, size_t c, lks_type t, void *s) { (void)g,(void)in,(void)out,(void)c,(void)t,(void)s; return no(); }
lks_status lks_gpu_reserve(lks_gpu_group *g, size_t n) { (void)g,(void)n; return no(); }
lks_status lks_gpu_wait(lks_gpu_group *g, void *s) { (void)g,(void)s; return no(); }
void lks_gpu_group_destroy(lks_gpu_group *g) { (void)g; }
lks_status lks_gpu_group_create(lks_gpu_group **g, lks_group *group, const lks_gpu_group_options *o) { (void)g,(void)group,(void)o; return no(); }

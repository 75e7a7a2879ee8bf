/* Loops for the widest instruction set of this machine, chosen at run time.
 *
 * A file NAME_isa.c is compiled once per instruction set, with LKSI_ISA set to base, avx2 or avx512. It exports one
 * table, named LKSI_ISA_NAME(lksi_x_kernels). Its users choose the table with LKSI_ISA_PICK(lksi_x_kernels).
 * Contraction of a*b+c is off. Loops are element-wise or add in a fixed number of lanes. So all instruction sets give
 * the same bits, with two exceptions: onednn/libm_isa.c, which gives those of the C library, and onednn/skinny_isa.c,
 * which uses fused multiply-adds explicitly.
 */
#ifndef LKSI_ISA_H
#define LKSI_ISA_H

#include "base/base.h"

#include <stdatomic.h>

#define LKSI_ISA_PASTE(name, isa) name##_##isa
#define LKSI_ISA_EXPAND(name, isa) LKSI_ISA_PASTE(name, isa)
#define LKSI_ISA_NAME(name) LKSI_ISA_EXPAND(name, LKSI_ISA)

#if defined(__x86_64__)
#define LKSI_ISA_DECLARE(type, name) extern const type name##_base, name##_avx2, name##_avx512
#define LKSI_ISA_PICK(name)                                                                                            \
    (lksi_isa_level() == 2 ? &name##_avx512 : lksi_isa_level() == 1 ? &name##_avx2 : &name##_base)
#else
#define LKSI_ISA_DECLARE(type, name) extern const type name##_base
#define LKSI_ISA_PICK(name) (&name##_base)
#endif

extern atomic_int lksi_isa_known; /* -1: not detected yet */
int lksi_isa_detect(void);
/* 0: base. 1: AVX2, FMA, F16C. 2: AVX-512 F, BW, DQ, VL. LOCKSTEP_ISA=base|avx2 lowers it (tests compare the bits). */
static inline int lksi_isa_level(void) {
    int known = atomic_load_explicit(&lksi_isa_known, memory_order_relaxed);
    return known >= 0 ? known : lksi_isa_detect();
}
/* Errors: LKS_ERR_ARGUMENT: LOCKSTEP_ISA names no instruction set. */
lks_status lksi_isa_check(void);
const char *lksi_isa_name(void); /* "base", "avx2", "avx512" */

#endif

/* SHA-256 by the CPU's own instructions (x86's SHA extensions): four times as fast as code without them, which counts
 * where a checkpoint is hashed beside training. */
#ifndef LKSI_SHA256_H
#define LKSI_SHA256_H

#include "base/base.h"

/* Whether this CPU has them. LOCKSTEP_ISA=base: it is said to have none. */
bool lksi_sha256_has_instructions(void);

/* The compression function, over `n_blocks` blocks of 64 bytes; `state` is the eight words of the standard. */
void lksi_sha256_compress(uint32_t state[8], const unsigned char *blocks, size_t n_blocks);

#endif

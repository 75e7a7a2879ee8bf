/* The CPU device on oneDNN, and what `lockstep info` says of it. */
#ifndef LKSI_ONEDNN_H
#define LKSI_ONEDNN_H

#include "device/device.h"

/* "2.6.3" */
const char *lksi_dnnl_version_text(void);

#endif

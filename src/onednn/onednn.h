/* What `lockstep info` prints about oneDNN. */
#ifndef LKSI_ONEDNN_H
#define LKSI_ONEDNN_H

#include "device/device.h"

/* The version of oneDNN, such as "2.6.3". */
const char *lksi_dnnl_version_text(void);

#endif

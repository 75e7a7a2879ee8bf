/* libFuzzer target: any bytes as a batch file of CIFAR-10's binary version. Labels of accepted files are 0 to 9. */
#include "data/data_internal.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes);

/* The first byte gives the expected number of records: 0, 1 or 2. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes) {
    if (nbytes == 0) return 0;
    int64_t n_records = data[0] % 3;
    uint8_t pixels[2 * LKSI_CIFAR10_N_PIXELS];
    int32_t labels[2];
    const lksi_file file = {.path = "batch", .data = data + 1, .nbytes = nbytes - 1};
    if (lksi_cifar10_parse_binary(&file, n_records, pixels, labels) != LKS_OK) return 0;
    for (int64_t i = 0; i < n_records; i++)
        if (labels[i] < 0 || labels[i] > 9) abort();
    return 0;
}

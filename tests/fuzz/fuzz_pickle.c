/* libFuzzer target: any bytes as a batch file of CIFAR-10's python version. Labels of accepted files are 0 to 9, and a
 * small file takes little memory. */
#include "data/data_internal.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes) {
    uint8_t pixels[LKSI_CIFAR10_N_PIXELS];
    int32_t label;
    lksi_pickle pickle;
    const lksi_file file = {.path = "batch", .data = data, .nbytes = nbytes};
    (void)lksi_pickle_parse(&file, &pickle);
    if (lks_memory_nbytes() > (1 << 20) + 256 * (int64_t)nbytes) abort();
    lksi_pickle_destroy(&pickle);
    if (lksi_cifar10_parse_python(&file, 1, pixels, &label) == LKS_OK && (label < 0 || label > 9)) abort();
    if (lks_memory_nbytes() != 0) abort();
    return 0;
}

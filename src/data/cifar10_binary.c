/* Parser for a batch file of CIFAR-10's binary version. A record is a label byte and 3072 pixel bytes (32 x 32 red,
 * then green, then blue). Records follow each other without padding. */
#include "data/data_internal.h"

#include <string.h>

enum { RECORD_NBYTES = 1 + LKSI_CIFAR10_N_PIXELS };

lks_status lksi_cifar10_parse_binary(const lksi_file *file, int64_t n_records, uint8_t *pixels, int32_t *labels) {
    const uint8_t *record = file->data;
    size_t expected = (size_t)n_records * RECORD_NBYTES;
    if (file->nbytes != expected)
        return lksi_error(LKS_ERR_FORMAT, "%s: %s: %zu bytes, that is %zu records and %zu bytes; %lld records expected",
                          file->path, file->nbytes < expected ? "truncated" : "too long", file->nbytes,
                          file->nbytes / RECORD_NBYTES, file->nbytes % RECORD_NBYTES, (long long)n_records);
    for (int64_t i = 0; i < n_records; i++, record += RECORD_NBYTES)
        if (record[0] >= LKSI_CIFAR10_N_CLASSES)
            return lksi_error(LKS_ERR_FORMAT, "%s: record %lld: label %d, over 9", file->path, (long long)i, record[0]);
    record = file->data;
    for (int64_t i = 0; i < n_records; i++, record += RECORD_NBYTES) {
        labels[i] = record[0];
        memcpy(pixels + i * LKSI_CIFAR10_N_PIXELS, record + 1, LKSI_CIFAR10_N_PIXELS);
    }
    return LKS_OK;
}

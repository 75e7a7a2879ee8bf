/* libFuzzer target: any bytes as a safetensors file. The entries of an accepted file cover the data without gap or
 * overlap, their counts match their bytes, and they are found by name. */
#include "train/safetensors.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes);

static void check(const lksi_safetensors *file) {
    uint64_t covered = 0;
    for (size_t i = 0; i < file->n_entries; i++) {
        const lksi_safetensors_entry *entry = &file->entries[i];
        uint64_t count = 1;
        for (int d = 0; d < entry->n_dims; d++) count *= (uint64_t)entry->dims[d];
        if (count != (uint64_t)entry->count || entry->end > file->data_nbytes || entry->begin > entry->end) abort();
        if (entry->end - entry->begin != count * entry->element_nbytes) abort();
        covered += entry->end - entry->begin;
        if (lksi_safetensors_find(file, entry->name) != entry) abort();
    }
    if (covered != file->data_nbytes) abort();
    if (file->sha256[0] != '\0' && strlen(file->sha256) != 64) abort();
    if (file->header_sha256[0] != '\0' && strlen(file->header_sha256) != 64) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes) {
    uint64_t header_nbytes;
    if (lksi_safetensors_header_nbytes("file", data, nbytes, &header_nbytes) != LKS_OK) return 0;
    lksi_safetensors *file = lksi_alloc(sizeof *file);
    file->descriptor = -1;
    file->path = lksi_strdup("file");
    file->data_nbytes = nbytes - 8 - header_nbytes;
    char *header = malloc((size_t)header_nbytes); /* exactly sized, so that a sanitizer detects reads past its end */
    memcpy(header, data + 8, (size_t)header_nbytes);
    if (lksi_safetensors_parse(file, header, (size_t)header_nbytes) == LKS_OK) check(file);
    free(header);
    lksi_safetensors_close(file);
    if (lks_memory_nbytes() != 0) abort();
    return 0;
}

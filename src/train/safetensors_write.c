/* Writing safetensors files. The hash precedes the data that it covers, so it is filled in at the end. */
#include "train/safetensors.h"

#include <cjson/cJSON.h>
#include <string.h>

#define NO_HASH "0000000000000000000000000000000000000000000000000000000000000000"

struct lksi_safetensors_writer {
    cJSON *header;
    uint64_t declared_nbytes;
    lksi_new_file *file;
    uint64_t hash_offset; /* of the hash digits in the file */
    lksi_sha256 *hash;
};

/* cJSON returns NULL only if memory is exhausted. */
static lks_status made(const void *item) {
    return item != NULL ? LKS_OK : lksi_error(LKS_ERR_MEMORY, "out of memory for a safetensors header");
}

lks_status lksi_safetensors_writer_create(lksi_safetensors_writer **writer) {
    lksi_safetensors_writer *created = lksi_alloc(sizeof *created);
    if (created == NULL) return LKS_ERR_MEMORY;
    created->header = cJSON_CreateObject();
    lks_status status = made(created->header);
    if (status == LKS_OK) { /* __metadata__ comes first, so that the first match of NO_HASH is its sha256 */
        cJSON *metadata = cJSON_AddObjectToObject(created->header, "__metadata__");
        status = made(cJSON_AddStringToObject(metadata, "format", "pt")); /* readers for PyTorch require it */
        if (status == LKS_OK) status = made(cJSON_AddStringToObject(metadata, "sha256", NO_HASH));
    }
    if (status == LKS_OK)
        *writer = created;
    else
        lksi_safetensors_writer_destroy(created);
    return status;
}

static const char *dtype_of(lks_type type) {
    return type == LKS_F32 ? "F32" : type == LKS_F64 ? "F64" : type == LKS_U8 ? "U8" : "I64";
}

lks_status lksi_safetensors_declare(lksi_safetensors_writer *writer, const char *name, lks_type type, int n_dims,
                                    const int64_t *dims) {
    uint64_t nbytes = lks_type_nbytes(type);
    cJSON *entry = cJSON_AddObjectToObject(writer->header, name);
    LKS_TRY(made(cJSON_AddStringToObject(entry, "dtype", dtype_of(type))));
    cJSON *shape = cJSON_AddArrayToObject(entry, "shape");
    for (int i = 0; i < n_dims; i++) {
        nbytes *= (uint64_t)dims[i];
        if (!cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)dims[i]))) return made(NULL);
    }
    cJSON *offsets = cJSON_AddArrayToObject(entry, "data_offsets");
    for (int i = 0; i < 2; i++) {
        if (!cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)writer->declared_nbytes))) return made(NULL);
        if (i == 0) writer->declared_nbytes += nbytes;
    }
    return LKS_OK;
}

/* Pads the header with blanks to whole pages, so that the data can be mapped and can be written with direct I/O. */
static lks_status write_header(lksi_safetensors_writer *writer, const char *text) {
    enum { PAGE_NBYTES = 4096 };
    unsigned char length[8];
    char blanks[PAGE_NBYTES];
    const size_t text_nbytes = strlen(text), over = (sizeof length + text_nbytes) % PAGE_NBYTES;
    const size_t padding = over == 0 ? 0 : PAGE_NBYTES - over;
    const uint64_t nbytes = text_nbytes + padding;
    memset(blanks, ' ', padding);
    for (int i = 0; i < 8; i++) length[i] = (unsigned char)(nbytes >> (8 * i));
    writer->hash_offset = 8 + (uint64_t)(strstr(text, NO_HASH) - text);
    LKS_TRY(lksi_new_file_write(writer->file, length, sizeof length));
    LKS_TRY(lksi_new_file_write(writer->file, text, text_nbytes));
    return lksi_new_file_write(writer->file, blanks, padding);
}

lks_status lksi_safetensors_begin(lksi_safetensors_writer *writer, const char *path) {
    LKS_TRY(lksi_sha256_create(&writer->hash));
    LKS_TRY(lksi_new_file_create(&writer->file, path));
    char *text = cJSON_PrintUnformatted(writer->header);
    LKS_TRY(made(text));
    lks_status status = write_header(writer, text);
    cJSON_free(text);
    return status;
}

lks_status lksi_safetensors_append(lksi_safetensors_writer *writer, const void *data, size_t nbytes) {
    lksi_sha256_update(writer->hash, data, nbytes);
    return lksi_new_file_write(writer->file, data, nbytes);
}

lks_status lksi_safetensors_finish(lksi_safetensors_writer *writer) {
    char hex[65];
    lksi_sha256_finish_hex(writer->hash, hex);
    writer->hash = NULL;
    LKS_TRY(lksi_new_file_overwrite(writer->file, writer->hash_offset, hex, 64));
    lksi_new_file *file = writer->file;
    writer->file = NULL;
    return lksi_new_file_commit(file);
}

void lksi_safetensors_writer_destroy(lksi_safetensors_writer *writer) {
    char hex[65];
    if (writer == NULL) return;
    if (writer->hash != NULL) lksi_sha256_finish_hex(writer->hash, hex);
    lksi_new_file_discard(writer->file);
    cJSON_Delete(writer->header);
    lksi_free(writer);
}

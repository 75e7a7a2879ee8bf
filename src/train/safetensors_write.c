/* Writing safetensors files. The hash of the data precedes the data, so it is filled in at the end. */
#include "train/safetensors.h"

#include <cjson/cJSON.h>
#include <string.h>

#define NO_HASH "0000000000000000000000000000000000000000000000000000000000000000"

struct lksi_safetensors_writer {
    cJSON *header;
    uint64_t declared_nbytes;
    lksi_new_file *file;
    uint64_t hash_offset; /* of the digits of the data's hash in the file */
    lksi_sha256 *hash;    /* of the data */
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
    if (status == LKS_OK) { /* __metadata__ comes first, so that the first two matches of NO_HASH are its hashes */
        cJSON *metadata = cJSON_AddObjectToObject(created->header, "__metadata__");
        status = made(cJSON_AddStringToObject(metadata, "format", "pt")); /* readers for PyTorch require it */
        if (status == LKS_OK) status = made(cJSON_AddStringToObject(metadata, "sha256", NO_HASH));
        if (status == LKS_OK) status = made(cJSON_AddStringToObject(metadata, "header_sha256", NO_HASH));
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

/* `header` is a string with zeros as the digits of both hashes. Fills in its own. */
static lks_status fill_in_header_hash(lksi_safetensors_writer *writer, char *header, size_t nbytes) {
    char hex[65], *of_data = strstr(header, NO_HASH), *of_header = strstr(of_data + 64, NO_HASH);
    writer->hash_offset = 8 + (uint64_t)(of_data - header);
    LKS_TRY(lksi_safetensors_hash_header(header, nbytes, hex));
    memcpy(of_header, hex, 64);
    return LKS_OK;
}

/* Pads the header with blanks to whole pages, so that the data can be mapped and can be written with direct I/O. */
static lks_status write_header(lksi_safetensors_writer *writer, const char *text) {
    enum { PAGE_NBYTES = 4096 };
    const size_t text_nbytes = strlen(text), over = (8 + text_nbytes) % PAGE_NBYTES;
    const size_t nbytes = text_nbytes + (over == 0 ? 0 : PAGE_NBYTES - over);
    char *bytes = lksi_alloc(8 + nbytes + 1); /* a string */
    if (bytes == NULL) return LKS_ERR_MEMORY;
    for (int i = 0; i < 8; i++) bytes[i] = (char)((uint64_t)nbytes >> (8 * i));
    memset(bytes + 8, ' ', nbytes);
    memcpy(bytes + 8, text, text_nbytes);
    lks_status status = fill_in_header_hash(writer, bytes + 8, nbytes);
    if (status == LKS_OK) status = lksi_new_file_write(writer->file, bytes, 8 + nbytes);
    lksi_free(bytes);
    return status;
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

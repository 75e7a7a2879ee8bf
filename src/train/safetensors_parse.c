/* Parser for the header of a safetensors file. Source: the format description in the README of the reference
 * implementation. */
#include "train/safetensors.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const uint64_t MAX_HEADER_NBYTES = 100u << 20; /* the limit of the reference implementation */
/* MAX_NODES limits the JSON nodes, because cJSON allocates about 64 bytes for each. Doubles are exact up to 2^53. */
enum { MAX_NODES = 4000000, MAX_EXACT_BITS = 53 };

typedef struct known_type {
    const char *name;
    size_t nbytes;
    bool has_type; /* whether the library has this type */
    lks_type type;
} known_type;

static const known_type known_types[] = {
    {"F64", 8, true, LKS_F64},        {"F32", 4, true, LKS_F32},        {"F16", 2, true, LKS_F16},
    {"I64", 8, true, LKS_I64},        {"BF16", 2, true, LKS_BF16},      {"I32", 4, true, LKS_I32},
    {"I8", 1, true, LKS_I8},          {"U8", 1, true, LKS_U8},          {.name = "U64", .nbytes = 8},
    {.name = "U32", .nbytes = 4},     {.name = "I16", .nbytes = 2},     {.name = "U16", .nbytes = 2},
    {.name = "F8_E4M3", .nbytes = 1}, {.name = "F8_E5M2", .nbytes = 1}, {.name = "BOOL", .nbytes = 1}};

lks_status lksi_safetensors_header_nbytes(const char *path, const void *first_bytes, uint64_t file_nbytes,
                                          uint64_t *header_nbytes) {
    const unsigned char *bytes = first_bytes;
    if (file_nbytes < 8)
        return lksi_error(LKS_ERR_FORMAT, "%s: not a safetensors file: it has %llu bytes", path,
                          (unsigned long long)file_nbytes);
    uint64_t nbytes = 0;
    for (int i = 7; i >= 0; i--) nbytes = nbytes << 8 | bytes[i];
    if (nbytes < 2 || nbytes > MAX_HEADER_NBYTES)
        return lksi_error(LKS_ERR_FORMAT, "%s: not a safetensors file: its header would have %llu bytes", path,
                          (unsigned long long)nbytes);
    if (nbytes > file_nbytes - 8)
        return lksi_error(LKS_ERR_FORMAT, "%s: truncated: a header of %llu bytes in a file of %llu", path,
                          (unsigned long long)nbytes, (unsigned long long)file_nbytes);
    *header_nbytes = nbytes;
    return LKS_OK;
}

/* Names are C strings, which a NUL character would end early. */
static bool is_escaped_nul(const char *at, size_t n_left) { return n_left >= 6 && memcmp(at, "\\u0000", 6) == 0; }

/* Checks the text before the JSON parser allocates anything for it. */
static lks_status check_text(const char *path, const char *header, size_t nbytes) {
    size_t n_nodes = 0;
    for (size_t i = 0; i < nbytes; i++) {
        unsigned char c = (unsigned char)header[i];
        if (c < ' ' && c != '\t' && c != '\n' && c != '\r')
            return lksi_error(LKS_ERR_FORMAT, "%s: not a safetensors file: byte %zu of its header is %d", path, i, c);
        if (is_escaped_nul(header + i, nbytes - i))
            return lksi_error(LKS_ERR_FORMAT, "%s: not a safetensors file: a zero character at byte %zu of its header",
                              path, i);
        if (c == '\\') i++; /* skips the escaped character */
        n_nodes += c == ',' || c == ':' || c == '[' || c == '{';
    }
    if (header[0] != '{')
        return lksi_error(LKS_ERR_FORMAT, "%s: not a safetensors file: its header begins with '%c'", path, header[0]);
    if (n_nodes > MAX_NODES)
        return lksi_error(LKS_ERR_FORMAT, "%s: its header has more than %d parts", path, MAX_NODES);
    return LKS_OK;
}

/* --- one entry --- */

static lks_status bad_entry(const lksi_safetensors *file, const char *name, const char *what) {
    return lksi_error(LKS_ERR_FORMAT, "%s: entry '%.200s': %s", file->path, name, what);
}

static bool is_whole(const cJSON *item) {
    return cJSON_IsNumber(item) && item->valuedouble >= 0 && floor(item->valuedouble) == item->valuedouble;
}

/* cJSON stores numbers as doubles, which represent integers up to 2^53 exactly. */
static bool as_integer(const cJSON *item, uint64_t *value) {
    if (!is_whole(item) || item->valuedouble > ldexp(1, MAX_EXACT_BITS)) return false;
    *value = (uint64_t)item->valuedouble;
    return true;
}

static bool find_dtype(const char *text, lksi_safetensors_entry *entry) {
    for (size_t i = 0; i < sizeof known_types / sizeof *known_types; i++) {
        const known_type *known = &known_types[i];
        if (strcmp(text, known->name) != 0) continue;
        entry->dtype = known->name;
        entry->element_nbytes = known->nbytes;
        entry->has_type = known->has_type;
        entry->type = known->type;
        return true;
    }
    return false;
}

static lks_status parse_shape(const lksi_safetensors *file, const cJSON *shape, lksi_safetensors_entry *entry) {
    if (!cJSON_IsArray(shape)) return bad_entry(file, entry->name, "its shape is not a list");
    uint64_t count = 1;
    const cJSON *item;
    cJSON_ArrayForEach(item, shape) {
        uint64_t dim;
        if (entry->n_dims == LKSI_SAFETENSORS_MAX_DIMS) return bad_entry(file, entry->name, "more than 8 dimensions");
        if (!is_whole(item)) return bad_entry(file, entry->name, "a dimension is not a whole number");
        if (!as_integer(item, &dim)) return bad_entry(file, entry->name, "more elements than any file holds");
        if (dim > 0 && count > ((uint64_t)1 << MAX_EXACT_BITS) / dim)
            return bad_entry(file, entry->name, "more elements than any file holds");
        entry->dims[entry->n_dims++] = (int64_t)dim;
        count *= dim;
    }
    entry->count = (int64_t)count;
    return LKS_OK;
}

static lks_status parse_offsets(const lksi_safetensors *file, const cJSON *offsets, lksi_safetensors_entry *entry) {
    if (!cJSON_IsArray(offsets) || cJSON_GetArraySize(offsets) != 2 || !is_whole(cJSON_GetArrayItem(offsets, 0)) ||
        !is_whole(cJSON_GetArrayItem(offsets, 1)))
        return bad_entry(file, entry->name, "its data_offsets are not two whole numbers");
    if (!as_integer(cJSON_GetArrayItem(offsets, 0), &entry->begin) ||
        !as_integer(cJSON_GetArrayItem(offsets, 1), &entry->end))
        return bad_entry(file, entry->name, "its data_offsets lie behind the end of any file");
    if (entry->end < entry->begin) return bad_entry(file, entry->name, "its data_offsets end before they begin");
    if (entry->end - entry->begin != (uint64_t)entry->count * entry->element_nbytes)
        return lksi_error(LKS_ERR_FORMAT, "%s: entry '%.200s': %llu bytes for %lld elements of %s", file->path,
                          entry->name, (unsigned long long)(entry->end - entry->begin), (long long)entry->count,
                          entry->dtype);
    return LKS_OK;
}

static bool has_control_character(const char *name) {
    for (; *name != '\0'; name++)
        if ((unsigned char)*name < ' ' || *name == 0x7f) return true;
    return false;
}

static lks_status parse_entry(lksi_safetensors *file, const cJSON *item) {
    lksi_safetensors_entry *entry = &file->entries[file->n_entries];
    if (has_control_character(item->string))
        return lksi_error(LKS_ERR_FORMAT, "%s: the name of entry %zu has a control character", file->path,
                          file->n_entries + 1);
    entry->name = lksi_strdup(item->string);
    if (entry->name == NULL) return LKS_ERR_MEMORY;
    file->n_entries++;
    const cJSON *dtype = cJSON_GetObjectItemCaseSensitive(item, "dtype");
    if (!cJSON_IsObject(item) || cJSON_GetArraySize(item) != 3)
        return bad_entry(file, entry->name, "it is not dtype, shape and data_offsets");
    if (!cJSON_IsString(dtype) || !find_dtype(dtype->valuestring, entry))
        return bad_entry(file, entry->name, "its dtype is unknown");
    LKS_TRY(parse_shape(file, cJSON_GetObjectItemCaseSensitive(item, "shape"), entry));
    return parse_offsets(file, cJSON_GetObjectItemCaseSensitive(item, "data_offsets"), entry);
}

static lks_status parse_metadata(lksi_safetensors *file, const cJSON *metadata) {
    const cJSON *item;
    if (!cJSON_IsObject(metadata))
        return lksi_error(LKS_ERR_FORMAT, "%s: its __metadata__ is not an object", file->path);
    cJSON_ArrayForEach(item, metadata) {
        if (!cJSON_IsString(item))
            return lksi_error(LKS_ERR_FORMAT, "%s: its __metadata__ has something that is no string", file->path);
        bool has_digits = strlen(item->valuestring) == 64;
        if (strcmp(item->string, "header_sha256") == 0 && has_digits)
            memcpy(file->header_sha256, item->valuestring, 65);
        if (strcmp(item->string, "sha256") != 0) continue;
        if (!has_digits) return lksi_error(LKS_ERR_FORMAT, "%s: its sha256 does not have 64 digits", file->path);
        memcpy(file->sha256, item->valuestring, 65);
    }
    return LKS_OK;
}

/* --- all entries --- */

static int by_offset(const void *a, const void *b) {
    const lksi_safetensors_entry *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const lksi_safetensors_entry *)a)->name, ((const lksi_safetensors_entry *)b)->name);
}

static void sort(lksi_safetensors *file, int (*order)(const void *, const void *)) {
    if (file->n_entries > 0) qsort(file->entries, file->n_entries, sizeof *file->entries, order);
}

static lks_status check_cover(lksi_safetensors *file) {
    uint64_t covered = 0;
    sort(file, by_offset);
    for (size_t i = 0; i < file->n_entries; i++) {
        const lksi_safetensors_entry *entry = &file->entries[i];
        if (entry->begin != covered)
            return lksi_error(LKS_ERR_FORMAT, "%s: entry '%.200s' begins at byte %llu of the data, not at %llu",
                              file->path, entry->name, (unsigned long long)entry->begin, (unsigned long long)covered);
        covered = entry->end;
        if (covered > file->data_nbytes)
            return lksi_error(LKS_ERR_FORMAT, "%s: truncated: entry '%.200s' ends at byte %llu of %llu bytes of data",
                              file->path, entry->name, (unsigned long long)covered,
                              (unsigned long long)file->data_nbytes);
    }
    if (covered < file->data_nbytes)
        return lksi_error(LKS_ERR_FORMAT, "%s: %llu bytes behind its last entry", file->path,
                          (unsigned long long)(file->data_nbytes - covered));
    return LKS_OK;
}

static lks_status check_names(lksi_safetensors *file) {
    sort(file, by_name);
    for (size_t i = 1; i < file->n_entries; i++)
        if (strcmp(file->entries[i - 1].name, file->entries[i].name) == 0)
            return bad_entry(file, file->entries[i].name, "it is there twice");
    return LKS_OK;
}

static lks_status parse_all(lksi_safetensors *file, const cJSON *root) {
    int n_items = cJSON_GetArraySize(root), n_metadata = 0;
    const cJSON *item;
    if (!cJSON_IsObject(root))
        return lksi_error(LKS_ERR_FORMAT, "%s: not a safetensors file: its header is not an object", file->path);
    file->entries = lksi_alloc_array((size_t)n_items, sizeof *file->entries);
    if (file->entries == NULL) return LKS_ERR_MEMORY;
    cJSON_ArrayForEach(item, root) {
        if (strcmp(item->string, "__metadata__") != 0)
            LKS_TRY(parse_entry(file, item));
        else if (n_metadata++ > 0)
            return lksi_error(LKS_ERR_FORMAT, "%s: two __metadata__", file->path);
        else
            LKS_TRY(parse_metadata(file, item));
    }
    LKS_TRY(check_cover(file));
    return check_names(file);
}

lks_status lksi_safetensors_parse(lksi_safetensors *file, const char *header, size_t header_nbytes) {
    LKS_TRY(check_text(file->path, header, header_nbytes));
    const char *end = NULL;
    cJSON *root;
    LKS_TRY(lksi_json_parse(header, header_nbytes, &end, &root));
    if (root == NULL)
        return lksi_error(LKS_ERR_FORMAT, "%s: not a safetensors file: its header is not JSON from byte %lld on",
                          file->path, end != NULL ? (long long)(end - header) : 0);
    lks_status status = LKS_OK;
    for (; end < header + header_nbytes && status == LKS_OK; end++) /* writers pad the header with blanks */
        if (*end != ' ' && *end != '\n' && *end != '\t' && *end != '\r')
            status = lksi_error(LKS_ERR_FORMAT, "%s: its header has something behind its end", file->path);
    if (status == LKS_OK) status = parse_all(file, root);
    cJSON_Delete(root);
    return status;
}

const lksi_safetensors_entry *lksi_safetensors_find(const lksi_safetensors *file, const char *name) {
    size_t low = 0, high = file->n_entries;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(name, file->entries[middle].name);
        if (order == 0) return &file->entries[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

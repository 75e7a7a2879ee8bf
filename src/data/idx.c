/* Parser for IDX files: two zero bytes, the element type, the number of dimensions, a big-endian 32-bit size for each,
 * then the elements, row-major. All numbers are checked against the file's length before they are used. */
#include "data/data_internal.h"

enum { TYPE_U8 = 0x08 };

static int64_t read_u32(const uint8_t *bytes) {
    return (int64_t)bytes[0] << 24 | (int64_t)bytes[1] << 16 | (int64_t)bytes[2] << 8 | (int64_t)bytes[3];
}

static lks_status check_length(const char *path, size_t nbytes, size_t expected) {
    if (nbytes < expected)
        return lksi_error(LKS_ERR_FORMAT, "%s: truncated: %zu bytes, %zu expected", path, nbytes, expected);
    if (nbytes > expected)
        return lksi_error(LKS_ERR_FORMAT, "%s: too long: %zu bytes, %zu expected", path, nbytes, expected);
    return LKS_OK;
}

static lks_status check_magic(const char *path, const uint8_t *bytes, size_t nbytes, int n_dimensions) {
    if (nbytes < 4) return lksi_error(LKS_ERR_FORMAT, "%s: not an IDX file: only %zu bytes", path, nbytes);
    if (bytes[0] != 0 || bytes[1] != 0)
        return lksi_error(LKS_ERR_FORMAT, "%s: not an IDX file: begins with %02x %02x %02x %02x", path, bytes[0],
                          bytes[1], bytes[2], bytes[3]);
    if (bytes[2] != TYPE_U8)
        return lksi_error(LKS_ERR_FORMAT, "%s: elements of IDX type 0x%02x, 0x08 (unsigned bytes) expected", path,
                          bytes[2]);
    if (bytes[3] != n_dimensions)
        return lksi_error(LKS_ERR_FORMAT, "%s: %d dimensions, %d expected", path, bytes[3], n_dimensions);
    return LKS_OK;
}

lks_status lksi_idx_parse(const char *path, const void *data, size_t nbytes, int n_dimensions, lksi_idx *idx) {
    const uint8_t *bytes = data;
    LKS_TRY(check_magic(path, bytes, nbytes, n_dimensions));
    size_t header_nbytes = 4 + 4 * (size_t)n_dimensions;
    if (nbytes < header_nbytes) return check_length(path, nbytes, header_nbytes);
    lksi_idx parsed = {.count = 1, .data = bytes + header_nbytes};
    for (int i = 0; i < n_dimensions; i++) {
        int64_t size = read_u32(bytes + 4 + 4 * i);
        if (size != 0 && parsed.count > (INT64_MAX >> 1) / size)
            return lksi_error(LKS_ERR_FORMAT, "%s: sizes whose product is too large", path);
        parsed.sizes[i] = size;
        parsed.count *= size;
    }
    LKS_TRY(check_length(path, nbytes, header_nbytes + (size_t)parsed.count));
    *idx = parsed;
    return LKS_OK;
}

/* The table of oneDNN's format tags, layout ids, and images. */
#include "onednn/layout.h"

#include "base/isa.h"

#include <oneapi/dnnl/dnnl_types.h>
#include <string.h>

/* oneDNN's tag names describe the layout: the axes from the outermost on, then the blocks inside them. */
#define TAG(name)                                                                                                      \
    { dnnl_##name, #name }
static const struct {
    int tag;
    const char *name;
} tags[] = {
    TAG(abcd),    TAG(aBcd8b),    TAG(aBcd16b),     TAG(acdb),    TAG(ABcd8b8a), TAG(ABcd16b16a), TAG(Acdb8a),
    TAG(Acdb16a), TAG(ABcd8a8b),  TAG(ABcd16a16b),  TAG(aBcd4b),  TAG(ABcd4b4a), TAG(Acdb4a),     TAG(cdba),
    TAG(abcde),   TAG(aBCde8c8b), TAG(aBCde16c16b), TAG(aBdec8b), TAG(aBdec16b), TAG(aBCde8b8c),  TAG(aBCde16b16c),
    TAG(Abcde8a), TAG(Abcde16a),  TAG(aBCde4c4b),   TAG(aBdec4b), TAG(Abcde4a),  TAG(decab),      TAG(abc),
    TAG(aBc8b),   TAG(aBc16b),    TAG(ab),
};
#undef TAG
enum { N_TAGS = sizeof tags / sizeof tags[0] };

static const char *name_of(int tag) {
    for (int i = 0; i < N_TAGS; i++)
        if (tags[i].tag == tag) return tags[i].name;
    return "?";
}

static int axis_of(char letter) { return letter >= 'a' ? letter - 'a' : letter - 'A'; }

/* The number of letters that give the order of the axes: 4 for "aBcd8b". Blocks follow. */
static int order_length(const char *name) { return (int)strcspn(name, "123456789"); }

int lksi_layout_next_tag(int n_dims, int *index) {
    for (int i = *index; i < N_TAGS; i++)
        if (order_length(tags[i].name) == n_dims) {
            *index = i + 1;
            return tags[i].tag;
        }
    return -1;
}

lksi_axes lksi_layout_axes(const lksi_tensor *tensor, int64_t groups) {
    lksi_axes axes = {.n = tensor->n_dims};
    memcpy(axes.dims, tensor->dims, (size_t)tensor->n_dims * sizeof *axes.dims);
    if (groups == 0) return axes;
    axes.n++;
    memmove(axes.dims + 1, axes.dims, (size_t)tensor->n_dims * sizeof *axes.dims);
    axes.dims[0] = groups;
    axes.dims[1] /= groups;
    return axes;
}

/* Returns the extent of one block of a name. *at moves on to the letter of its axis. */
static int64_t read_block(const char **at) {
    int64_t extent = 0;
    for (; **at >= '0' && **at <= '9'; (*at)++) extent = extent * 10 + (**at - '0');
    return extent;
}

/* --- detection of layouts that are row-major --- */

/* One loop of the walk through memory: `extent` elements along `axis`, which are `stride` apart in row-major order. */
typedef struct walk {
    int64_t extent, stride;
} walk;

/* Writes the loops from the outermost to the innermost. Returns their number, or -1 if there is padding. */
static int walk_through(const char *name, const lksi_axes *axes, walk *steps) {
    int64_t block[LKSI_MAX_AXES], stride[LKSI_MAX_AXES], below = 1;
    for (int i = axes->n; i-- > 0; below *= axes->dims[i]) block[i] = 1, stride[i] = below;
    int n_order = order_length(name), n = n_order;
    for (const char *at = name + n_order; *at != '\0'; at++, n++) {
        int64_t extent = read_block(&at);
        block[axis_of(*at)] *= extent;
        steps[n] = (walk){extent, axis_of(*at)}; /* holds the axis until the stride is known, below */
    }
    for (int i = 0; i < n_order; i++) {
        int axis = axis_of(name[i]);
        if (axes->dims[axis] % block[axis] != 0) return -1;
        steps[i] = (walk){axes->dims[axis] / block[axis], block[axis] * stride[axis]};
    }
    for (int i = n_order; i < n; i++) { /* the first block of an axis is the outermost one */
        int axis = (int)steps[i].stride;
        block[axis] /= steps[i].extent;
        steps[i].stride = block[axis] * stride[axis];
    }
    return n;
}

static bool is_row_major(const char *name, const lksi_axes *axes) {
    walk steps[LKSI_MAX_AXES + 4];
    int64_t in_memory = 1;
    int n = walk_through(name, axes, steps);
    for (int i = n - 1; i >= 0; i--) {
        if (steps[i].extent > 1 && steps[i].stride != in_memory) return false;
        in_memory *= steps[i].extent;
    }
    return n > 0;
}

/* The number of elements including padding. */
static int64_t padded_count(const char *name, const lksi_axes *axes) {
    int64_t block[LKSI_MAX_AXES] = {0}, count = 1;
    for (const char *at = name + order_length(name); *at != '\0'; at++) {
        int64_t extent = read_block(&at);
        block[axis_of(*at)] = extent * (block[axis_of(*at)] > 0 ? block[axis_of(*at)] : 1);
    }
    for (int i = 0; i < axes->n; i++) {
        int64_t unit = block[i] > 0 ? block[i] : 1;
        count *= (axes->dims[i] + unit - 1) / unit * unit;
    }
    return count;
}

/* --- ids --- */

enum { GROUPS_SHIFT = 32 };

uint64_t lksi_layout_id(int tag, int64_t groups, const lksi_axes *axes) {
    return is_row_major(name_of(tag), axes) ? 0 : (uint64_t)tag | (uint64_t)groups << GROUPS_SHIFT;
}

int lksi_layout_tag(uint64_t id, int n_dims) {
    static const int plain[] = {dnnl_x, dnnl_x, dnnl_ab, dnnl_abc, dnnl_abcd, dnnl_abcde};
    return id == 0 ? plain[n_dims] : (int)(id & UINT32_MAX);
}

int64_t lksi_layout_groups(uint64_t id) { return (int64_t)(id >> GROUPS_SHIFT); }
const char *lksi_layout_text(uint64_t id) { return name_of((int)(id & UINT32_MAX)); }

lksi_layout lksi_layout_like(uint64_t id, const lksi_tensor *tensor) {
    if (id == 0) return (lksi_layout){0};
    lksi_axes axes = lksi_layout_axes(tensor, lksi_layout_groups(id));
    lksi_layout layout = {.id = lksi_layout_id((int)(id & UINT32_MAX), lksi_layout_groups(id), &axes)};
    if (layout.id != 0)
        layout.nbytes = (size_t)padded_count(lksi_layout_text(id), &axes) * lks_type_nbytes(tensor->type);
    return layout;
}

/* --- images --- */

/* The number of adjacent channels in the layout. 0: all channels. -1: channels are not adjacent, or the layout is
 * unknown. */
static int64_t block_of(const lksi_layout *layout) {
    switch (layout->id) {
    case dnnl_aBcd4b:
        return 4;
    case dnnl_aBc8b:
    case dnnl_aBcd8b:
        return 8;
    case dnnl_aBc16b:
    case dnnl_aBcd16b:
        return 16;
    case dnnl_acdb:
        return 0;
    default:
        return -1;
    }
}

lksi_image lksi_image_of(const lksi_tensor *x, const lksi_layout *layout) {
    lksi_image image = {.n = x->dims[0], .channels = x->dims[1], .block = block_of(layout)};
    image.positions = lksi_tensor_count(x, 0) / (image.n * image.channels);
    if (image.block < 0) image.block = image.positions == 1 ? 0 : 1;
    if (image.block == 0) image.block = image.channels;
    image.blocks = (image.channels + image.block - 1) / image.block;
    return image;
}

bool lksi_image_has_lanes(const lksi_tensor *x, const lksi_layout *layout) {
    return block_of(layout) >= 0 || (layout->id == 0 && x->n_dims >= 2 && lksi_image_of(x, layout).positions == 1);
}

int64_t lksi_image_count(const lksi_image *image) { return image->n * image->blocks * image->positions * image->block; }

lksi_layout lksi_image_layout(const lksi_tensor *x, const lksi_layout *given) {
    lksi_layout row_major = {0};
    lksi_image image = lksi_image_of(x, &row_major);
    bool has_layouts = x->n_dims == 3 || x->n_dims == 4;
    if (block_of(given) >= 0) return *given;
    if (image.positions == 1 || !has_layouts) return row_major;
    bool is_wide = lksi_isa_level() == 2;
    if (x->n_dims == 4) return lksi_layout_like(is_wide ? dnnl_aBcd16b : dnnl_aBcd8b, x);
    return lksi_layout_like(is_wide ? dnnl_aBc16b : dnnl_aBc8b, x);
}

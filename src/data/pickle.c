/* A parser for the pickles that Python 2's cPickle wrote for CIFAR-10 (protocol 2), and for no others.
 *
 * A pickle is a program for a stack machine. Python's reader executes whatever it says, so it is not safe for pickles
 * of unknown origin. This parser knows the 25 instructions of those files and three names, and cannot call anything.
 * Every limit below is far above what the files need, so that a hostile file cannot take much memory. Nothing recurses.
 */
#include "data/data_internal.h"

#include <string.h>

enum { MAX_ITEMS = 65536 }; /* on the stack, in the memo, in a list */

typedef struct reader {
    const lksi_file *file;
    size_t at, opcode_at; /* byte offsets of the next byte and of the current instruction */
    lksi_pickle *pickle;
    lksi_pickle_items stack, memo;
} reader;

static lks_status fail(const reader *r, const char *what) {
    uint8_t code = ((const uint8_t *)r->file->data)[r->opcode_at];
    return lksi_error(LKS_ERR_FORMAT, "%s: pickle opcode 0x%02x at byte %zu: %s", r->file->path, code, r->opcode_at,
                      what);
}

/* --- bytes --- */

static lks_status take(reader *r, size_t nbytes, const uint8_t **bytes) {
    if (r->file->nbytes - r->at < nbytes)
        return lksi_error(LKS_ERR_FORMAT, "%s: truncated: a pickle that goes on after its %zu bytes", r->file->path,
                          r->file->nbytes);
    *bytes = (const uint8_t *)r->file->data + r->at;
    r->at += nbytes;
    return LKS_OK;
}

/* Takes a little-endian integer. */
static lks_status take_integer(reader *r, size_t nbytes, uint32_t *value) {
    const uint8_t *bytes = NULL;
    LKS_TRY(take(r, nbytes, &bytes));
    uint32_t taken = 0;
    for (size_t i = 0; i < nbytes; i++) taken |= (uint32_t)bytes[i] << 8 * i;
    *value = taken;
    return LKS_OK;
}

/* --- the stack --- */

static lks_status push_to(reader *r, lksi_pickle_items *items, const lksi_pickle_value *value) {
    if (items->count >= MAX_ITEMS) return fail(r, "more items than a CIFAR-10 batch has");
    LKS_TRY(lksi_grow((void **)&items->items, &items->capacity, items->count + 1, sizeof *items->items));
    items->items[items->count++] = *value;
    return LKS_OK;
}

static lks_status push(reader *r, lksi_pickle_value value) { return push_to(r, &r->stack, &value); }

static lks_status pop(reader *r, lksi_pickle_kind kind, lksi_pickle_value *value) {
    if (r->stack.count == 0 || r->stack.items[r->stack.count - 1].kind != kind)
        return fail(r, "its operands are missing");
    *value = r->stack.items[--r->stack.count];
    return LKS_OK;
}

static lks_status push_container(reader *r, lksi_pickle_kind kind, const lksi_pickle_value *items, size_t count) {
    lksi_pickle *pickle = r->pickle;
    if (pickle->n_containers == LKSI_PICKLE_MAX_CONTAINERS) return fail(r, "more objects than a CIFAR-10 batch has");
    lksi_pickle_value value = {.kind = kind, .container = (uint32_t)pickle->n_containers++};
    for (size_t i = 0; i < count; i++) {
        if (items[i].kind == LKSI_PICKLE_MARK) return fail(r, "its operands are missing");
        LKS_TRY(push_to(r, &pickle->containers[value.container], &items[i]));
    }
    return push(r, value);
}

/* Finds the topmost mark. The items above it are the operands of an instruction. */
static lks_status find_mark(reader *r, size_t *mark) {
    for (size_t i = r->stack.count; i-- > 0;)
        if (r->stack.items[i].kind == LKSI_PICKLE_MARK) {
            *mark = i;
            return LKS_OK;
        }
    return fail(r, "no mark before it");
}

/* --- instructions --- */

static lks_status set_protocol(reader *r) {
    uint32_t protocol = 0;
    LKS_TRY(take_integer(r, 1, &protocol));
    return protocol == 2 && r->opcode_at == 0 ? LKS_OK : fail(r, "protocol 2 is expected, at the beginning");
}

static lks_status push_mark(reader *r) { return push(r, (lksi_pickle_value){.kind = LKSI_PICKLE_MARK}); }
static lks_status push_none(reader *r) { return push(r, (lksi_pickle_value){.kind = LKSI_PICKLE_NONE}); }
static lks_status push_false(reader *r) { return push(r, (lksi_pickle_value){.kind = LKSI_PICKLE_FALSE}); }
static lks_status push_list(reader *r) { return push_container(r, LKSI_PICKLE_LIST, NULL, 0); }
static lks_status push_dict(reader *r) { return push_container(r, LKSI_PICKLE_DICT, NULL, 0); }

static lks_status push_integer(reader *r, size_t nbytes) {
    uint32_t value = 0;
    LKS_TRY(take_integer(r, nbytes, &value));
    int64_t integer = nbytes == 4 ? (int64_t)(int32_t)value : (int64_t)value; /* only 4-byte integers are signed */
    return push(r, (lksi_pickle_value){.kind = LKSI_PICKLE_INTEGER, .integer = integer});
}

static lks_status push_integer1(reader *r) { return push_integer(r, 1); }
static lks_status push_integer2(reader *r) { return push_integer(r, 2); }
static lks_status push_integer4(reader *r) { return push_integer(r, 4); }

static lks_status push_string(reader *r, size_t length_nbytes) {
    uint32_t nbytes = 0;
    lksi_pickle_value value = {.kind = LKSI_PICKLE_STRING};
    LKS_TRY(take_integer(r, length_nbytes, &nbytes));
    LKS_TRY(take(r, nbytes, &value.data));
    value.integer = nbytes;
    return push(r, value);
}

static lks_status push_short_string(reader *r) { return push_string(r, 1); }
static lks_status push_long_string(reader *r) { return push_string(r, 4); }

/* Formats a module and a name, each terminated by a newline, for an error text. Long names are truncated. */
static void format_name(const reader *r, char *text, size_t nbytes) {
    const uint8_t *bytes = (const uint8_t *)r->file->data;
    size_t used = 0;
    for (size_t at = r->at, n_lines = 0; at < r->file->nbytes && used + 1 < nbytes; at++) {
        bool is_end = bytes[at] == '\n';
        if (is_end && ++n_lines == 2) break;
        text[used++] = is_end ? '.' : bytes[at] >= ' ' && bytes[at] < 0x7f ? (char)bytes[at] : '?';
    }
    text[used] = '\0';
}

static lks_status push_name(reader *r) {
    static const struct {
        const char *text;
        lksi_pickle_kind kind;
    } names[] = {{"numpy.core.multiarray\n_reconstruct\n", LKSI_PICKLE_RECONSTRUCT},
                 {"numpy\nndarray\n", LKSI_PICKLE_NDARRAY},
                 {"numpy\ndtype\n", LKSI_PICKLE_DTYPE}};
    const uint8_t *rest = (const uint8_t *)r->file->data + r->at;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        size_t nbytes = strlen(names[i].text);
        if (r->file->nbytes - r->at < nbytes || memcmp(rest, names[i].text, nbytes) != 0) continue;
        r->at += nbytes;
        return push(r, (lksi_pickle_value){.kind = names[i].kind});
    }
    char name[65], text[160];
    format_name(r, name, sizeof name);
    snprintf(text, sizeof text, "a name that CIFAR-10's batches do not use: '%s'", name);
    return fail(r, text);
}

static lks_status put(reader *r, size_t index_nbytes) {
    uint32_t index = 0;
    LKS_TRY(take_integer(r, index_nbytes, &index));
    if (r->stack.count == 0) return fail(r, "nothing to store in the memo");
    if (index >= MAX_ITEMS) return fail(r, "a memo larger than a CIFAR-10 batch has");
    LKS_TRY(lksi_grow((void **)&r->memo.items, &r->memo.capacity, (size_t)index + 1, sizeof *r->memo.items));
    for (; r->memo.count <= index; r->memo.count++)
        r->memo.items[r->memo.count] = (lksi_pickle_value){.kind = LKSI_PICKLE_MARK};
    r->memo.items[index] = r->stack.items[r->stack.count - 1];
    return LKS_OK;
}

static lks_status put1(reader *r) { return put(r, 1); }
static lks_status put4(reader *r) { return put(r, 4); }

static lks_status get(reader *r, size_t index_nbytes) {
    uint32_t index = 0;
    LKS_TRY(take_integer(r, index_nbytes, &index));
    if (index >= r->memo.count || r->memo.items[index].kind == LKSI_PICKLE_MARK)
        return fail(r, "the memo has no such entry");
    return push(r, r->memo.items[index]);
}

static lks_status get1(reader *r) { return get(r, 1); }
static lks_status get4(reader *r) { return get(r, 4); }

static lks_status make_tuple_of(reader *r, size_t count) {
    if (r->stack.count < count) return fail(r, "its operands are missing");
    r->stack.count -= count;
    lksi_pickle_value items[3] = {{0}};
    memcpy(items, r->stack.items + r->stack.count, count * sizeof *items);
    return push_container(r, LKSI_PICKLE_TUPLE, items, count);
}

static lks_status make_tuple1(reader *r) { return make_tuple_of(r, 1); }
static lks_status make_tuple2(reader *r) { return make_tuple_of(r, 2); }
static lks_status make_tuple3(reader *r) { return make_tuple_of(r, 3); }

/* push_container copies the items before it pushes the tuple over the mark. */
static lks_status make_tuple(reader *r) {
    size_t mark = 0;
    LKS_TRY(find_mark(r, &mark));
    size_t count = r->stack.count - mark - 1;
    LKS_TRY(push_container(r, LKSI_PICKLE_TUPLE, r->stack.items + mark + 1, count));
    r->stack.items[mark] = r->stack.items[r->stack.count - 1];
    r->stack.count = mark + 1;
    return LKS_OK;
}

/* Moves the items above the mark to the container below it. */
static lks_status add_all(reader *r, lksi_pickle_kind kind) {
    size_t mark = 0;
    LKS_TRY(find_mark(r, &mark));
    size_t count = r->stack.count - mark - 1;
    if (mark == 0 || r->stack.items[mark - 1].kind != kind || (kind == LKSI_PICKLE_DICT && count % 2 != 0))
        return fail(r, "its operands are missing");
    lksi_pickle_items *container = &r->pickle->containers[r->stack.items[mark - 1].container];
    for (size_t i = 0; i < count; i++) LKS_TRY(push_to(r, container, &r->stack.items[mark + 1 + i]));
    r->stack.count = mark;
    return LKS_OK;
}

static lks_status append_all(reader *r) { return add_all(r, LKSI_PICKLE_LIST); }
static lks_status set_all(reader *r) { return add_all(r, LKSI_PICKLE_DICT); }

/* Records a call with its arguments. Nothing is called. */
static lks_status make_object(reader *r) {
    lksi_pickle_value parts[2];
    LKS_TRY(pop(r, LKSI_PICKLE_TUPLE, &parts[1]));
    if (r->stack.count == 0) return fail(r, "its operands are missing");
    parts[0] = r->stack.items[--r->stack.count];
    if (parts[0].kind != LKSI_PICKLE_RECONSTRUCT && parts[0].kind != LKSI_PICKLE_DTYPE)
        return fail(r, "it calls something that is not a function");
    return push_container(r, LKSI_PICKLE_OBJECT, parts, 2);
}

static lks_status set_state(reader *r) {
    lksi_pickle_value state;
    LKS_TRY(pop(r, LKSI_PICKLE_TUPLE, &state));
    if (r->stack.count == 0 || r->stack.items[r->stack.count - 1].kind != LKSI_PICKLE_OBJECT)
        return fail(r, "its operands are missing");
    lksi_pickle_items *object = &r->pickle->containers[r->stack.items[r->stack.count - 1].container];
    if (object->count != 2) return fail(r, "an object with two states");
    return push_to(r, object, &state);
}

typedef struct instruction {
    uint8_t code;
    lks_status (*run)(reader *r);
} instruction;

static const instruction instructions[] = {
    {0x80, set_protocol},
    {'(', push_mark},
    {'N', push_none},
    {0x89, push_false},
    {'K', push_integer1},
    {'M', push_integer2},
    {'J', push_integer4},
    {'U', push_short_string},
    {'T', push_long_string},
    {'c', push_name},
    {']', push_list},
    {'}', push_dict},
    {'q', put1},
    {'r', put4},
    {'h', get1},
    {'j', get4},
    {0x85, make_tuple1},
    {0x86, make_tuple2},
    {0x87, make_tuple3},
    {'t', make_tuple},
    {'e', append_all},
    {'u', set_all},
    {'R', make_object},
    {'b', set_state},
};

static lks_status run(reader *r, uint8_t code) {
    for (size_t i = 0; i < sizeof instructions / sizeof instructions[0]; i++)
        if (instructions[i].code == code) return instructions[i].run(r);
    return fail(r, "CIFAR-10's batches do not use it");
}

static lks_status finish(const reader *r) {
    if (r->stack.count != 1) return fail(r, "the end, but the stack does not hold exactly one object");
    if (r->at != r->file->nbytes)
        return lksi_error(LKS_ERR_FORMAT, "%s: too long: %zu bytes after the pickle's end", r->file->path,
                          r->file->nbytes - r->at);
    r->pickle->root = r->stack.items[0];
    return LKS_OK;
}

static lks_status run_all(reader *r) {
    for (;;) {
        const uint8_t *code = NULL;
        r->opcode_at = r->at;
        LKS_TRY(take(r, 1, &code));
        if (*code == '.') return finish(r);
        LKS_TRY(run(r, *code));
    }
}

lks_status lksi_pickle_parse(const lksi_file *file, lksi_pickle *pickle) {
    reader r = {.file = file, .pickle = pickle};
    *pickle = (lksi_pickle){.root = {.kind = LKSI_PICKLE_NONE}};
    lks_status status = run_all(&r);
    lksi_free(r.stack.items);
    lksi_free(r.memo.items);
    return status;
}

void lksi_pickle_destroy(lksi_pickle *pickle) {
    for (size_t i = 0; i < pickle->n_containers; i++) lksi_free(pickle->containers[i].items);
}

const lksi_pickle_items *lksi_pickle_items_of(const lksi_pickle *pickle, const lksi_pickle_value *value,
                                              lksi_pickle_kind kind, size_t count) {
    if (value->kind != kind) return NULL;
    const lksi_pickle_items *items = &pickle->containers[value->container];
    return items->count >= count ? items : NULL;
}

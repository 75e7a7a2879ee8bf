/* Words and their numbers: a hash table over one array of letters, so that a word costs little more than its bytes. */
#include "data/data_internal.h"

#include <string.h>

enum { FIRST_N_SLOTS = 1024 };

static const char *word_of(const lksi_vocabulary *v, size_t number) { return v->letters + v->offsets[number]; }

/* Finds the slot that holds the word, or the empty slot for it. */
static size_t find_slot(const lksi_vocabulary *v, const char *word, size_t nbytes) {
    size_t slot = (size_t)lksi_hash64(LKSI_HASH_START, word, nbytes) & (v->n_slots - 1);
    for (; v->slots[slot] != 0; slot = (slot + 1) & (v->n_slots - 1)) {
        const char *other = word_of(v, (size_t)v->slots[slot] - 1);
        if (strncmp(other, word, nbytes) == 0 && other[nbytes] == '\0') break;
    }
    return slot;
}

static lks_status grow_slots(lksi_vocabulary *v) {
    lksi_vocabulary larger = *v;
    larger.n_slots = v->n_slots == 0 ? FIRST_N_SLOTS : 2 * v->n_slots;
    larger.slots = lksi_alloc_array(larger.n_slots, sizeof *larger.slots);
    if (larger.slots == NULL) return LKS_ERR_MEMORY;
    for (size_t i = 0; i < v->count; i++) {
        const char *word = word_of(v, i);
        larger.slots[find_slot(&larger, word, strlen(word))] = (int32_t)i + 1;
    }
    lksi_free(v->slots);
    *v = larger;
    return LKS_OK;
}

static lks_status append(lksi_vocabulary *v, const char *word, size_t nbytes) {
    size_t n_letters = v->n_letters + nbytes + 1;
    LKS_TRY(lksi_grow((void **)&v->letters, &v->letters_capacity, n_letters, 1));
    LKS_TRY(lksi_grow((void **)&v->offsets, &v->offsets_capacity, v->count + 1, sizeof *v->offsets));
    memcpy(v->letters + v->n_letters, word, nbytes);
    v->letters[n_letters - 1] = '\0';
    v->offsets[v->count++] = v->n_letters;
    v->n_letters = n_letters;
    return LKS_OK;
}

lks_status lksi_vocabulary_add(lksi_vocabulary *vocabulary, const char *word, size_t nbytes, int32_t *number) {
    if (2 * vocabulary->count >= vocabulary->n_slots) LKS_TRY(grow_slots(vocabulary));
    size_t slot = find_slot(vocabulary, word, nbytes);
    if (vocabulary->slots[slot] == 0) {
        LKS_TRY(append(vocabulary, word, nbytes));
        vocabulary->slots[slot] = (int32_t)vocabulary->count;
    }
    *number = vocabulary->slots[slot] - 1;
    return LKS_OK;
}

void lksi_vocabulary_destroy(lksi_vocabulary *vocabulary) {
    lksi_free(vocabulary->letters);
    lksi_free(vocabulary->offsets);
    lksi_free(vocabulary->slots);
}

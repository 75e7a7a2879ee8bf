/* Weights of a store and their entries in a safetensors file. */
#ifndef LKSI_WEIGHTS_H
#define LKSI_WEIGHTS_H

#include "graph/graph.h"
#include "train/safetensors.h"

/* What a trainer's checkpoint holds beside weights; names of parameters may not begin so. */
#define LKSI_OPTIMIZER_PREFIX "optimizer."
#define LKSI_TRAINER_PREFIX "trainer."

/* The store's tensors in the order of their names, which is the order of lks_store_sha256: `order` has room for all. */
typedef struct lksi_named_tensor {
    const char *name;
    int index;
} lksi_named_tensor;
void lksi_weights_order(const lks_store *store, lksi_named_tensor *order);
/* Elements of the largest tensor, as the store keeps it: room for any of them, in either order. */
size_t lksi_weights_largest(const lks_store *store);

/* LKS_ERR_ARGUMENT where a tensor has a name that a checkpoint needs for itself. */
lks_status lksi_weights_check_names(const lks_store *store);
/* Is every tensor of the store in the file, with its shape and floating numbers? Errors name the file and the entry. */
lks_status lksi_weights_check(const lks_store *store, const lksi_safetensors *file);
/* Opens a file of weights, finds that it is one of this store's and whole, and makes room for any tensor. Both are the
 * caller's, also after an error. */
lks_status lksi_weights_open(const lks_store *store, const char *path, lksi_safetensors **file, void **values);
/* Writes all tensors of such a file into the store. */
lks_status lksi_weights_take(lks_store *store, const lksi_safetensors *file, void *values);

#endif

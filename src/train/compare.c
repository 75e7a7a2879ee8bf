/* What must be equal on all ranks of a trainer. It is compared before step 0, because ranks that differ would train
 * something that nobody asked for. */
#include "train/trainer_internal.h"

static void add_options(lksi_list *list, const lks_trainer_options *options) {
    lksi_list_add(list, "seed", "%llu", (unsigned long long)options->seed);
    lksi_list_add_integer(list, "accumulate", options->accumulate > 0 ? options->accumulate : 1);
    lksi_list_add_integer(list, "grains", options->grains);
    lksi_list_add_integer(list, "check_gradients", options->check_gradients != 0);
    lksi_list_add_integer(list, "check_every", options->check_every);
    lksi_list_add_integer(list, "states", options->n_states);
    lksi_list_add_sharing(list, options->strategy, options->bucket_nbytes, &options->compression);
    if (options->data_hash != 0) lksi_list_add(list, "data (hash)", "%016llx", (unsigned long long)options->data_hash);
}

lks_status lksi_trainer_compare(const lks_trainer *trainer) {
    const lks_graph *graph = lks_node_graph(trainer->loss);
    const lks_device *device = lksi_graph_device(graph);
    lksi_list list = {0};
    add_options(&list, &trainer->options);
    lksi_list_add_rule(&list, &trainer->options.optimizer);
    lksi_list_add_machine(&list, device);
    if (lksi_device_has_memory(device))
        lksi_list_add_integer(&list, "LOCKSTEP_GPU_GRAPHS", trainer->makes_recordings); /* why: is_alike in flat.c */
    lksi_list_add_graph(&list, graph);
    return lksi_list_compare(&list, trainer->options.group, "trainer_create");
}

lks_status lksi_trainer_compare_batches(lks_trainer *trainer, const lks_batch *batch) {
    lksi_list list = {0};
    lksi_list_add_integer(&list, "samples in the first step", batch->global_count);
    lksi_list_add_integer(&list, "labels in the first step", batch->global_n_labels);
    lksi_list_add_source(&list, batch->source_hash, batch->data_hash);
    return lksi_list_compare(&list, trainer->options.group, "trainer_step, the first");
}

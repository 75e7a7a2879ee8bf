/* Lockstep, room train/: the training loop's parts put together. */
#ifndef LOCKSTEP_TRAIN_H
#define LOCKSTEP_TRAIN_H

#include <lockstep/data.h>
#include <lockstep/nn.h>
#include <lockstep/parallel.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lks_trainer lks_trainer;

/* What a model carries from one step to the next, as a recurrent layer does along a text: after each step `output` is
 * what `input` reads in the next one. */
typedef struct lks_state {
    lks_node *input;  /* an lks_input (N,...) of the device's floating type */
    lks_node *output; /* of the same shape */
} lks_state;

typedef struct lks_trainer_options {
    lks_group *group;        /* required */
    lks_node *logits;        /* (...,C): what accuracy is counted on; NULL: it is not, and reads as 0 */
    lks_node *features;      /* input that takes a batch's features; required. Samples in bytes (gives_bytes of data.h)
                              * go to an input u8 (N, F + LKS_DRAW_NBYTES), which lks_images reads */
    lks_node *labels;        /* input that takes a batch's labels, i32 (classes, tokens), or its targets, f32 (N, M) or
                              * (N, ...) of M elements a sample, for lks_mse and its like; required */
    lks_optimizer optimizer; /* from lks_sgd, lks_adam or lks_adamw */
    uint64_t seed;           /* of the initial parameters */
    int64_t accumulate;      /* micro-batches that each rank's part of a batch is computed in, to save memory; 0: 1 */
    int64_t grains;          /* G: the same bits at every world size that divides G; see below. 0: none */
    int is_timed;            /* 1: lks_trainer_describe shows each kernel's mean time */
    const lks_state *states; /* copied; row i of a state belongs to row i of this rank's batches, all of one size */
    int n_states;
    lks_strategy strategy;       /* how the ranks share the work; parallel.h */
    size_t bucket_nbytes;        /* 0: chosen */
    lks_compression compression; /* of gradients between hosts */
    uint64_t data_hash;  /* of what else the ranks should have in common, test data for example; 0: of nothing */
    int check_gradients; /* 1: a gradient that is not finite is an error that names its rank and parameter, before it is
                            used, also where the loss is no number; no overlap then */
    int64_t check_every; /* steps between two lks_check_replicas, each of what the step behind it reads; 0: never. A
                            sharded optimizer (the default on one host) writes all copies in each step: what went wrong
                            between two checks is found by check_every 1 alone, or with the strategy bucketed */
    /* 1: a step returns before its update has ended, which gives the same bits; see below. Nothing changes for a shared
     * or sharded store of a CPU, where gradients are clipped or compressed, nor where the step reduces them itself
     * (lks_distributed_optimizer_attach). */
    int runs_ahead;
} lks_trainer_options;

/* A trainer that runs ahead (runs_ahead) returns from a step while a GPU is still at it, or while its gradients are on
 * their way to the other hosts, so that the next one begins meanwhile; each kernel of that waits for the parameters it
 * reads. An error of the update comes out of a later call; on a GPU so do the step's metrics. The batch's memory may be
 * used again at once, as after any step. All that this library does with the store waits for the update first; the
 * caller's own collectives in `group`, and steps of another trainer in it, are LKS_ERR_STATE before
 * lks_trainer_catch_up. */

/* Means over the labels that count, of all ranks: all but those that the loss ignores (lks_cross_entropy_with). Where
 * the trainer runs ahead on a GPU: of all steps that ended since metrics were asked for last, perhaps of none
 * (n_samples 0); lr, grad_norm and stop of the last of them. Elsewhere of the step alone, or of the last one where
 * lks_trainer_catch_up is asked; once taken, of none. */
typedef struct lks_metrics {
    double loss, accuracy;
    int64_t n_samples;    /* labels that count */
    double lr, grad_norm; /* of a step; grad_norm: before clipping, 0 where the optimizer does not clip */
    int stop; /* of a step: the largest that any rank gave to lks_trainer_request_stop, on all ranks the same; 0: none
               */
} lks_metrics;

/* With grains a global batch is cut into G shards, a power of two, whatever the number of ranks is. A rank computes its
 * G/n of them one after the other, each as a batch of its own, and adds them up the balanced tree that the ranks
 * continue; so parameters and figures have the same bits for every n that divides G. The batches have to be cut
 * likewise: loader and windows take the same `grains`. Batch norm's statistics are those of a grain. Grains are pieces
 * already: accumulate stays 0 or 1. Gradients are not compressed, but by a hook that keeps the order.
 * docs/determinism.md says more, and what it costs. */

/* Makes the store (parameters, gradients) of `loss` and what updates it. `loss` is a mean over the labels that count:
 * each rank's goes in by how many it has, and a sum would train otherwise at each world size. The graph and the group
 * must outlive it. Collective: first of all the ranks compare model, options, device and instruction set, as
 * lks_compare_options does, and before the first step what they know of its batch. An option that cannot be meant (lr
 * NaN, Nesterov's momentum without momentum, a state that does not fit) fails the group, also where one rank alone was
 * given it: the other ranks get LKS_ERR_PEER and do not wait. Errors: those of lks_distributed_store_create and
 * lks_distributed_optimizer_create; LKS_ERR_UNSUPPORTED: a graph on a device that does not compute in f32, which
 * batches are in; LKS_ERR_ARGUMENT: an option, such as grains that the world size does not divide, or an input that the
 * loss is computed of and that is neither features nor labels nor a state's; LKS_ERR_MISMATCH:
 * ranks differ, shown as a table. A model with synchronised batch norms gets a group of its own for them. All ranks
 * then make `accumulate` passes a step, some perhaps without a sample, and each pass has statistics of its own. With
 * grains such a model is refused: their statistics are their own. */
LKS_API lks_status lks_trainer_create(lks_trainer **trainer, lks_node *loss, const lks_trainer_options *options);
LKS_API void lks_trainer_destroy(lks_trainer *trainer);

/* One step on this rank's part of a global batch: forward, backward, update. `metrics` (may be NULL): of the whole
 * global batch. Samples of which no label counts are part of it: states go on over them, and the statistics of batch
 * norms are theirs, too. Collective. A batch size that was not seen before is compiled first, without communication.
 * Errors: LKS_ERR_NUMERIC where a rank's loss is not finite (step and rank named): there, LKS_ERR_PEER on the others,
 * and the group is dead; LKS_ERR_NUMERIC where with check_gradients a gradient (step, rank and parameter; asked before
 * the loss is) or where the optimizer clips the norm is not: on all ranks, nothing was updated, and the group lives on,
 * but states have moved on with the batch (lks_trainer_reset_states makes them 0); LKS_ERR_MISMATCH where with
 * check_every the replicas differ, before the step is taken, or, before anything is updated, where the ranks' n_labels
 * are not global_n_labels together (global_count is compared before the first step alone), where loaders are at
 * different batches or rates differ, or a batch is not cut in the trainer's grains; LKS_ERR_ARGUMENT where one has a
 * negative number of samples, or more labels than they have, or no batch (the group is dead); LKS_ERR_SHAPE where
 * sample_nbytes is told and is not the model's input's, or n_targets is not; LKS_ERR_ARGUMENT: a label outside C;
 * LKS_ERR_ARGUMENT where a model has states and this rank's part of the batch is not that of the step before (the group
 * is dead; lks_trainer_reset_states makes another one possible);
 * LKS_ERR_ARGUMENT where n_labels is 0 on all ranks, be it that the loss ignores all labels or that who made the batch
 * did not set it: on all ranks, nothing was updated, and the group lives on, but states have moved on. */
LKS_API lks_status lks_trainer_step(lks_trainer *trainer, const lks_batch *batch, lks_metrics *metrics);

/* Where the trainer runs ahead: waits until the last step is done. `metrics` (may be NULL) as above. Before parameters
 * are read by other means than this library's. Collective. Errors: those of lks_trainer_step, of that step. */
LKS_API lks_status lks_trainer_catch_up(lks_trainer *trainer, lks_metrics *metrics);
/* Loss and accuracy over a data set: cut into chunks of fixed size, so that the result does not depend on the number
 * of ranks. Every sample begins with states of 0 (the trainer's own are kept). Where the model takes bytes (lks_images)
 * it gets the set's, and the set's units (lks_dataset_normalize) do not matter: those of lks_images do.
 * Collective. Errors: LKS_ERR_ARGUMENT: no sample, or bytes of a set of floats;
 * LKS_ERR_SHAPE: samples of another size, more than one label each, other targets. They fail the group, for the other
 * ranks may have been given another set. LKS_ERR_MISMATCH on all ranks, of which it names two, where the sets differ
 * (lks_dataset_hash): the group lives on, unless the sets have other numbers of samples. LKS_ERR_NUMERIC on all ranks
 * where the loss is NaN or infinite: `metrics` is what came of it, and the group lives on. */
LKS_API lks_status lks_trainer_evaluate(lks_trainer *trainer, const lks_dataset *dataset, lks_metrics *metrics);

/* This rank wants all to end: lks_metrics.stop of the next step and of those that follow is `number` (above 0; of a
 * signal, say) on every rank, or a larger one where another rank gave that. So ranks that were signalled at different
 * moments, or one of them alone, leave their loops after the same step. Costs nothing; not collective. 0 takes it back.
 */
LKS_API void lks_trainer_request_stop(lks_trainer *trainer, int number);

/* From the next step on the learning rate is `lr`, times what the schedule says; the same on all ranks.
 * Errors: LKS_ERR_ARGUMENT: no finite number from 0 on. */
LKS_API lks_status lks_trainer_set_lr(lks_trainer *trainer, double lr);

/* The kernels of a training step at the largest batch size seen, as lks_program_describe. */
LKS_API void lks_trainer_describe(const lks_trainer *trainer, char *text, size_t nbytes);
/* The same over a text, whose labels are each token's next one: every one counts once. The model's features are (N,T)
 * i32; the text is cut into columns whose states begin at 0 (the trainer's own are kept), the same ones for any number
 * of ranks. Labels that are missing in the last windows are -1: the loss has to ignore them. Collective. Errors:
 * LKS_ERR_ARGUMENT: fewer than 2 tokens; LKS_ERR_SHAPE: the model takes no text: they fail the group.
 * LKS_ERR_MISMATCH on all ranks, of which it names two, where the texts differ: the group lives on. LKS_ERR_NUMERIC as
 * above. */
LKS_API lks_status lks_trainer_evaluate_text(lks_trainer *trainer, const int32_t *tokens, int64_t count,
                                             lks_metrics *metrics);

/* The states are zeros again, as they are at first: before a text begins anew, and before batches of another size or
 * cut otherwise. On all ranks before the same step. */
LKS_API void lks_trainer_reset_states(lks_trainer *trainer);

/* What this rank's parameters, gradients, optimizer state and the programs compiled so far take. */
LKS_API void lks_trainer_memory(const lks_trainer *trainer, lks_distributed_memory *memory);

LKS_API lks_store *lks_trainer_store(const lks_trainer *trainer);

/* --- files: safetensors, row-major, by the names of parameters and buffers. Each is written beside `path` and then put
 * in its place; its "__metadata__" holds the SHA-256 of its data, which is checked before anything is overwritten.
 * Errors: LKS_ERR_FILE, LKS_ERR_FORMAT (not such a file, truncated, damaged, other shapes, a name missing or one too
 * many): file and entry are named. --- */

/* The parameters and buffers of a store. Not collective: of a store that ranks have in common one rank saves, and every
 * rank loads, between two barriers. */
LKS_API lks_status lks_store_save(const lks_store *store, const char *path);
/* Files of PyTorch's too: f32, f64, f16 and bf16 become the store's type; "*.num_batches_tracked" and what a checkpoint
 * holds beside the weights is passed over. */
LKS_API lks_status lks_store_load(lks_store *store, const char *path);
/* The same for a trainer's store. Collective; every rank reads the file. */
LKS_API lks_status lks_trainer_load_weights(lks_trainer *trainer, const char *path);

/* Where in its data a run stands, kept in checkpoints for whoever makes the batches. */
typedef struct lks_position {
    int64_t epoch, step;     /* of the next batch; step counts within the epoch: steps_per_epoch is its end */
    int64_t steps_per_epoch; /* these two say which batches they are steps over */
    int64_t global_batch;
    uint64_t data_hash; /* of what is trained on: lks_dataset_hash, lks_text_hash; 0: not compared */
} lks_position;

/* Everything that a run needs to go on to the same bits: weights, the optimizer's state ("optimizer.<name>.m", ".v"),
 * steps, position, seed, grains, rule ("trainer.counters", "trainer.rule"). Does not depend on the number of ranks.
 * Not in it, and not compared: accumulate, compression, strategy and bucket size. The first two change the bits: a run
 * that goes on with others than it began with ends with other bits.
 * Returns when the disk has it. Collective; rank 0 writes, and needs memory for all of it. Errors: LKS_ERR_ARGUMENT
 * where step is not in 0..steps_per_epoch, or epoch * steps_per_epoch + step is not the number of steps that the
 * trainer has made, or a model's states are of more samples than global_batch, or of parts of a batch that do not
 * follow one another from rank to rank. */
LKS_API lks_status lks_trainer_save(lks_trainer *trainer, const char *path, const lks_position *position);
/* Goes on from there; `position` says which steps_per_epoch, global_batch and data_hash are expected, and is then where
 * to begin.
 * Collective; rank 0 reads the file, which the other ranks' hosts need not have, and hands it out.
 * Errors: also LKS_ERR_ARGUMENT where seed, rule, grains, steps_per_epoch, global_batch or data_hash differ, by name,
 * and where a whole file is another model's (other entries or shapes) or another version's. Nothing is overwritten
 * then. */
LKS_API lks_status lks_trainer_load(lks_trainer *trainer, const char *path, lks_position *position);
/* The same two for a loop of one's own: the parameters and buffers of the optimizer's store, its state, its steps, its
 * rule, and the position, in a file as a trainer's with seed 0 and no grains. Between a step and the next backward
 * pass; LKS_ERR_STATE on a rank that has accumulated passes for the next step. What the loop keeps beside them (its
 * seed, a model's states) is its own to keep. Collective. */
LKS_API lks_status lks_distributed_optimizer_save(lks_distributed_optimizer *optimizer, const char *path,
                                                  const lks_position *position);
LKS_API lks_status lks_distributed_optimizer_load(lks_distributed_optimizer *optimizer, const char *path,
                                                  lks_position *position);
/* The same from a file or, where `path` is a directory, from the newest checkpoint in it that is whole: of the files
 * called as lks_checkpointer calls them, rank 0 takes the one with the largest step whose hash and entries are good.
 * Those it passes over, and why, are warnings on stderr. `taken` (may be NULL) receives the file's path, and "" where
 * the directory has none: `position` is then the beginning, and nothing has changed. Collective.
 * Errors: those of lks_trainer_load; LKS_ERR_FILE where there is no such directory, which may be a misspelt one; a file
 * of another run (LKS_ERR_ARGUMENT), or one that cannot be read (LKS_ERR_FILE), is not passed over; LKS_ERR_FORMAT
 * where all that there are were passed over. */
LKS_API lks_status lks_trainer_resume(lks_trainer *trainer, const char *path, lks_position *position, char *taken,
                                      size_t taken_nbytes);

/* --- checkpoints while training ---
 *
 * Every so many steps rank 0 copies the whole state to memory of its own, and a thread hashes it and writes it to
 * DIRECTORY/step-<12 digits>.safetensors while training goes on: first beside it, synced, then put in its place, so
 * that a death at any moment leaves the one before. The loop of a program that survives its launcher's restarts:
 *
 *     if (lks_group_rank(group) == 0) mkdir(directory, 0777);              there is none yet the first time
 *     lks_trainer_resume(trainer, directory, &position, NULL, 0);          an empty directory: from the beginning
 *     lks_checkpointer_create(&checkpointer, trainer, directory, &(lks_checkpointer_options){.every = 100});
 *     lks_loader_seek(loader, position.epoch, position.step);
 *     while (lks_loader_next(loader, &batch)) {
 *         lks_trainer_request_stop(trainer, signal_that_arrived);          what a handler has noted, or 0
 *         lks_trainer_step(trainer, &batch, &metrics);
 *         position.step++;
 *         if (metrics.stop > 0) break;                                     on all ranks after the same step
 *         lks_checkpointer_step(checkpointer, &position);
 *     }
 *     lks_checkpointer_save(checkpointer, &position);
 *
 * The directory needs to be on rank 0's host only; it may be shared. One run at a time writes to it: it holds a lock
 * (DIRECTORY/lock), which its death lets go of. */
typedef struct lks_checkpointer lks_checkpointer;

typedef struct lks_checkpointer_options {
    int64_t every; /* steps from one to the next; 0: only where lks_checkpointer_save asks. The same on all ranks */
    int64_t keep;  /* how many stay, the newest; older ones are removed once a new one is on the disk. 0: 3 */
} lks_checkpointer_options;

/* Makes the directory where it is missing, and takes the memory: rank 0 as much as a checkpoint, but for the model's
 * states, which follow with the first one. What a killed run left half written is removed. `options` may be NULL.
 * Collective. The trainer must outlive it.
 * Errors: LKS_ERR_STATE: another run has the lock, or the directory holds later steps than the trainer's and it was not
 * resumed from there: they would be taken for this run's; LKS_ERR_FILE, LKS_ERR_ARGUMENT, LKS_ERR_MEMORY. */
LKS_API lks_status lks_checkpointer_create(lks_checkpointer **checkpointer, lks_trainer *trainer, const char *directory,
                                           const lks_checkpointer_options *options);
/* Ends what is being written (an error of it goes to the log) and lets go of the directory. Not collective. */
LKS_API void lks_checkpointer_destroy(lks_checkpointer *checkpointer);
/* After each step: where one is due, begins it, and returns once the state is copied. Where the last one is still being
 * written, waits for it, for the group's time limit at most. Collective.
 * Errors: LKS_ERR_FILE on all ranks where the last one could not be written (disk full, directory gone), naming it;
 * this one was then not begun. The group lives on, and the next may succeed. LKS_ERR_TIMEOUT; those of
 * lks_trainer_save. */
LKS_API lks_status lks_checkpointer_step(lks_checkpointer *checkpointer, const lks_position *position);
/* One of this moment, whether due or not, and returns when the disk has it. Collective. */
LKS_API lks_status lks_checkpointer_save(lks_checkpointer *checkpointer, const lks_position *position);
/* Waits for the last one, and says whether the disk has it. Collective. */
LKS_API lks_status lks_checkpointer_finish(lks_checkpointer *checkpointer);
/* Where the last one that was begun is or will be; "" before the first. */
LKS_API const char *lks_checkpointer_path(const lks_checkpointer *checkpointer);

#ifdef __cplusplus
}
#endif
#endif

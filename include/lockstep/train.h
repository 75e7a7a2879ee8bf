/* Lockstep, room train/: the training loop, evaluation, weight files and checkpoints.
 *
 * "Errors:" and "Fatal:" are as in parallel.h: after a fatal error the group is dead. */
#ifndef LOCKSTEP_TRAIN_H
#define LOCKSTEP_TRAIN_H

#include <lockstep/data.h>
#include <lockstep/nn.h>
#include <lockstep/parallel.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lks_trainer lks_trainer;

/* State that a model carries from one step to the next, such as the hidden state of a recurrent layer along a text. The
 * value of `output` after a step becomes the value of `input` in the next step. `output` may be the input of another
 * state, which gives that state's value before the step. */
typedef struct lks_state {
    lks_node *input;  /* an lks_input (N,...) of the device's floating type */
    lks_node *output; /* of the same shape */
} lks_state;

typedef struct lks_trainer_options {
    lks_group *group; /* required */
    /* (...,C): the accuracy is computed from it. NULL: the accuracy is reported as 0. */
    lks_node *logits;
    /* Input for the features of a batch. Required. Samples as bytes (gives_bytes, data.h) need an input u8 (N, F +
     * LKS_DRAW_NBYTES) that lks_images reads. */
    lks_node *features;
    /* Input for the labels of a batch, i32 (classes, tokens). Or for its targets, f32 (N, M) or (N, ...) with M
     * elements per sample, for example for lks_mse. Required. */
    lks_node *labels;
    lks_optimizer optimizer; /* from lks_sgd, lks_adam or lks_adamw */
    uint64_t seed;           /* of the initial parameters */
    /* Number of micro-batches in which a rank computes its part of a batch, to save memory. 0: 1. */
    int64_t accumulate;
    /* G: number of shards of a global batch. Every world size that divides G gives the same bits, see below.
     * 0: none. */
    int64_t grains;
    int is_timed; /* 1: lks_trainer_describe shows each kernel's mean time */
    /* `n_states` states, copied. Row i of a state belongs to row i of this rank's batches, which then all have one
     * size. */
    const lks_state *states;
    int n_states;
    lks_strategy strategy;       /* how the ranks share the work; parallel.h */
    size_t bucket_nbytes;        /* 0: chosen automatically */
    lks_compression compression; /* of gradients between hosts */
    /* Hash of anything else that must be equal on all ranks, for example test data. 0: not compared. */
    uint64_t data_hash;
    /* 1: a gradient that is not finite is reported before it is used, with its rank and parameter. This also holds if
     * the loss is not finite. Reduction and backward pass then do not overlap. */
    int check_gradients;
    /* Number of steps between two calls of lks_check_replicas. Each call checks the parameters that the following step
     * reads. 0: never. A sharded optimizer (the default on one host) writes all copies in each step. It overwrites an
     * error that occurs between two checks. Only check_every 1 or strategy bucketed finds such errors. */
    int64_t check_every;
    /* 1: a step returns before its update has ended. The bits are the same. See below. It has no effect on a shared or
     * sharded store on a CPU, with clipped or compressed gradients, or if the step itself reduces the gradients
     * (lks_distributed_optimizer_attach). */
    int runs_ahead;
} lks_trainer_options;

/* Running ahead (runs_ahead): a step returns while a GPU still computes it, or while its gradients are being sent to
 * other hosts. The next step begins meanwhile. Each of its kernels waits for the parameters that it reads.
 *
 * The memory of the batch may be reused when the step returns, as always. An error of the update is returned by a later
 * call. Every library function that uses the store waits for the update first.
 * CPU:        Until lks_trainer_catch_up, the caller's own collectives in `group` and steps of another trainer in it
 *             return LKS_ERR_STATE.
 * GPU:        Metrics and all errors of the step are returned by a later call of its trainer. If that is
 *             lks_trainer_step and it returns such an error, it has not trained on its own batch, although states may
 *             have advanced with it. Pass the batch again to train on it. Collectives in `group` and steps of other
 *             trainers are allowed. */

/* Metrics: means over the counted labels of all ranks. Labels that the loss ignores (lks_cross_entropy_with) are not
 * counted.
 *
 * The metrics describe one step. From lks_trainer_catch_up they describe the last step, and they are empty if they were
 * read before. If the trainer runs ahead on a GPU, they cover all steps that ended since the last time metrics were
 * read. This may be no step (n_samples 0). lr, grad_norm and stop are then those of the last of these steps. */
typedef struct lks_metrics {
    double loss, accuracy;
    int64_t n_samples;    /* number of counted labels */
    double lr, grad_norm; /* of a step; grad_norm: before clipping, 0 if the optimizer does not clip */
    /* Of a step: the largest number that any rank passed to lks_trainer_request_stop. 0: none. The same on all
     * ranks. */
    int stop;
} lks_metrics;

/* Grains: a global batch is cut into G shards for any number of ranks. G is a power of two.
 *
 * Each of the n ranks computes G/n shards one after the other, each as a batch of its own. It adds their gradients in a
 * balanced tree, which continues over the ranks. Parameters and metrics therefore have the same bits for every n that
 * divides G. The loader or the windows must use the same `grains`. Batch norm computes its statistics over one shard.
 * `accumulate` must be 0 or 1, because shards already are micro-batches. Compression is not available, except for a
 * hook that keeps the order. docs/determinism.md describes the cost. */

/* Creates a trainer: the store (parameters, gradients) of `loss` and the optimizer that updates it.
 *
 * `loss` must be a mean over the counted labels. Each rank's loss is weighted by its number of counted labels. A sum
 * would train differently at each world size.
 * Collective: The ranks first compare model, options, device and instruction set, as lks_compare_options does. Before
 *             the first step they compare what they know of its batch.
 * Ownership:  the caller owns *trainer. The graph and the group must outlive it.
 * Batch norm: A model with synchronised batch norms gets a separate group for them. All ranks then run `accumulate`
 *             passes per step, also if they have no sample for a pass. Each pass has its own statistics. Such a model
 *             cannot use grains, because each shard has its own statistics.
 * Errors:     LKS_ERR_MISMATCH: the ranks differ. The text shows a table.
 *             LKS_ERR_ARGUMENT: the name of a parameter begins with "optimizer." or "trainer.". Checkpoints need such
 *             names for themselves.
 *             Those of lks_distributed_store_create and lks_distributed_optimizer_create.
 * Fatal:      LKS_ERR_ARGUMENT: an invalid option, for example an lr of NaN, Nesterov without momentum, a state that
 *             does not fit, or grains that the world size does not divide. Or the loss depends on an input other than
 *             features, labels and states. Or the options contain logits, accumulate or grains, which need to count the
 *             labels, but two of its cross entropies ignore different ones, or one ignores labels of a tensor that is
 *             computed from the labels (other than by lks_reshape and lks_transpose).
 *             LKS_ERR_UNSUPPORTED: the device of the graph does not compute in f32, the type of the batches. */
LKS_API lks_status lks_trainer_create(lks_trainer **trainer, lks_node *loss, const lks_trainer_options *options);
LKS_API void lks_trainer_destroy(lks_trainer *trainer);

/* Runs one step on this rank's part of a global batch: forward, backward, update.
 *
 * Collective: A batch size that is new is compiled first, without communication.
 * Metrics:    `metrics` (may be NULL) describes the whole global batch.
 * Labels:     Samples without a counted label are part of the batch. States advance over them, and batch norm
 *             statistics include them.
 * Errors:     The group remains usable. All ranks get the error and nothing was updated. States have advanced with the
 *             batch, except after LKS_ERR_MISMATCH (lks_trainer_reset_states makes them 0).
 *             LKS_ERR_NUMERIC: with check_gradients, a gradient is not finite. The text names step, rank and parameter.
 *             It is checked before the loss.
 *             LKS_ERR_NUMERIC: the optimizer clips and the gradient norm is not finite. Or, on a GPU, the loss of a
 *             rank is not finite. The text names step and rank.
 *             LKS_ERR_ARGUMENT: n_labels is 0 on all ranks. Either the loss ignores all labels, or the batch was made
 *             without n_labels.
 *             LKS_ERR_MISMATCH, before the step begins: with check_every, the replicas differ. In the first step, the
 *             ranks' global_count, global_n_labels, data or order of samples differ. The text shows a table.
 * Fatal:      LKS_ERR_NUMERIC: on a CPU, the loss of this rank is not finite. The text names step and rank. The other
 *             ranks get LKS_ERR_PEER.
 *             LKS_ERR_MISMATCH: before anything is updated, the ranks disagree. The sum of their n_labels is not
 *             global_n_labels, their loaders are at different batches, or their learning rates differ. Also if the
 *             batch belongs to another rank or is not cut into the trainer's grains, or if n_labels is not the number
 *             of counted labels in its pieces (accumulate, grains).
 *             LKS_ERR_ARGUMENT: the batch is NULL, its number of samples is negative, or it has more labels than its
 *             samples have. A label is outside 0..C-1. The model has states and this rank's part of the batch differs
 *             from that of the step before (lks_trainer_reset_states allows another one).
 *             LKS_ERR_SHAPE: sample_nbytes or n_targets does not match the model's input. sample_nbytes 0 is not
 *             checked.
 *             batch->status: a sample of this rank could not be read. The other ranks get LKS_ERR_PEER with the text.
 */
LKS_API lks_status lks_trainer_step(lks_trainer *trainer, const lks_batch *batch, lks_metrics *metrics);

/* Waits until the last step is done. Needed only if the trainer runs ahead, before parameters are read by other means
 * than this library.
 *
 * Collective: all ranks call it after the same step.
 * Metrics:    `metrics` may be NULL. See lks_metrics.
 * Errors:     those of lks_trainer_step, for the last step. */
LKS_API lks_status lks_trainer_catch_up(lks_trainer *trainer, lks_metrics *metrics);
/* Computes loss and accuracy over a data set.
 *
 * The set is cut into chunks of fixed size, so the result does not depend on the number of ranks. Every sample begins
 * with states of 0. The trainer's own states are kept. If the model takes bytes (lks_images), it gets the bytes of the
 * set, and lks_images normalises them instead of lks_dataset_normalize.
 * A read function (lks_read_sample) is called in the calling thread, for one sample after another. A rank that is done
 * waits for the others, at most for the timeout of the group.
 * Collective: all ranks pass the same data.
 * Errors:     On all ranks. The group remains usable.
 *             LKS_ERR_MISMATCH: the sets differ (lks_dataset_hash). The text names two ranks. If the numbers of samples
 *             differ, the group is dead.
 *             LKS_ERR_NUMERIC: the loss is NaN or infinite. `metrics` holds the result.
 * Fatal:      LKS_ERR_ARGUMENT: the set has no sample, or the model takes bytes and the set has floats. Or the
 *             labels cannot be counted (see lks_trainer_create).
 *             LKS_ERR_SHAPE: samples of another size, more than one label per sample, or other targets.
 *             They are fatal because the other ranks may have another set.
 *             That of a read function (lks_read_sample), if it fails on this rank. The other ranks get LKS_ERR_PEER
 *             with the text. */
LKS_API lks_status lks_trainer_evaluate(lks_trainer *trainer, const lks_dataset *dataset, lks_metrics *metrics);

/* Requests that all ranks stop after the same step. Costs nothing. Not collective.
 *
 * The next step and those that follow report `number` in lks_metrics.stop on every rank, or a larger number if another
 * rank requested that. `number` is above 0, for example a signal number. 0 withdraws the request. Ranks that were
 * signalled at different times, or only one of them, thus leave their loops after the same step. */
LKS_API void lks_trainer_request_stop(lks_trainer *trainer, int number);

/* Sets the learning rate from the next step on. The schedule's factor multiplies it. The same on all ranks.
 *
 * Errors:     LKS_ERR_ARGUMENT: `lr` is negative or not finite. */
LKS_API lks_status lks_trainer_set_lr(lks_trainer *trainer, double lr);

/* Writes the kernels of a training step at the largest batch size so far, in the form of lks_program_describe. */
LKS_API void lks_trainer_describe(const lks_trainer *trainer, char *text, size_t nbytes);
/* Computes loss and accuracy over a text. The label of each token is the next token. Every label counts once.
 *
 * The model's features are i32 (N,T). The text is cut into columns whose states begin at 0. The columns are the same
 * for any number of ranks. The trainer's own states are kept. Missing labels in the last windows are -1, and the loss
 * has to ignore -1.
 * Collective: all ranks pass the same text.
 * Errors:     LKS_ERR_MISMATCH: the texts differ. All ranks get it. The message names two of them. The group remains
 *             usable.
 *             LKS_ERR_NUMERIC: as lks_trainer_evaluate.
 * Fatal:      LKS_ERR_ARGUMENT: fewer than 2 tokens. LKS_ERR_SHAPE: the model does not take text. */
LKS_API lks_status lks_trainer_evaluate_text(lks_trainer *trainer, const int32_t *tokens, int64_t count,
                                             lks_metrics *metrics);

/* Sets the states to 0, their initial value.
 *
 * Call it before a text begins anew, and before batches of another size or division. Call it on all ranks before the
 * same step. */
LKS_API void lks_trainer_reset_states(lks_trainer *trainer);

/* Writes the memory of this rank's parameters, gradients, optimizer state and compiled programs. */
LKS_API void lks_trainer_memory(const lks_trainer *trainer, lks_distributed_memory *memory);

LKS_API lks_store *lks_trainer_store(const lks_trainer *trainer);

/* --- files ---
 * All files are safetensors. Tensors are row-major and have the names of parameters and buffers.
 * A file is written under a temporary name beside `path` and then renamed. It has the permissions of a file that it
 * replaces, and its owner and group where the process may give them. "__metadata__" holds the SHA-256 of the data and
 * of the header. Both are verified before anything is overwritten. Weights of other programs have neither. A program
 * that rewrites a file must leave both out.
 * Deadline:   In lks_trainer_save, lks_trainer_load and lks_trainer_resume the other ranks wait while rank 0 writes, or
 *             reads and verifies, the file. If this takes longer than the timeout of the group, they get
 *             LKS_ERR_TIMEOUT, which says that rank 0 waits for nobody.
 * Errors:     LKS_ERR_FILE: the file cannot be read or written. LKS_ERR_FORMAT: not a safetensors file, truncated,
 *             damaged, other shapes, a missing name, or an unknown name. The text names file and entry. */

/* Saves the parameters and buffers of a store. Not collective.
 *
 * If ranks share a store, one rank saves it and every rank loads it, between two barriers. */
LKS_API lks_status lks_store_save(const lks_store *store, const char *path);
/* Loads the parameters and buffers of a store. Not collective.
 *
 * Files of PyTorch work too. f32, f64, f16 and bf16 are converted to the store's type. "*.num_batches_tracked" and the
 * entries of a checkpoint other than weights are skipped. */
LKS_API lks_status lks_store_load(lks_store *store, const char *path);
/* Loads the parameters and buffers of a trainer.
 *
 * Collective: every rank reads the file.
 * Errors:     as at "files" above.
 *             LKS_ERR_MISMATCH: the ranks read different files. */
LKS_API lks_status lks_trainer_load_weights(lks_trainer *trainer, const char *path);

/* A run's position in its data. Checkpoints store it for the code that makes the batches. */
typedef struct lks_position {
    /* Of the next batch. `step` counts within the epoch. steps_per_epoch is its end. */
    int64_t epoch, step;
    /* steps_per_epoch and global_batch define the batches that `step` counts. */
    int64_t steps_per_epoch;
    int64_t global_batch;
    uint64_t data_hash; /* hash of the training data: lks_dataset_hash, lks_text_hash; 0: not compared */
    /* Whatever else a resumed run must have in common with the saved one, a line each: "shard blocks\nheads 4". At most
     * 512 bytes. Loading compares the lines. The caller owns the text. NULL or "", now or then: not compared. */
    const char *options;
} lks_position;

/* Saves everything that a run needs to continue with the same bits. Returns when the file is on disk.
 *
 * The file holds weights, optimizer state ("optimizer.<name>.m", ".v"), steps, position, seed, grains, precision and
 * whether batch norms are synchronised ("trainer.counters"), the rule ("trainer.rule") and the position's options
 * ("trainer.options"). It also holds the model's states. It does not depend on the number of ranks.
 * Collective: rank 0 writes the file and needs memory for all of it.
 * Not saved:  Number of ranks, device, number of threads, accumulate, compression, strategy, bucket size, and what the
 *             model computes beyond the names and shapes of its parameters. They are not compared on loading either. A
 *             run that continues with other ones ends with other bits, except with another strategy or bucket size, or
 *             with another number of ranks that divides the grains. Another number of ranks (without grains), device,
 *             number of threads or accumulate changes the order of additions and roundings. Number of ranks and
 *             accumulate also change the samples over which a batch norm computes its statistics.
 * Errors:     LKS_ERR_ARGUMENT: `step` is outside 0..steps_per_epoch. Or epoch * steps_per_epoch + step is not the
 *             number of steps that the trainer has made. Or the model's states have more samples than global_batch. Or
 *             they belong to parts of a batch that do not follow one another in rank order. */
LKS_API lks_status lks_trainer_save(lks_trainer *trainer, const char *path, const lks_position *position);
/* Loads a checkpoint.
 *
 * On entry `position` holds the expected steps_per_epoch, global_batch, data_hash and options. On return it holds the
 * position of the next batch.
 * Collective: rank 0 reads the file and distributes it. Other hosts do not need the file.
 * Errors:     as at "files" above.
 *             LKS_ERR_ARGUMENT: seed, rule, grains, precision, synchronised batch norms, steps_per_epoch, global_batch,
 *             data_hash or a line of options differs. The text names it. Or an intact file belongs to another model
 *             (other entries or shapes) or another version. Nothing is overwritten. A file of version 6 has neither
 *             precision nor synchronised batch norms, which are then not compared. */
LKS_API lks_status lks_trainer_load(lks_trainer *trainer, const char *path, lks_position *position);
/* Save and load a checkpoint for a custom training loop.
 *
 * The file holds the parameters and buffers of the optimizer's store, the optimizer's state, steps and rule, and the
 * position. It has the format of a trainer's checkpoint with seed 0 and without grains. A trainer's checkpoint with
 * another seed or with grains is refused. The file does not hold other state of the loop, such as its seed or a model's
 * states. Call these functions between a step and the next backward pass.
 * Collective: as lks_trainer_save and lks_trainer_load.
 * Errors:     as lks_trainer_save and lks_trainer_load.
 *             LKS_ERR_STATE: this rank has accumulated passes for the next step. */
LKS_API lks_status lks_distributed_optimizer_save(lks_distributed_optimizer *optimizer, const char *path,
                                                  const lks_position *position);
LKS_API lks_status lks_distributed_optimizer_load(lks_distributed_optimizer *optimizer, const char *path,
                                                  lks_position *position);
/* Loads a checkpoint from a file or from the newest intact checkpoint in a directory.
 *
 * In a directory only files named as by lks_checkpointer are considered. Rank 0 takes the one with the largest step
 * whose hashes and entries are valid. Damaged files are skipped, with a warning on stderr that says why. If the
 * directory has no checkpoint, `position` becomes the beginning and nothing else changes.
 * `taken` (may be NULL) receives the path of the loaded file, or "" if there is none.
 * Collective: as lks_trainer_load.
 * Errors:     those of lks_trainer_load. A file of another run (LKS_ERR_ARGUMENT) and an unreadable file (LKS_ERR_FILE)
 *             are not skipped.
 *             LKS_ERR_FILE: there is no such directory. The path may be misspelt.
 *             LKS_ERR_FORMAT: the directory has checkpoints and all of them were skipped. */
LKS_API lks_status lks_trainer_resume(lks_trainer *trainer, const char *path, lks_position *position, char *taken,
                                      size_t taken_nbytes);

/* --- checkpoints while training ---
 *
 * Every `every` steps rank 0 copies the whole state to its own memory. A thread then hashes the copy and writes it to
 * DIRECTORY/step-<12 digits>.safetensors while training continues. The thread writes to a temporary file, syncs it and
 * renames it. A crash at any moment leaves the previous checkpoint intact. A program that survives restarts by its
 * launcher has this loop:
 *
 *     if (lks_group_rank(group) == 0) mkdir(directory, 0777);              it does not exist on the first start
 *     lks_trainer_resume(trainer, directory, &position, NULL, 0);          empty directory: start from the beginning
 *     lks_checkpointer_create(&checkpointer, trainer, directory, &(lks_checkpointer_options){.every = 100});
 *     lks_loader_seek(loader, position.epoch, position.step);
 *     while (lks_loader_next(loader, &batch)) {
 *         lks_trainer_request_stop(trainer, signal_that_arrived);          set by a signal handler, or 0
 *         lks_trainer_step(trainer, &batch, &metrics);
 *         position.step++;
 *         if (metrics.stop > 0) break;                                     on all ranks after the same step
 *         lks_checkpointer_step(checkpointer, &position);
 *     }
 *     lks_checkpointer_save(checkpointer, &position);
 *
 * The directory is needed on rank 0's host only. It may be on a shared file system.
 * Lock:       One run at a time writes to the directory. It holds a lock (DIRECTORY/lock), which the system releases
 *             when the process ends. */
typedef struct lks_checkpointer lks_checkpointer;

typedef struct lks_checkpointer_options {
    /* Steps between two checkpoints. 0: only lks_checkpointer_save writes one. The same on all ranks. */
    int64_t every;
    /* Number of newest checkpoints to keep. Older ones are removed when a new one is on disk, and so are those that
     * lks_trainer_resume has passed over. 0: 3. */
    int64_t keep;
} lks_checkpointer_options;

/* Creates a checkpointer. `options` may be NULL.
 *
 * It creates the directory if that is missing, and removes files that a killed run left incomplete.
 * Collective: all ranks call it.
 * Ownership:  the caller owns *checkpointer. The trainer must outlive it.
 * Memory:     Rank 0 allocates the size of a checkpoint. Memory for the model's states is allocated with the first
 *             checkpoint.
 * Errors:     LKS_ERR_STATE: another run holds the lock. Or the directory holds later steps than the trainer's that it
 *             did not hold when the trainer was resumed from it. Its files would be mistaken for this run's.
 *             LKS_ERR_FILE, LKS_ERR_ARGUMENT, LKS_ERR_MEMORY. */
LKS_API lks_status lks_checkpointer_create(lks_checkpointer **checkpointer, lks_trainer *trainer, const char *directory,
                                           const lks_checkpointer_options *options);
/* Finishes the checkpoint that is being written and releases the directory. Not collective. An error of the write is
 * logged. */
LKS_API void lks_checkpointer_destroy(lks_checkpointer *checkpointer);
/* Starts a checkpoint if one is due, and returns when the state is copied. Call it after each step.
 *
 * If the previous checkpoint is still being written, it waits for that, at most for half the timeout of the group.
 * Collective: all ranks call it after the same step.
 * Errors:     LKS_ERR_FILE: the previous checkpoint could not be written (disk full, directory removed). All ranks get
 *             it. The text names the file. The due checkpoint was not started. The group remains usable and the next
 *             checkpoint may succeed.
 *             LKS_ERR_TIMEOUT: the previous checkpoint is still being written after that time. The group remains
 *             usable.
 *             Those of lks_trainer_save. */
LKS_API lks_status lks_checkpointer_step(lks_checkpointer *checkpointer, const lks_position *position);
/* Writes a checkpoint now, whether one is due or not. Returns when it is on disk. Collective.
 *
 * If the previous checkpoint could not be written, that error is logged and this one is written all the same. While the
 * previous one is still being written (LKS_ERR_TIMEOUT), this one is not started.
 * Errors:     those of lks_checkpointer_step, of this checkpoint. */
LKS_API lks_status lks_checkpointer_save(lks_checkpointer *checkpointer, const lks_position *position);
/* Waits for the last checkpoint, at most for half the timeout of the group, and returns whether it is on disk.
 * Collective. */
LKS_API lks_status lks_checkpointer_finish(lks_checkpointer *checkpointer);
/* The path of the last checkpoint that was started. "" before the first. */
LKS_API const char *lks_checkpointer_path(const lks_checkpointer *checkpointer);

#ifdef __cplusplus
}
#endif
#endif

/* Lockstep, room optim/: optimizers and learning-rate schedules. */
#ifndef LOCKSTEP_OPTIM_H
#define LOCKSTEP_OPTIM_H

#include <lockstep/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- schedules: a factor on the learning rate for each step, counted from 0 --- */

/* A schedule is a value. The functions below make it. Zeros mean a constant factor. Momentum is never cycled. */
typedef enum lks_schedule_kind {
    LKS_SCHEDULE_CONSTANT,
    LKS_SCHEDULE_LINEAR,
    LKS_SCHEDULE_STEP,
    LKS_SCHEDULE_COSINE,
    LKS_SCHEDULE_ONE_CYCLE
} lks_schedule_kind;
typedef struct lks_schedule {
    lks_schedule_kind kind;
    double first, last; /* factors at both ends; STEP: `last` multiplies at each drop */
    int64_t n_steps;    /* from one end to the other; STEP: from drop to drop */
    double rising;      /* ONE_CYCLE: fraction of the steps in which the factor rises */
    int64_t n_warm_up;  /* warm-up steps, before the others */
    double warm_up_first;
} lks_schedule;

/* Linear from `first` to `last` over n_steps steps, then `last`. As torch.optim.lr_scheduler.LinearLR, stepped every
 * step. */
LKS_API lks_schedule lks_schedule_linear(double first, double last, int64_t n_steps);
/* Multiplies by `factor` every n_steps steps. As StepLR. */
LKS_API lks_schedule lks_schedule_step(double factor, int64_t n_steps);
/* From 1 to `last` along half a cosine over n_steps steps, then `last`. As CosineAnnealingLR for its first n_steps
 * steps.
 * Source:     Loshchilov, Hutter, "SGDR", 2017. */
LKS_API lks_schedule lks_schedule_cosine(double last, int64_t n_steps);
/* One cycle, as OneCycleLR with its defaults and cycle_momentum=False. The optimizer's lr is the peak.
 *
 * The factor rises from 1/25 to 1 over the first 0.3 of n_steps, then falls to 1/250000, both along half a cosine. It
 * stays there.
 * Source:     Smith, Topin, "Super-convergence", 2018. */
LKS_API lks_schedule lks_schedule_one_cycle(int64_t n_steps);
/* `schedule` after a linear warm-up of n_steps steps. The warm-up rises from `first` times to 1 times the schedule's
 * initial factor.
 *
 * If the initial factor is 1, this equals SequentialLR of a LinearLR and the schedule. Otherwise (one cycle's 1/25, a
 * linear schedule from another factor) SequentialLR would warm up to the optimizer's lr, and the schedule would begin
 * with a jump. A schedule has one warm-up: a second call replaces the first. */
LKS_API lks_schedule lks_schedule_warm_up(lks_schedule schedule, double first, int64_t n_steps);
/* The factor in step `step`. NaN if `schedule` is NULL. */
LKS_API double lks_schedule_factor(const lks_schedule *schedule, int64_t step);

/* --- optimizers: values without state that describe an update rule ---
 *
 * In f32 on a CPU an update with state treats numbers below the smallest normal float (1e-38) as 0, in its input and
 * its output. Otherwise moments of a gradient that has become 0 would remain subnormal and slow down every later step.
 * The second moment of gradients below 3e-18 may be 0. With an epsilon of 0 Adam's step is then 0. AdamW's decay still
 * changes the parameter. */

typedef enum lks_optimizer_kind { LKS_OPTIMIZER_SGD, LKS_OPTIMIZER_ADAM, LKS_OPTIMIZER_ADAMW } lks_optimizer_kind;

typedef struct lks_optimizer {
    lks_optimizer_kind kind;
    int is_nesterov, decays_matrices_only;
    double lr, momentum, weight_decay, beta1, beta2, epsilon;
    double clip_norm; /* 0: no clipping */
    lks_schedule schedule;
} lks_optimizer;

/* Fields of all options. An optimizer of other values is refused when it is used:
 * lr is above 0. momentum, beta1 and beta2 are in [0, 1). weight_decay, epsilon and clip_norm are at least 0. All of
 * them and the factors of the schedule are finite in f32 (clip_norm in f64).
 * clip_norm: if the norm of the mean gradient of all parameters together exceeds clip_norm, the gradient is scaled by
 * clip_norm / (norm + 1e-6), as in torch.nn.utils.clip_grad_norm_. Buffers do not count. 0: never.
 * decay_matrices_only: 1: weight decay applies only to parameters of two or more dimensions (weights, embeddings), not
 * to biases and norms, like the parameter groups of nanoGPT and llm.c. */

typedef struct lks_sgd_options {
    double lr; /* 0: 1e-3 */
    double momentum, weight_decay;
    lks_schedule schedule;
    int nesterov; /* 1: p -= lr (g + momentum m); requires momentum */
    double clip_norm;
    int decay_matrices_only;
} lks_sgd_options;

/* SGD: g += weight_decay p; m = momentum m + g; p -= lr m. As torch.optim.SGD. */
LKS_API lks_optimizer lks_sgd(const lks_sgd_options *options);

typedef struct lks_adam_options {
    double lr;           /* 0: 1e-3 */
    double beta1, beta2; /* 0: 0.9, 0.999; LKS_ZERO: 0 */
    double epsilon;      /* 0: 1e-8; LKS_ZERO: 0 */
    double weight_decay; /* L2 term in the gradient */
    lks_schedule schedule;
    double clip_norm;
    int decay_matrices_only;
} lks_adam_options;

/* Adam, as torch.optim.Adam.
 * Source:     Kingma, Ba, "Adam: a method for stochastic optimization", 2015. */
LKS_API lks_optimizer lks_adam(const lks_adam_options *options);

typedef struct lks_adamw_options {
    double lr;           /* 0: 1e-3 */
    double beta1, beta2; /* 0: 0.9, 0.999; LKS_ZERO: 0 */
    double epsilon;      /* 0: 1e-8; LKS_ZERO: 0 */
    /* 0: 0.01; LKS_ZERO: 0. Decoupled from the gradient: p *= 1 - lr weight_decay. */
    double weight_decay;
    lks_schedule schedule;
    double clip_norm;
    int decay_matrices_only;
} lks_adamw_options;

/* AdamW, as torch.optim.AdamW.
 * Source:     Loshchilov, Hutter, "Decoupled weight decay regularization", 2019. */
LKS_API lks_optimizer lks_adamw(const lks_adamw_options *options);

#ifdef __cplusplus
}
#endif
#endif

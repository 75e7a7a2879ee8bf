/* Lockstep, room optim/: update rules and learning-rate schedules as users see them. */
#ifndef LOCKSTEP_OPTIM_H
#define LOCKSTEP_OPTIM_H

#include <lockstep/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- schedules: the learning rate's factor over the steps, which count from 0 --- */

/* A value, made by one of the functions below; zeros mean constant. Momentum is never cycled. */
typedef enum lks_schedule_kind {
    LKS_SCHEDULE_CONSTANT,
    LKS_SCHEDULE_LINEAR,
    LKS_SCHEDULE_STEP,
    LKS_SCHEDULE_COSINE,
    LKS_SCHEDULE_ONE_CYCLE
} lks_schedule_kind;
typedef struct lks_schedule {
    lks_schedule_kind kind;
    double first, last; /* factors at both ends; STEP: `last` is what each fall multiplies by */
    int64_t n_steps;    /* from one end to the other; STEP: from fall to fall */
    double rising;      /* ONE_CYCLE: the part of the steps in which the factor rises */
    int64_t n_warm_up;  /* steps that come before all this */
    double warm_up_first;
} lks_schedule;

/* From `first` to `last` over n_steps steps, then `last`; as torch.optim.lr_scheduler.LinearLR stepped every step. */
LKS_API lks_schedule lks_schedule_linear(double first, double last, int64_t n_steps);
/* Multiplied by `factor` every n_steps steps; as StepLR. */
LKS_API lks_schedule lks_schedule_step(double factor, int64_t n_steps);
/* From 1 along half a cosine to `last` over n_steps steps, then `last`; as CosineAnnealingLR up to there.
 * Source: Loshchilov, Hutter, "SGDR", 2017. */
LKS_API lks_schedule lks_schedule_cosine(double last, int64_t n_steps);
/* The optimizer's lr is the peak: from 1/25 of it up over the first 0.3 of n_steps, down to 1/250000, both along half a
 * cosine; then there. As OneCycleLR with its defaults but cycle_momentum=False.
 * Source: Smith, Topin, "Super-convergence", 2018. */
LKS_API lks_schedule lks_schedule_one_cycle(int64_t n_steps);
/* `schedule`, preceded by n_steps steps in which the factor rises linearly from `first` times to one times the
 * schedule's beginning. Where that is 1, it is as SequentialLR of a LinearLR and the schedule; elsewhere (one cycle's
 * 1/25, a linear schedule from another factor) LinearLR would rise to the optimizer's lr all the same, and the schedule
 * begin with a leap. A schedule has one warm-up: that of one which has a warm-up already is replaced by this one. */
LKS_API lks_schedule lks_schedule_warm_up(lks_schedule schedule, double first, int64_t n_steps);
/* NaN where `schedule` is NULL. */
LKS_API double lks_schedule_factor(const lks_schedule *schedule, int64_t step);

/* --- optimizers: what to do with gradients. A value that holds no state ---
 *
 * In f32 on a CPU, numbers below the smallest normal float (1e-38) count as zeros in an update, and come out as zeros:
 * moments whose gradient has ended would otherwise stay there and make every later step slow. */

typedef enum lks_optimizer_kind { LKS_OPTIMIZER_SGD, LKS_OPTIMIZER_ADAM, LKS_OPTIMIZER_ADAMW } lks_optimizer_kind;

typedef struct lks_optimizer {
    lks_optimizer_kind kind;
    int is_nesterov, decays_matrices_only;
    double lr, momentum, weight_decay, beta1, beta2, epsilon;
    double clip_norm; /* 0: no clipping */
    lks_schedule schedule;
} lks_optimizer;

/* In all options: where the mean gradient of all parameters together (buffers do not count) has a norm above clip_norm,
 * it is scaled down to it, by clip_norm / (norm + 1e-6) as in torch.nn.utils.clip_grad_norm_; 0: never.
 * decay_matrices_only 1: weight decay counts for parameters of two or more dimensions alone (weights, embeddings), not
 * for biases and norms: as nanoGPT's and llm.c's parameter groups. */

typedef struct lks_sgd_options {
    double lr; /* 0: 1e-3 */
    double momentum, weight_decay;
    lks_schedule schedule;
    int nesterov; /* 1: p -= lr (g + momentum m); needs momentum */
    double clip_norm;
    int decay_matrices_only;
} lks_sgd_options;

/* g += weight_decay p; m = momentum m + g; p -= lr m. As torch.optim.SGD. */
LKS_API lks_optimizer lks_sgd(const lks_sgd_options *options);

typedef struct lks_adam_options {
    double lr;           /* 0: 1e-3 */
    double beta1, beta2; /* 0: 0.9, 0.999; LKS_ZERO: 0 */
    double epsilon;      /* 0: 1e-8; LKS_ZERO: 0 */
    double weight_decay; /* as an L2 term of the gradient */
    lks_schedule schedule;
    double clip_norm;
    int decay_matrices_only;
} lks_adam_options;

/* As torch.optim.Adam. Source: Kingma, Ba, "Adam: a method for stochastic optimization", 2015. */
LKS_API lks_optimizer lks_adam(const lks_adam_options *options);

typedef struct lks_adamw_options {
    double lr;           /* 0: 1e-3 */
    double beta1, beta2; /* 0: 0.9, 0.999; LKS_ZERO: 0 */
    double epsilon;      /* 0: 1e-8; LKS_ZERO: 0 */
    double weight_decay; /* 0: 0.01; LKS_ZERO: 0; p *= 1 - lr weight_decay, apart from the gradient */
    lks_schedule schedule;
    double clip_norm;
    int decay_matrices_only;
} lks_adamw_options;

/* As torch.optim.AdamW. Source: Loshchilov, Hutter, "Decoupled weight decay regularization", 2019. */
LKS_API lks_optimizer lks_adamw(const lks_adamw_options *options);

#ifdef __cplusplus
}
#endif
#endif

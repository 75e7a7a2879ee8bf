/* Lockstep, room optim/: update rules and learning-rate schedules as users see them. */
#ifndef LOCKSTEP_OPTIM_H
#define LOCKSTEP_OPTIM_H

#include <lockstep/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The learning rate's factor over the steps. A value; zeros mean constant. */
typedef enum lks_schedule_kind { LKS_SCHEDULE_CONSTANT, LKS_SCHEDULE_LINEAR } lks_schedule_kind;
typedef struct lks_schedule {
    lks_schedule_kind kind;
    double first, last; /* factors */
    int64_t n_steps;
} lks_schedule;

/* From `first` to `last` over n_steps steps, then `last`; as torch.optim.lr_scheduler.LinearLR stepped every step. */
LKS_API lks_schedule lks_schedule_linear(double first, double last, int64_t n_steps);
/* The factor at `step`, which counts from 0. */
LKS_API double lks_schedule_factor(const lks_schedule *schedule, int64_t step);

typedef enum lks_optimizer_kind { LKS_OPTIMIZER_SGD, LKS_OPTIMIZER_ADAM } lks_optimizer_kind;

/* What to do with gradients: a value, made by lks_sgd or lks_adam. Holds no state. */
typedef struct lks_optimizer {
    lks_optimizer_kind kind;
    double lr, momentum, weight_decay, beta1, beta2, epsilon;
    lks_schedule schedule;
} lks_optimizer;

typedef struct lks_sgd_options {
    double lr; /* 0: 1e-3 */
    double momentum, weight_decay;
    lks_schedule schedule;
} lks_sgd_options;

/* g += weight_decay p; m = momentum m + g; p -= lr m. As torch.optim.SGD. */
LKS_API lks_optimizer lks_sgd(const lks_sgd_options *options);

typedef struct lks_adam_options {
    double lr;           /* 0: 1e-3 */
    double beta1, beta2; /* 0: 0.9, 0.999; LKS_ZERO: 0 */
    double epsilon;      /* 0: 1e-8; LKS_ZERO: 0 */
    double weight_decay; /* as an L2 term of the gradient */
    lks_schedule schedule;
} lks_adam_options;

/* As torch.optim.Adam. Source: Kingma, Ba, "Adam: a method for stochastic optimization", 2015. */
LKS_API lks_optimizer lks_adam(const lks_adam_options *options);

#ifdef __cplusplus
}
#endif
#endif

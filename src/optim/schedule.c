/* Learning-rate schedules: factors in closed form, so that a step's factor does not depend on earlier steps. */
#include "optim/optim.h"

#include <math.h>

static const double PI = 3.14159265358979323846;

lks_schedule lks_schedule_linear(double first, double last, int64_t n_steps) {
    return (lks_schedule){.kind = LKS_SCHEDULE_LINEAR, .first = first, .last = last, .n_steps = n_steps};
}

lks_schedule lks_schedule_step(double factor, int64_t n_steps) {
    return (lks_schedule){.kind = LKS_SCHEDULE_STEP, .first = 1, .last = factor, .n_steps = n_steps};
}

lks_schedule lks_schedule_cosine(double last, int64_t n_steps) {
    return (lks_schedule){.kind = LKS_SCHEDULE_COSINE, .first = 1, .last = last, .n_steps = n_steps};
}

lks_schedule lks_schedule_one_cycle(int64_t n_steps) {
    return (lks_schedule){
        .kind = LKS_SCHEDULE_ONE_CYCLE, .first = 1.0 / 25, .last = 1.0 / 25 / 1e4, .n_steps = n_steps, .rising = 0.3};
}

lks_schedule lks_schedule_warm_up(lks_schedule schedule, double first, int64_t n_steps) {
    schedule.n_warm_up = n_steps;
    schedule.warm_up_first = first;
    return schedule;
}

/* Half a cosine from `first` at 0 to `last` at 1. */
static double swing(double first, double last, double part) { return last + (first - last) / 2 * (1 + cos(PI * part)); }

/* The last of the n_steps steps has the last factor. The peak may lie between two steps. */
static double one_cycle(const lks_schedule *schedule, double step) {
    double end = (double)schedule->n_steps - 1, peak = schedule->rising * (double)schedule->n_steps - 1;
    if (step >= end) return schedule->last;
    if (step <= peak && peak > 0) return swing(schedule->first, 1, step / peak);
    return swing(1, schedule->last, (step - peak) / (end - peak));
}

static double factor_after_warm_up(const lks_schedule *schedule, int64_t step) {
    double n = (double)schedule->n_steps, at = (double)step;
    int64_t n_falls = schedule->n_steps > 0 ? step / schedule->n_steps : 0;
    switch (schedule->kind) {
    case LKS_SCHEDULE_CONSTANT:
        break;
    case LKS_SCHEDULE_LINEAR:
        return at >= n ? schedule->last : schedule->first + (schedule->last - schedule->first) * at / n;
    case LKS_SCHEDULE_STEP:
        return pow(schedule->last, (double)n_falls);
    case LKS_SCHEDULE_COSINE:
        return at >= n ? schedule->last : swing(schedule->first, schedule->last, at / n);
    case LKS_SCHEDULE_ONE_CYCLE:
        return one_cycle(schedule, at);
    }
    return 1;
}

double lks_schedule_factor(const lks_schedule *schedule, int64_t step) {
    if (lksi_check_given("schedule_factor", "schedule", schedule) != LKS_OK) return (double)NAN;
    if (step < 0) step = 0;
    if (step >= schedule->n_warm_up) return factor_after_warm_up(schedule, step - schedule->n_warm_up);
    double part = (double)step / (double)schedule->n_warm_up;
    return (schedule->warm_up_first + (1 - schedule->warm_up_first) * part) * factor_after_warm_up(schedule, 0);
}

lks_status lksi_schedule_check(const lks_schedule *schedule) {
    if (schedule->kind < LKS_SCHEDULE_CONSTANT || schedule->kind > LKS_SCHEDULE_ONE_CYCLE)
        return lksi_error(LKS_ERR_ARGUMENT, "%d is not a kind of schedule", (int)schedule->kind);
    if (schedule->n_warm_up < 0 || (schedule->n_warm_up > 0 && !lksi_is_factor(schedule->warm_up_first)))
        return lksi_error(LKS_ERR_ARGUMENT,
                          "a warm-up of %lld steps from factor %g; both must be at least 0 and finite in f32",
                          (long long)schedule->n_warm_up, schedule->warm_up_first);
    if (schedule->kind == LKS_SCHEDULE_CONSTANT) return LKS_OK;
    if (schedule->n_steps < 1)
        return lksi_error(LKS_ERR_ARGUMENT, "a schedule over %lld steps; at least 1 is needed",
                          (long long)schedule->n_steps);
    if (!lksi_is_factor(schedule->first) || !lksi_is_factor(schedule->last))
        return lksi_error(LKS_ERR_ARGUMENT, "a schedule's factors %g and %g are not both at least 0 and finite in f32",
                          schedule->first, schedule->last);
    if (schedule->kind == LKS_SCHEDULE_ONE_CYCLE && !(schedule->rising > 0 && schedule->rising < 1))
        return lksi_error(LKS_ERR_ARGUMENT, "the rising fraction %g of one cycle is not between 0 and 1",
                          schedule->rising);
    return LKS_OK;
}

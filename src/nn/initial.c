/* Initializers that depend on the number of inputs (fan-in) and outputs (fan-out) of an element. */
#include <lockstep/nn.h>
#include <math.h>

lks_initializer lks_kaiming_uniform(int64_t fan_in) {
    return (lks_initializer){LKS_INITIAL_UNIFORM, sqrt(6.0 / (double)fan_in)};
}

lks_initializer lks_kaiming_normal(int64_t fan_in) {
    return (lks_initializer){LKS_INITIAL_NORMAL, sqrt(2.0 / (double)fan_in)};
}

lks_initializer lks_xavier_uniform(int64_t fan_in, int64_t fan_out) {
    return (lks_initializer){LKS_INITIAL_UNIFORM, sqrt(6.0 / ((double)fan_in + (double)fan_out))};
}

lks_initializer lks_xavier_normal(int64_t fan_in, int64_t fan_out) {
    return (lks_initializer){LKS_INITIAL_NORMAL, sqrt(2.0 / ((double)fan_in + (double)fan_out))};
}

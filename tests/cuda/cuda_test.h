/* What the tests of the cuda device share. */
#ifndef CUDA_TEST_H
#define CUDA_TEST_H

#include "device/device.h"
#include "test.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* LOCKSTEP_TEST_CUDA=real: on the GPU of this machine, by the modules that lie beside the tests' directory, or where
 * LOCKSTEP_CUDA_MODULE and LOCKSTEP_NCCL_MODULE say; what only the emulated GPU can show is left out. */
static inline bool is_real_gpu(void) {
    const char *wanted = getenv("LOCKSTEP_TEST_CUDA");
    return wanted != NULL && strcmp(wanted, "real") == 0;
}

/* Sums come in another order there. */
static inline double gpu_tolerance(double tolerance) { return is_real_gpu() ? 10 * tolerance : tolerance; }

/* Where it is a real one: leaves the test. */
static inline void need_emulated_gpu(void) {
    if (is_real_gpu()) skip();
}

/* Products in whole f32: TF32 rounds their operands to 11 bits. Whether the module is there. */
static inline bool choose_module(const char *variable, const char *real, const char *emulated) {
    if (is_real_gpu()) setenv("NVIDIA_TF32_OVERRIDE", "0", 1);
    setenv(variable, is_real_gpu() ? real : emulated, !is_real_gpu());
    return access(getenv(variable), R_OK) == 0;
}
static inline bool choose_gpu(void) {
    return choose_module("LOCKSTEP_CUDA_MODULE", LKSI_BUILD_DIR "/lockstep-cuda.so",
                         LKSI_BUILD_DIR "/tests/lockstep-cuda-emulated.so");
}

static inline lks_device *create_cuda(void) {
    lks_device *device = NULL;
    assert_ok(lks_device_create(&device, &(lks_device_options){.name = "cuda:0"}));
    return device;
}

/* In a test among others: the GPU is device "cuda:0" from now on, or the test is skipped, and says so. */
static inline void use_gpu(void) {
    if (choose_gpu()) return;
    puts("skipped: this build has no CUDA toolkit, whose headers the emulated GPU needs");
    skip();
}

/* Skips where the build had no CUDA toolkit, and says so. */
#define run_cuda_tests(name, tests)                                                                                    \
    (choose_gpu() ? cmocka_run_group_tests_name(name, tests, NULL, NULL)                                               \
                  : (puts("skipped: this build has no CUDA toolkit, whose headers the emulated GPU needs"), 0))

#endif

/* Shared code of the tests of the cuda device. */
#ifndef CUDA_TEST_H
#define CUDA_TEST_H

#include "device/device.h"
#include "test.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* LOCKSTEP_TEST_CUDA=real: the tests run on the GPU of this machine. They use the modules in the parent of the tests'
 * directory, or those that LOCKSTEP_CUDA_MODULE and LOCKSTEP_NCCL_MODULE name. Tests that need the emulated GPU are
 * skipped. */
static inline bool is_real_gpu(void) {
    const char *wanted = getenv("LOCKSTEP_TEST_CUDA");
    return wanted != NULL && strcmp(wanted, "real") == 0;
}

/* A real GPU adds in another order. */
static inline double gpu_tolerance(double tolerance) { return is_real_gpu() ? 10 * tolerance : tolerance; }

/* Skips the test on a real GPU. */
static inline void need_emulated_gpu(void) {
    if (is_real_gpu()) skip();
}

/* Selects a module and returns whether it exists. Products use full f32, because TF32 rounds their operands to 11
 * bits. */
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

/* For single tests in other programs: selects the GPU, as device "cuda:0". Skips the test with a message if there is no
 * module. */
static inline void use_gpu(void) {
    if (choose_gpu()) return;
    puts("skipped: this build has no CUDA toolkit, whose headers the emulated GPU needs");
    skip();
}

/* Skips with a message if the build had no CUDA toolkit. */
#define run_cuda_tests(name, tests)                                                                                    \
    (choose_gpu() ? cmocka_run_group_tests_name(name, tests, NULL, NULL)                                               \
                  : (puts("skipped: this build has no CUDA toolkit, whose headers the emulated GPU needs"), 0))

#endif

/* What the tests of the cuda device share. */
#ifndef CUDA_TEST_H
#define CUDA_TEST_H

#include "device/device.h"
#include "test.h"

#include <stdlib.h>
#include <unistd.h>

#define EMULATED_MODULE LKSI_BUILD_DIR "/tests/lockstep-cuda-emulated.so"

static inline lks_device *create_cuda(void) {
    lks_device *device = NULL;
    assert_ok(lks_device_create(&device, &(lks_device_options){.name = "cuda:0"}));
    return device;
}

/* In a test among others: the emulated GPU is device "cuda:0" from now on, or the test is skipped, and says so. */
static inline void use_emulated_gpu(void) {
    if (access(EMULATED_MODULE, R_OK) != 0) {
        puts("skipped: this build has no CUDA toolkit, whose headers the emulated GPU needs");
        skip();
    }
    setenv("LOCKSTEP_CUDA_MODULE", EMULATED_MODULE, 1);
}

/* Skips where the build had no CUDA toolkit, and says so. */
#define run_cuda_tests(name, tests)                                                                                    \
    (access(EMULATED_MODULE, R_OK) == 0                                                                                \
         ? (setenv("LOCKSTEP_CUDA_MODULE", EMULATED_MODULE, 1), cmocka_run_group_tests_name(name, tests, NULL, NULL))  \
         : (puts("skipped: this build has no CUDA toolkit, whose headers the emulated GPU needs"), 0))

#endif

/* How many images per second one thread of a loader makes, unchanged and augmented, for comparison with the rate at
 * which a training step consumes them.
 *
 *     build/examples/loader_speed DIR          DIR: as resnet9's --data
 */
#include <lockstep/lockstep.h>

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { BATCH = 128, N_MEASUREMENTS = 301, N_BATCHES = 10 };

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median over short measurements. Other programs on the machine disturb only some of them. */
static double median_us(lks_loader *loader) {
    double us[N_MEASUREMENTS];
    lks_batch batch;
    for (int i = 0; i < N_MEASUREMENTS; i++) {
        int64_t n_samples = 0;
        double begin_s = now_s();
        for (int j = 0; j < N_BATCHES; j++)
            if (lks_loader_next(loader, &batch)) n_samples += batch.count;
        us[i] = (now_s() - begin_s) * 1e6 / (double)n_samples;
    }
    qsort(us, N_MEASUREMENTS, sizeof *us, by_value);
    return us[N_MEASUREMENTS / 2];
}

static int measure(lks_dataset *dataset, const char *what, lks_augment_options augment) {
    lks_loader *loader;
    LKS_CHECK(lks_loader_create(&loader, dataset,
                                &(lks_loader_options){.batch = BATCH, .n_workers = -1, .augment = augment}));
    double us = median_us(loader);
    printf("%-20s %5.2f us a sample, %8.0f samples/s\n", what, us, 1e6 / us);
    lks_loader_destroy(loader);
    return 0;
}

static int measure_all(lks_dataset *dataset) {
    double means[3], deviations[3];
    LKS_CHECK(lks_dataset_channel_moments(dataset, means, deviations));
    LKS_CHECK(lks_dataset_normalize_channels(dataset, means, deviations));
    return measure(dataset, "normalised", (lks_augment_options){.flip = 0}) ||
           measure(dataset, "and cropped", (lks_augment_options){.crop_padding = 4}) ||
           measure(dataset, "and flipped", (lks_augment_options){.flip = 1}) ||
           measure(dataset, "cropped and flipped", (lks_augment_options){.crop_padding = 4, .flip = 1});
}

int main(int argc, char **argv) {
    lks_dataset *dataset;
    if (argc != 2 || argv[1][0] == '-') {
        fprintf(stderr, "usage: %s DIR\n", argv[0]);
        return 2;
    }
    LKS_CHECK(lks_dataset_cifar10(&dataset, argv[1], 1));
    int exit_code = measure_all(dataset);
    lks_dataset_destroy(dataset);
    if (fflush(stdout) != 0) return perror("loader_speed: standard output"), 1;
    return exit_code;
}

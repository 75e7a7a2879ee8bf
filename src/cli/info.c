/* lockstep info: what is built in and what this machine has. */
#define _GNU_SOURCE /* affinity */
#include "base/base.h"
#include "base/isa.h"
#include "cli/cli.h"
#include "comm/comm.h"
#include "comm/nccl/nccl.h"
#include "comm/transport/mpi/mpi.h"
#include "data/download/download.h"
#include "device/cuda_module.h"
#ifdef LKSI_HAS_ONEDNN
#include "onednn/onednn.h"
#endif

#include <cjson/cJSON.h>
#include <openssl/crypto.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

enum { N_TUNED_HOSTS = 8 };

static const char help_text[] =
    "usage: lockstep info\n"
    "\n"
    "Prints what is built in and what was found: devices, transports, algorithms, libraries, CPUs. Fails if\n"
    "LOCKSTEP_ALGORITHM, LOCKSTEP_ISA or LOCKSTEP_TUNING would fail a job.\n";

static void print_cpus(void) {
    cpu_set_t allowed[LKSI_N_CPU_SETS];
    int n_allowed = sched_getaffinity(0, sizeof allowed, allowed) == 0 ? CPU_COUNT_S(sizeof allowed, allowed) : 1;
    printf("cpus:            %d usable, of %d allowed and %ld online\n", lksi_cpu_count(), n_allowed,
           sysconf(_SC_NPROCESSORS_ONLN));
    double quota = lksi_cpu_quota();
    if (quota > 0)
        printf("cgroup quota:    %g CPUs\n", quota);
    else
        printf("cgroup quota:    none\n");
}

static void print_gpu(const lksi_cuda_module *cuda, int index) {
    lksi_cuda_facts facts;
    if (cuda->describe(index, &facts) != LKS_OK)
        printf("  cuda:%d         %s\n", index, lks_error_text());
    else
        printf("  cuda:%d         %s, compute capability %d.%d, %d multiprocessors, %.1f of %.1f GiB free, %s\n", index,
               facts.name, facts.major, facts.minor, facts.n_multiprocessors, (double)facts.free_nbytes / 0x1p30,
               (double)facts.total_nbytes / 0x1p30, facts.bus_id);
}

static void print_gpus(void) {
    const lksi_cuda_module *cuda;
    char versions[LKSI_CUDA_NAME_NBYTES];
    int n_gpus;
    if (lksi_cuda_load(&cuda) != LKS_OK) {
        printf("cuda:            none: %s\n", lks_error_text());
        return;
    }
    cuda->versions(versions, sizeof versions);
    printf("cuda:            %s\n", versions);
    if (cuda->count(&n_gpus) != LKS_OK) {
        printf("  no GPU: %s\n", lks_error_text());
        return;
    }
    for (int i = 0; i < n_gpus; i++) print_gpu(cuda, i);
}

static bool has_gpu(void) {
    const lksi_cuda_module *cuda;
    int n_gpus;
    return lksi_cuda_load(&cuda) == LKS_OK && cuda->count(&n_gpus) == LKS_OK && n_gpus > 0;
}

static void print_devices(void) {
    const char *gpu = has_gpu() ? ", cuda" : "";
#ifdef LKSI_HAS_ONEDNN
    printf("devices:         cpu (oneDNN), reference%s\n", gpu);
    printf("oneDNN:          %s\n", lksi_dnnl_version_text());
#else
    printf("devices:         cpu (built without oneDNN: the reference device), reference%s\n", gpu);
#endif
}

/* The choice of `auto` depends on the group (docs/collectives.md). This shows the candidates, and what the environment
 * requests. */
static lks_status print_algorithms(void) {
    const lksi_operation *operation;
    const char *name, *forced = getenv("LOCKSTEP_ALGORITHM"),
                      *shown = "direct on one host; across hosts two_level, or by cost";
    lks_status status = lksi_algorithm_variable_check();
    if (forced != NULL && *forced != '\0') shown = forced;
    printf("algorithms:      auto: %s\n", status == LKS_OK ? shown : lks_error_text());
    for (int i = 0; (operation = lksi_operation_at(i)) != NULL; i++) {
        printf("  %-15s", lksi_operation_name(operation));
        for (int j = 0; (name = lksi_operation_algorithm(operation, j)) != NULL; j++) printf(" %s", name);
        putchar('\n');
    }
    return status;
}

/* Prints "tree to 8192, ring": sizes in bytes, up to 1 GiB. */
static void print_choices(const lksi_operation *operation, const lksi_tuning *tuning) {
    const char *before = lksi_operation_cheapest(operation, tuning, N_TUNED_HOSTS, 1);
    printf("  %-15s %s", lksi_operation_name(operation), before);
    for (size_t nbytes = 2; nbytes <= (size_t)1 << 30; nbytes *= 2) {
        const char *name = lksi_operation_cheapest(operation, tuning, N_TUNED_HOSTS, nbytes);
        if (strcmp(name, before) != 0) printf(" to %zu, %s", nbytes / 2, name);
        before = name;
    }
    putchar('\n');
}

static lks_status print_tuning_of(const char *transport, bool *is_any) {
    const lksi_operation *operation;
    lksi_tuning tuning;
    LKS_TRY(lksi_tuning_read(transport, &tuning));
    if (!tuning.is_given) return LKS_OK;
    *is_any = true;
    printf("tuning:          %s: %s %g us, %g GB/s; %d hosts with a rank each, by bytes:\n", getenv("LOCKSTEP_TUNING"),
           transport, tuning.latency_ns / 1000, 1 / tuning.ns_per_byte, N_TUNED_HOSTS);
    for (int i = 0; (operation = lksi_operation_at(i)) != NULL; i++) print_choices(operation, &tuning);
    return LKS_OK;
}

/* A tuning file may cover only one transport, or no transport between hosts. */
static lks_status print_tuning(void) {
    const char *path = lksi_variable("LOCKSTEP_TUNING");
    bool is_any = false;
    lks_status status = print_tuning_of("mpi", &is_any);
    if (status == LKS_OK) status = print_tuning_of("tcp", &is_any);
    if (status != LKS_OK)
        printf("tuning:          %s\n", lks_error_text());
    else if (path == NULL)
        printf("tuning:          measured when a group between hosts is made\n");
    else if (!is_any)
        printf("tuning:          %s says nothing of tcp and mpi, which are measured\n", path);
    return status;
}

static void print_mpi_modules(void) {
    const char *family;
    char path[LKSI_MPI_PATH_NBYTES], version[LKSI_MPI_VERSION_NBYTES];
    for (int i = 0; (family = lksi_mpi_family(i)) != NULL; i++)
        if (lksi_mpi_find(family, path, version))
            printf("MPI module:      %s: %s (%s)\n", family, version, path);
        else
            printf("MPI module:      %s: none in %s\n", family, path);
}

static void print_nccl_module(void) {
    char text[LKSI_NCCL_TEXT_NBYTES];
    (void)lksi_nccl_describe(text);
    printf("NCCL module:     %s\n", text);
}

static void print_downloads(void) {
    bool has_curl = lksi_download_transfer_available() == LKS_OK, has_archive = lksi_unpack_available() == LKS_OK;
    printf("downloads:       %s\n", !has_curl     ? "none: libcurl is missing"
                                    : has_archive ? "libcurl, libarchive"
                                                  : "libcurl; no archives: libarchive is missing");
}

static int run(int argc, char **argv) {
    if (argc > 1) return lksi_refuse("info", "unknown option '%s'; see lockstep help info", argv[1]);
    (void)lksi_log_is_on(LKS_LOG_WARNING); /* reports an invalid LOCKSTEP_LOG */
    printf("lockstep:        %s\n", lks_version());
    print_devices();
    print_gpus();
    printf("transports:      self, thread, shm, tcp, mpi\n");
    print_mpi_modules();
    print_nccl_module();
    bool is_right = print_algorithms() == LKS_OK;
    is_right &= print_tuning() == LKS_OK;
    print_downloads();
    printf("zlib:            %s\n", zlibVersion());
    printf("libcrypto:       %s\n", OpenSSL_version(OPENSSL_VERSION));
    printf("cJSON:           %s\n", cJSON_Version());
    print_cpus();
    printf("instruction set: %s\n", lksi_isa_name());
    is_right &= lksi_isa_check() == LKS_OK; /* detecting it has warned */
    return is_right ? 0 : 1;
}

const lksi_command lksi_command_info = {
    .name = "info", .summary = "what was built in, and what was found here", .help = help_text, .run = run};

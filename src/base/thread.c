/* Threads of the library, and the number of CPUs for them. */
#define _GNU_SOURCE /* affinity, thread names */
#include "base/base.h"
#include "base/signals.h"

#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>

struct lksi_thread {
    pthread_t handle;
    void (*function)(void *);
    void *argument;
    int rank; /* of the creating thread */
    char name[16];
};

/* The OpenMP runtime that matters is the one that the kernel library has loaded, so it is looked up at run time.
 * Linking against one could load a second runtime, whose settings have no effect. */
static void (*openmp_set_num_threads)(int);
static pthread_once_t openmp_once = PTHREAD_ONCE_INIT;

static void find_openmp(void) {
    void *found = dlsym(RTLD_DEFAULT, "omp_set_num_threads");
    memcpy(&openmp_set_num_threads, &found, sizeof found); /* ISO C has no cast from data to function pointers */
}

void lksi_openmp_set_threads(int n_threads) {
    pthread_once(&openmp_once, find_openmp);
    if (openmp_set_num_threads != NULL) openmp_set_num_threads(n_threads); /* each time: the user may set it, too */
}

static void *run(void *opaque) {
    lksi_thread *thread = opaque;
    pthread_setname_np(pthread_self(), thread->name);
    lksi_thread_set_rank(thread->rank);
    lksi_openmp_set_threads(1); /* the kernels of one rank must not take the whole machine */
    thread->function(thread->argument);
    return NULL;
}

lks_status lksi_thread_create(lksi_thread **thread, void (*function)(void *), void *argument, const char *name) {
    lksi_thread *created = lksi_alloc(sizeof *created);
    if (created == NULL) return LKS_ERR_MEMORY;
    created->function = function;
    created->argument = argument;
    created->rank = lksi_own_rank();
    snprintf(created->name, sizeof created->name, "%s", name);
    /* Signals are for the program's own threads: handlers must not run on a library thread. */
    sigset_t others, before;
    lksi_signals_of_others(&others);
    pthread_sigmask(SIG_SETMASK, &others, &before);
    int error = pthread_create(&created->handle, NULL, run, created);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0) {
        lksi_free(created);
        return lksi_error(LKS_ERR_SYSTEM, "cannot start thread '%s': %s", name, strerror(error));
    }
    *thread = created;
    return LKS_OK;
}

void lksi_thread_join(lksi_thread *thread) {
    if (thread == NULL) return;
    pthread_join(thread->handle, NULL);
    lksi_free(thread);
}

void lksi_thread_forget(lksi_thread *thread) { lksi_free(thread); }

/* A thread that yields to a computing program gets the CPU back after a time slice of some milliseconds. A thread that
 * is woken from a sleep mostly gets it at once. So yields are timed, and after two long ones among a few short ones the
 * CPUs count as crowded for a while. One long yield alone may be chance, and a few may have gone to ranks that computed
 * before their next call. So the first while is short, and each that follows without many short yields between is twice
 * as long. While there are no long yields, only every fourth is timed, because a yield to another rank takes little
 * longer than reading the clock. */
bool lksi_yield(void) {
    enum { N_UNTIMED = 3, PER_LONG = 8, CROWDED = 12, LONG_NS = 1000000, FIRST_NS = 10000000, MOST_NS = 100000000 };
    static _Thread_local int n_untimed, score, next_ns = FIRST_NS;
    static _Thread_local int64_t crowded_until_ns;
    if (n_untimed > 0) {
        n_untimed--;
        sched_yield();
        return true;
    }
    int64_t began_ns = lksi_now_ns();
    if (began_ns < crowded_until_ns) return false;
    sched_yield();
    int64_t ended_ns = lksi_now_ns();
    if (ended_ns - began_ns >= LONG_NS) {
        score += PER_LONG;
    } else if (score > 0) {
        score--;
    } else {
        n_untimed = N_UNTIMED;
        next_ns = FIRST_NS;
    }
    if (score < CROWDED) return true;
    score = CROWDED - 1; /* the next long one is enough */
    crowded_until_ns = ended_ns + next_ns;
    next_ns = 2 * next_ns < MOST_NS ? 2 * next_ns : MOST_NS;
    return true;
}

void lksi_cond_wait_until(pthread_cond_t *condition, pthread_mutex_t *mutex, int64_t deadline_ns) {
    struct timespec until = {.tv_sec = (time_t)(deadline_ns / 1000000000), .tv_nsec = (long)(deadline_ns % 1000000000)};
    (void)pthread_cond_clockwait(condition, mutex, CLOCK_MONOTONIC, &until);
}

/* Reads up to two numbers from a file of a cgroup. Returns how many it has. */
static int read_numbers(const char *cgroup, const char *name, double *first, double *second) {
    char path[LKSI_PATH_NBYTES];
    FILE *file = lksi_path(path, "%s/%s", cgroup, name) == LKS_OK ? fopen(path, "re") : NULL;
    if (file == NULL) return 0;
    int n_read = fscanf(file, "%lf %lf", first, second);
    fclose(file);
    return n_read;
}

/* cpu.max is "max 100000" or "150000 100000". Version 1 has a file for each number, and -1 means "max". 0: no quota. */
static double cpu_quota_of(const char *cgroup) {
    double quota = 0, period = 0, none;
    if (read_numbers(cgroup, "cpu.max", &quota, &period) != 2) {
        (void)read_numbers(cgroup, "cpu.cfs_quota_us", &quota, &none);
        (void)read_numbers(cgroup, "cpu.cfs_period_us", &period, &none);
    }
    return quota > 0 && period > 0 ? quota / period : 0;
}

/* The smaller of `least` and the quotas of a cgroup and its ancestors. 0: no quota. */
static double least_quota(char cgroup[LKSI_PATH_NBYTES], double least) {
    do {
        double quota = cpu_quota_of(cgroup);
        if (quota > 0 && (least == 0 || quota < least)) least = quota;
    } while (lksi_cgroup_next(cgroup));
    return least;
}

/* Whether the first part of "cpu,cpuacct:/session" has the controller cpu. */
static bool has_cpu_controller(const char *list) {
    for (;;) {
        size_t length = strcspn(list, ",:");
        if (length == strlen("cpu") && lksi_begins_with(list, "cpu")) return true;
        if (list[length] != ',') return false;
        list += length + 1;
    }
}

/* Version 1 has a tree for each controller. A line of /proc/self/cgroup is "4:cpu,cpuacct:/session". */
static bool find_version_1(char cgroup[LKSI_PATH_NBYTES]) {
    static const char mount[] = "/sys/fs/cgroup/cpu";
    char line[LKSI_PATH_NBYTES - sizeof mount], *path = NULL;
    FILE *file = fopen("/proc/self/cgroup", "re");
    if (file == NULL) return false;
    while (path == NULL && fgets(line, sizeof line, file) != NULL) {
        const char *controllers = strchr(line, ':');
        if (controllers != NULL && has_cpu_controller(controllers + 1)) path = strchr(controllers + 1, ':');
    }
    fclose(file);
    if (path == NULL) return false;
    path[strcspn(path, "\n")] = '\0';
    snprintf(cgroup, LKSI_PATH_NBYTES, "%s%s", mount, strcmp(path, ":/") == 0 ? "" : path + 1);
    return true;
}

double lksi_cpu_quota(void) {
    char cgroup[LKSI_PATH_NBYTES] = "";
    double least = lksi_cgroup_next(cgroup) ? least_quota(cgroup, 0) : 0;
    return find_version_1(cgroup) ? least_quota(cgroup, least) : least;
}

int lksi_cpu_count(void) {
    cpu_set_t allowed[LKSI_N_CPU_SETS];
    int count = sched_getaffinity(0, sizeof allowed, allowed) == 0 ? CPU_COUNT_S(sizeof allowed, allowed) : 1;
    double quota = lksi_cpu_quota();
    if (quota > 0 && quota < count) count = (int)ceil(quota);
    return count > 0 ? count : 1;
}

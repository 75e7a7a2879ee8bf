/* A data race: two threads, one variable, and the result.
 *
 *     race [--count N]
 *
 *     adder                           subtracter
 *     reads 7                         reads 7
 *     writes 8
 *                                     writes 6        the addition is lost
 *
 * One thread adds 1 N times, the other subtracts 1 N times. Together they should leave 0. There are three ways to share
 * the variable: without synchronisation, under a mutex, and by atomic addition.
 *
 * The unsynchronised variable is also atomic, but it is read and written in two steps. A plain `int` loses updates in
 * the same way, but its behaviour is undefined in C: the compiler might fold the whole loop into one addition and hide
 * the effect, and a race detector would stop it. Two steps that are each defined keep the race and nothing else.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_TRIES = 20 };

static _Atomic long careless, atomic;
static long guarded;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

/* If the other thread stores between the load and the store, its update is overwritten. */
static void add_carelessly(long amount) {
    long seen = atomic_load_explicit(&careless, memory_order_relaxed);
    atomic_store_explicit(&careless, seen + amount, memory_order_relaxed);
}

/* Mutual exclusion: the second thread waits, and then sees what the first has written. */
static void add_under_mutex(long amount) {
    pthread_mutex_lock(&mutex);
    guarded += amount;
    pthread_mutex_unlock(&mutex);
}

/* Reads, adds and writes as one indivisible operation. */
static void add_atomically(long amount) { atomic_fetch_add_explicit(&atomic, amount, memory_order_relaxed); }

typedef struct work {
    void (*add)(long amount);
    long amount, count;
    pthread_barrier_t *start; /* so that neither thread finishes before the other begins */
} work;

static void *repeat(void *argument) {
    const work *mine = argument;
    pthread_barrier_wait(mine->start);
    for (long i = 0; i < mine->count; i++) mine->add(mine->amount);
    return NULL;
}

static pthread_t start_thread(work *its_work) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, repeat, its_work) == 0) return thread;
    fprintf(stderr, "race: a thread could not be started\n");
    exit(1); /* the other thread may be waiting at the barrier */
}

static void add_and_subtract(void (*add)(long amount), long count) {
    pthread_barrier_t start;
    pthread_barrier_init(&start, NULL, 2);
    work adding = {add, 1, count, &start}, subtracting = {add, -1, count, &start};
    pthread_t adder = start_thread(&adding), subtracter = start_thread(&subtracting);
    pthread_join(adder, NULL);
    pthread_join(subtracter, NULL);
    pthread_barrier_destroy(&start);
}

static int report(const char *how, long result) {
    printf("%-16s %12ld%s\n", how, result, result == 0 ? "" : "   updates were lost");
    return result != 0;
}

static int run(long count) {
    printf("%ld additions and as many subtractions, of which 0 should be left:\n", count);
    /* On one CPU, or by luck, even the unsynchronised variable ends at 0. This makes races hard to find. */
    int n_tries = 0;
    do add_and_subtract(add_carelessly, count);
    while (atomic_load(&careless) == 0 && ++n_tries < MOST_TRIES);
    add_and_subtract(add_under_mutex, count);
    add_and_subtract(add_atomically, count);
    (void)report("without care", atomic_load(&careless));
    if (n_tries > 0) printf("%16s %d time%s by luck it was 0 without care, too\n", "", n_tries, n_tries > 1 ? "s" : "");
    return report("with a mutex", guarded) + report("with an atomic", atomic_load(&atomic)) > 0;
}

int main(int argc, char **argv) {
    long count = 10 * 1000 * 1000;
    if (argc == 3 && strcmp(argv[1], "--count") == 0) {
        char *end;
        count = strtol(argv[2], &end, 10);
        if (*end != '\0' || count < 1 || count > 1000 * 1000 * 1000L) {
            fprintf(stderr, "race: --count '%s' is not a number from 1 to 1000000000\n", argv[2]);
            return 2;
        }
    } else if (argc > 1) {
        fprintf(stderr, "race: unknown argument '%s'; it takes --count N\n", argv[1]);
        return 2;
    }
    int exit_code = run(count);
    if (fflush(stdout) != 0) return perror("race: standard output"), 1;
    return exit_code;
}

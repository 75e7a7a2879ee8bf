/* The rank prefix of lines on stderr, which several ranks share. */
#include "base/base.h"

#include <ctype.h>
#include <stdatomic.h>

static _Thread_local int thread_rank = -1;
static atomic_int process_rank = -1;

void lksi_thread_set_rank(int rank) { thread_rank = rank; }
void lksi_process_set_rank(int rank) { atomic_store(&process_rank, rank); }
int lksi_own_rank(void) { return thread_rank; }
int lksi_process_rank(void) { return atomic_load(&process_rank); }

static bool names_rank(const char *text) { return lksi_begins_with(text, "rank ") && isdigit((unsigned char)text[5]); }

void lksi_rank_prefix(const char *text, char prefix[LKSI_RANK_PREFIX_NBYTES]) {
    int rank = thread_rank >= 0 ? thread_rank : atomic_load(&process_rank);
    /* A prefix is a process's: rank threads share one. */
    bool is_said = names_rank(text) || (thread_rank < 0 && lksi_variable("LOCKSTEP_PREFIX") != NULL);
    prefix[0] = '\0';
    if (rank >= 0 && !is_said) snprintf(prefix, LKSI_RANK_PREFIX_NBYTES, "rank %d: ", rank);
}

/* The agent: what `lockstep run` is on each host of a run over several. It starts and watches the ranks there, and does
 * what the head says (link.h). */
#ifndef LKSI_LAUNCH_AGENT_H
#define LKSI_LAUNCH_AGENT_H

#include "launch/launch.h"

/* Joins the head at `run`'s address and stays until the run is over. `run->job` holds what is the same in every
 * generation. With `run->job.report` the user is told; without, the head does that. Returns the exit status. */
int lksi_agent_run(const lksi_run *run);

/* What another process shall do as an agent, as it reads it from its standard input: the run, the variables that it
 * and its ranks find in their environment (NAME=value, ended by NULL), the program. Caller frees *text. */
lks_status lksi_agent_text_write(const lksi_run *run, const char *const *variables, char **text, size_t *nbytes);
/* Reads it, sets the variables, and fills in `run`, which points into *text from then on; caller frees both *text and
 * *argv. Errors: LKS_ERR_FORMAT; LKS_ERR_TIMEOUT where it does not come. */
lks_status lksi_agent_text_read(int descriptor, lksi_run *run, char **text, char ***argv);

#endif

/* The agent: the part of `lockstep run` on each host of a run over several hosts. It starts and supervises the ranks of
 * its host, as the head tells it (link.h). */
#ifndef LKSI_LAUNCH_AGENT_H
#define LKSI_LAUNCH_AGENT_H

#include "launch/launch.h"

/* Joins the head at `run`'s address and stays until the run is over. `run->job` holds what is the same in every
 * generation. With `run->job.report` the agent informs the user, otherwise the head does. Returns the exit status. */
int lksi_agent_run(const lksi_run *run);

/* Writes the orders for an agent in another process, which reads them from its standard input: the run, the environment
 * variables for it and its ranks (NAME=value, terminated by NULL), and the program. The caller frees *text. */
lks_status lksi_agent_text_write(const lksi_run *run, const char *const *variables, char **text, size_t *nbytes);
/* Reads the orders, sets the variables and fills in `run`, which then points into *text. The caller frees *text and
 * *argv. Errors: LKS_ERR_FORMAT. LKS_ERR_TIMEOUT: the orders did not arrive. */
lks_status lksi_agent_text_read(int descriptor, lksi_run *run, char **text, char ***argv);

#endif

/* The head: decides over a run on several hosts. The agents (agent.h) on them do what it says. */
#ifndef LKSI_LAUNCH_HEAD_H
#define LKSI_LAUNCH_HEAD_H

#include "launch/launch.h"

/* Runs the whole of `run`: waits for its hosts, or starts them, and ends when the run is over everywhere. No process of
 * it is left on this machine then; on the others their agents see to that. Returns the run's exit status. */
int lksi_head_run(const lksi_run *run);

#endif

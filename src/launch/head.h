/* The head: controls a run on several hosts. The agents (agent.h) on the hosts follow it. */
#ifndef LKSI_LAUNCH_HEAD_H
#define LKSI_LAUNCH_HEAD_H

#include "launch/launch.h"

/* Executes `run`: waits for its hosts, or starts them, and returns when the run is over everywhere. No process of the
 * run is then left on this machine. On other hosts the agents ensure that. Returns the run's exit status. */
int lksi_head_run(const lksi_run *run);

#endif

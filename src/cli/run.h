/* What the files of `lockstep run` share. */
#ifndef LKSI_CLI_RUN_H
#define LKSI_CLI_RUN_H

#include "launch/launch.h"

/* What the command line asks for. */
typedef struct lksi_run_request {
    lksi_run run;  /* its node is -1 where --node-rank was not given */
    bool is_agent; /* another `lockstep run` has started this one, and says on standard input what to do */
    const char **forwarded;
} lksi_run_request;

/* Takes the options, which end at the program or at "--"; *n_taken counts the arguments. Returns 0, or what
 * lksi_refuse did. `request->forwarded` has room for as many texts as there are arguments. */
int lksi_run_options_parse(int argc, char **argv, lksi_run_request *request, int *n_taken);

#endif

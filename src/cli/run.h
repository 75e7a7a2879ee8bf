/* Declarations that the files of `lockstep run` share. */
#ifndef LKSI_CLI_RUN_H
#define LKSI_CLI_RUN_H

#include "launch/launch.h"

/* The parsed command line. */
typedef struct lksi_run_request {
    lksi_run run;        /* node is -1 without --node-rank */
    bool is_standalone;  /* as with --nnodes 1 */
    const char *counted; /* the word that --nproc-per-node got instead of a number; NULL: none */
    bool is_agent;       /* another `lockstep run` has started this one and sends its orders on stdin */
    const char **forwarded;
} lksi_run_request;

/* Parses the options, which end at the program or at "--". *n_taken becomes the number of arguments consumed. Returns
 * 0, or what lksi_option_take returned. `request->forwarded` has space for as many names as there are arguments. */
int lksi_run_options_parse(int argc, char **argv, lksi_run_request *request, int *n_taken);

#endif

/* lockstep run: starts ranks on this machine or on several. */
#include "cli/run.h"
#include "cli/cli.h"
#include "launch/agent.h"
#include "launch/head.h"
#include "launch/terminal.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

static const char help_text[] =
    "usage: lockstep run -n N [OPTIONS] PROGRAM [ARGUMENTS]\n"
    "\n"
    "Runs PROGRAM as N ranks, on this machine or on several, and ends as the first of them that fails does.\n"
    "\n"
    "  -n N              number of ranks; with --nnodes on this host, with --hosts on all of them\n"
    "  --threads         ranks are threads of one process; PROGRAM hands its rank function to lks_main\n"
    "  --prefix          each line of output begins with the rank that wrote it: [0] ...\n"
    "  --log-dir DIR     output goes to DIR/rank-N.log, and to the terminal only with --prefix\n"
    "  --timeout SECONDS end all ranks that still run then; the exit status is 124\n"
    "  --grace SECONDS   how long survivors of a failure have to report it before they are ended (5), and all ranks\n"
    "                    to end in order after a signal (30)\n"
    "  --bind            rank i of a host runs on the i-th allowed CPU, modulo their number\n"
    "\n"
    "To go on after a loss:\n"
    "  --max-restarts R  start all ranks again, up to R times; they go on from their last checkpoint, as\n"
    "                    LOCKSTEP_GENERATION, 1 for the first restart, tells them to\n"
    "  --min-ranks M     the fewest ranks to go on with where a host is gone (as many as at first)\n"
    "  --grains G        only numbers of ranks that divide G; the ranks find it as LOCKSTEP_GRAINS\n"
    "\n"
    "Several hosts, each of which starts the same command:\n"
    "  --nnodes N        how many; -n ranks on each\n"
    "  --node-rank I     which of them this is, from 0\n"
    "  --master-addr A   a name or address of node 0 that the others reach\n"
    "  --master-port P   where it listens (29400)\n"
    "LOCKSTEP_JOB_KEY has to be set to the same secret on all of them.\n"
    "\n"
    "Several hosts that are started from here, by ssh:\n"
    "  --hosts FILE      a host a line, with slots=N (1) or max_slots=N, as for Open MPI, or HOST:N, as for\n"
    "                    MPICH; without -n all slots; also a pipe, as <(scontrol show hostnames) is\n"
    "  --ssh COMMAND     in place of ssh -o BatchMode=yes; called with the host and one more word, a command\n"
    "  -x NAME           ranks find the variable NAME as it is here, as they do LOCKSTEP_* and OMP_NUM_THREADS\n"
    "  --master-addr A   of this machine, where the hosts reach it (found out by the first of them)\n"
    "The same PROGRAM and lockstep are expected in the same place there. Ranks have no standard input.\n"
    "\n"
    "  --join-timeout SECONDS       how long to wait for all hosts (300)\n"
    "  --heartbeat-timeout SECONDS  a host that is silent for so long is lost (10)\n"
    "The host with node 0, or where --hosts was given, is the head: without it the run is over everywhere. One that "
    "is\n"
    "lost and comes back takes part again: the ranks are told to end by SIGTERM, and more of them follow.\n"
    "\n"
    "Other names: -np, --np, --nproc-per-node (-n); --hostfile, --machinefile (--hosts); underscores for hyphens.\n"
    "\n"
    "Each rank finds RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, LOCKSTEP_GENERATION "
    "and\n"
    "LOCKSTEP_JOB_KEY in its environment, and unless they are set OMP_NUM_THREADS=1 and, where there are more ranks\n"
    "than CPUs, GLIBC_TUNABLES=glibc.pthread.rseq=0, with which they take turns faster. On one host rank 0 reads\n"
    "standard input unless that is a terminal.\n"
    "SIGINT, SIGTERM and SIGHUP are forwarded to the ranks; a second one kills them. After them, after the timeout,\n"
    "after a rank that exits with 2 (its command line is wrong) and where nobody reads the output (SIGPIPE) nothing "
    "is\n"
    "started again. SIGTSTP (Ctrl-Z) stops the ranks with the launcher, and they go on with it; not in a\n"
    "run over hosts, which goes on.\n"
    "Exit status: that of the first rank that failed, 128 + N if it was killed by signal N; 1 where none did, but "
    "output\n"
    "was lost (a full disk) that it wrote for its ranks (--prefix, --log-dir); 2 for a wrong option, 126 or 127 for a\n"
    "PROGRAM that cannot be started.\n";

static void say(const char *text) { lksi_terminal_add(stderr, text, strlen(text)); }

static void report(void *argument, const lksi_failure *failure) {
    const char *line = failure->last_lines;
    (void)argument;
    say("lockstep run: ");
    say(failure->text);
    say(*line != '\0' ? "; its last lines:\n" : "\n");
    while (*line != '\0') {
        const size_t length = strcspn(line, "\n");
        say("  | ");
        lksi_terminal_add(stderr, line, length);
        say("\n");
        line += length + (line[length] == '\n');
    }
    lksi_terminal_write();
}

/* Checks the options of a run over several hosts. */
static int check_hosts(lksi_run_request *request) {
    lksi_run *run = &request->run;
    if (run->n_nodes > 0 && run->hosts_file != NULL)
        return lksi_refuse("run",
                           "--nnodes is for hosts that start by themselves, --hosts for those started from here");
    if (run->hosts_file != NULL && run->node >= 0)
        return lksi_refuse("run", "--node-rank is for --nnodes: with --hosts the lines of the file number the hosts");
    if (run->job.as_threads) return lksi_refuse("run", "--threads works on one host only");
    if (run->n_nodes > 0 && run->node < 0)
        return lksi_refuse("run", "--node-rank is missing: the index of this host among the %d", run->n_nodes);
    if (run->n_nodes > 0 && run->node >= run->n_nodes)
        return lksi_refuse("run", "--node-rank %d: --nnodes is %d", run->node, run->n_nodes);
    if (run->n_nodes > 0 && run->address == NULL)
        return lksi_refuse("run", "--master-addr is missing: the address of node 0");
    if (run->n_nodes > 0 && run->port == 0) run->port = 29400;
    return 0;
}

/* Checks combinations of options. */
static int check_request(lksi_run_request *request, const char *program) {
    const lksi_run *run = &request->run;
    const lksi_job *job = &run->job;
    if (run->n_nodes > 0 || run->hosts_file != NULL) {
        int refused = check_hosts(request);
        if (refused != 0) return refused;
    } else if (run->node >= 0 || run->address != NULL || run->port != 0 || run->ssh != NULL || run->n_forwarded > 0) {
        return lksi_refuse("run", "--nnodes N or --hosts FILE is missing: an option for several hosts was given");
    }
    if (job->n_ranks == 0 && run->hosts_file == NULL)
        return lksi_refuse("run", "-n N is missing before '%s': the number of ranks", program);
    if (job->as_threads && (job->prefix || job->log_dir != NULL))
        return lksi_refuse("run", "%s needs ranks that are processes: threads share one output",
                           job->prefix ? "--prefix" : "--log-dir");
    if (run->n_nodes > 0) return 0; /* only the head knows the number of ranks */
    if (job->n_ranks > 0 && job->grains > 0 && job->grains % job->n_ranks != 0)
        return lksi_refuse("run", "--grains %d: -n %d does not divide it", job->grains, job->n_ranks);
    if (run->hosts_file == NULL && run->min_ranks > job->n_ranks)
        return lksi_refuse("run", "--min-ranks %d: -n %d is fewer", run->min_ranks, job->n_ranks);
    return 0;
}

static int run_here(const lksi_run *run) {
    lksi_end end;
    lks_status status = lksi_supervise_generations(&run->job, run->max_restarts, &end);
    /* A failed rank and the timeout have been reported already. */
    if (status != LKS_OK && status != LKS_ERR_PEER && status != LKS_ERR_TIMEOUT)
        (void)lksi_refuse("run", "%s", lks_error_text());
    return end.exit_status;
}

static void set_defaults(lksi_run *run) {
    if (run->node < 0) run->node = 0;
    if (run->join_timeout_ms == 0) run->join_timeout_ms = 300000;
    if (run->heartbeat_timeout_ms == 0) run->heartbeat_timeout_ms = 10000;
}

/* Another `lockstep run` has started this process and sends its orders on stdin. That one reports to the user. */
static int run_agent(void) {
    lksi_run orders = {.address = NULL};
    char *text = NULL, **argv = NULL;
    int exit_status = 1;
    if (lksi_agent_text_read(STDIN_FILENO, &orders, &text, &argv) == LKS_OK)
        exit_status = lksi_agent_run(&orders);
    else
        (void)lksi_refuse("run", "%s", lks_error_text());
    lksi_free(text);
    lksi_free(argv);
    return exit_status;
}

static int run_request(int argc, char **argv, lksi_run_request *request) {
    int n_taken = 0;
    int refused = lksi_run_options_parse(argc, argv, request, &n_taken);
    if (refused != 0) return refused;
    if (request->is_agent) return run_agent();
    if (n_taken >= argc) return lksi_refuse("run", "no program is given; see lockstep help run");
    refused = check_request(request, argv[n_taken]);
    if (refused != 0) return refused;
    request->run.job.argv = argv + n_taken;
    set_defaults(&request->run);
    if (request->run.hosts_file != NULL || (request->run.n_nodes > 0 && request->run.node == 0))
        return lksi_head_run(&request->run);
    if (request->run.n_nodes > 0) return lksi_agent_run(&request->run);
    return run_here(&request->run);
}

/* Opens stdin, stdout and stderr if the parent had closed them. Otherwise a pipe or connection of this process would
 * get such a number, and ranks would read from it or write to it. stdin becomes empty. stdout and stderr become
 * descriptors that cannot be written, so output counts as lost. */
static void fill_standard_descriptors(void) {
    int opened;
    do opened = open(fcntl(STDIN_FILENO, F_GETFD) < 0 ? "/dev/null" : "/", O_RDONLY);
    while (opened >= 0 && opened <= STDERR_FILENO);
    if (opened >= 0) close(opened);
}

static int run(int argc, char **argv) {
    lksi_run_request request = {.run = {.job.report = report, .node = -1}};
    fill_standard_descriptors();
    request.forwarded = lksi_alloc_array((size_t)argc, sizeof *request.forwarded);
    if (request.forwarded == NULL) return lksi_refuse("run", "%s", lks_error_text());
    int exit_status = run_request(argc, argv, &request);
    lksi_terminal_drain();
    if (exit_status == 0 && lksi_terminal_has_lost()) exit_status = 1;
    lksi_free(request.forwarded);
    return exit_status;
}

const lksi_command lksi_command_run = {.name = "run",
                                       .summary = "start a program as several ranks, here or on several hosts",
                                       .help = help_text,
                                       .run = run};

/* lockstep run: starts ranks on this machine or on several. */
#include "cli/run.h"
#include "cli/cli.h"
#include "launch/agent.h"
#include "launch/head.h"
#include "launch/terminal.h"

#include <string.h>
#include <unistd.h>

static const char help_text[] =
    "usage: lockstep run -n N [OPTIONS] PROGRAM [ARGUMENTS]\n"
    "\n"
    "Runs PROGRAM as N ranks, on this machine or on several. Ends with the status of the first rank that fails.\n"
    "\n"
    "  -n N              number of ranks; with --nnodes on this host, with --hosts on all hosts\n"
    "  --threads         ranks are threads of one process; PROGRAM passes its rank function to lks_main\n"
    "  --prefix          each line of output begins with the rank that wrote it: [0] ...\n"
    "  --log-dir DIR     output goes to DIR/rank-N.log, and to the terminal only with --prefix (not for threads)\n"
    "  --timeout SECONDS end all ranks that still run after this time; the exit status is then 124\n"
    "  --grace SECONDS   time for the other ranks to report a failure before they are ended (5), and for all ranks to\n"
    "                    end after a signal (30)\n"
    "  --bind            bind rank i of a host to the i-th allowed CPU, modulo their number\n"
    "\n"
    "Restarts:\n"
    "  --max-restarts R  restart all ranks after a failure, up to R times; they continue from their last checkpoint;\n"
    "                    LOCKSTEP_GENERATION is 1 for the first restart\n"
    "  --min-ranks M     the fewest ranks to continue with if a host is lost (all; with --grains 1)\n"
    "  --grains G        use only numbers of ranks that divide G, a power of two; LOCKSTEP_GRAINS shows it\n"
    "\n"
    "Several hosts, with the same command started on each:\n"
    "  --nnodes N        number of hosts, with -n ranks each\n"
    "  --node-rank I     index of this host, from 0; with --nnodes 1 it is 0\n"
    "  --master-addr A   a name or address of node 0 that the other hosts reach\n"
    "  --master-port P   the port where node 0 listens (29400)\n"
    "LOCKSTEP_JOB_KEY must be set to the same secret on all hosts.\n"
    "\n"
    "Several hosts, started from here by ssh:\n"
    "  --hosts FILE      one host per line, with slots=N (1) or max_slots=N as for Open MPI, or HOST:N as for MPICH;\n"
    "                    without -n all slots are used; it may be a pipe, such as <(scontrol show hostnames)\n"
    "  --ssh COMMAND     instead of ssh -o BatchMode=yes; called with the host and one more word, a command\n"
    "  -x NAME           also pass the variable NAME to the ranks; OMP_NUM_THREADS and LOCKSTEP_* are always passed,\n"
    "                    except LOCKSTEP_HOST_ID, LOCKSTEP_LISTEN and LOCKSTEP_ADVERTISE\n"
    "  --master-addr A   an address of this machine that the hosts reach (default: found by the first host)\n"
    "PROGRAM and lockstep must be at the same paths on all hosts. Ranks have no standard input.\n"
    "\n"
    "  --join-timeout SECONDS       how long to wait for all hosts (300)\n"
    "  --heartbeat-timeout SECONDS  a host that is silent for this long is lost (10, at least 1)\n"
    "The host with node 0, or the one where --hosts was given, is the head. Without it the run ends everywhere. A\n"
    "lost host that comes back takes part again: SIGTERM ends the ranks, and more ranks follow.\n"
    "\n"
    "Other names: -np, --np, --nproc-per-node (-n); --hostfile, --machinefile (--hosts); underscores for hyphens.\n"
    "As torchrun: --nproc-per-node also takes cpu (a rank per usable CPU), gpu (a rank per GPU) and auto (gpu, or cpu\n"
    "on a host without GPUs). --standalone and --nnodes 1 (without --master-addr) mean one host, the default.\n"
    "\n"
    "Each rank finds RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, LOCKSTEP_GENERATION\n"
    "and LOCKSTEP_JOB_KEY in its environment. Unless they are set, OMP_NUM_THREADS=1 is set, and with more ranks\n"
    "than CPUs GLIBC_TUNABLES=glibc.pthread.rseq=0, which makes switches between ranks faster. On one host rank 0\n"
    "reads standard input unless that is a terminal.\n"
    "SIGINT, SIGTERM and SIGHUP are forwarded to the ranks; a second kills them. So are SIGUSR1 and 2. No restart\n"
    "follows these signals, the timeout, a rank that exits with 2 (wrong command line), 126 or 127 (PROGRAM cannot\n"
    "be started), or if nobody reads the output (SIGPIPE). SIGTSTP (Ctrl-Z) stops the ranks together with the\n"
    "launcher; a run over hosts ignores it.\n"
    "Exit status: that of the first rank that failed, 128 + N if it was killed by signal N. 1 if no rank failed but\n"
    "output that lockstep run wrote for the ranks (--prefix, --log-dir) was lost (a full disk). 2 for a wrong\n"
    "option. 126 or 127 if PROGRAM cannot be started.\n";

static void say(const char *text) { lksi_terminal_add(stderr, text, strlen(text)); }

/* A warning must not block the head of a run, whose hosts would be lost. */
static void say_warning(const char *line) {
    say(line);
    lksi_terminal_write();
}

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

/* A run on one host needs no head, so address and port have no use. With an address of its own it is a run over hosts,
 * of which there is one, unless its ranks are threads. */
static int take_one_host(lksi_run_request *request) {
    lksi_run *run = &request->run;
    if (request->is_standalone && (run->n_nodes > 1 || run->hosts_file != NULL))
        return lksi_refuse("run", "--standalone is for one host, %s for several",
                           run->n_nodes > 1 ? "--nnodes" : "--hosts");
    if (request->is_standalone) run->n_nodes = 1;
    if (run->n_nodes != 1 || run->hosts_file != NULL) return 0;
    if (request->is_standalone || run->job.as_threads) run->address = NULL;
    if (run->node > 0) return lksi_refuse("run", "--node-rank %d: --nnodes is 1", run->node);
    run->node = 0;
    if (run->address != NULL) return 0;
    run->n_nodes = 0;
    run->node = -1;
    run->port = 0;
    run->n_forwarded = 0; /* the ranks inherit the variables */
    return 0;
}

/* Checks the options of a run over several hosts. */
static int check_hosts(lksi_run_request *request) {
    lksi_run *run = &request->run;
    if (run->n_nodes > 0 && run->hosts_file != NULL)
        return lksi_refuse("run",
                           "--nnodes is for hosts that start by themselves, --hosts for those started from here");
    if (run->hosts_file != NULL && request->counted != NULL)
        return lksi_refuse("run", "--nproc-per-node %s counts on this host: with --hosts the file's slots say it",
                           request->counted);
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

/* Without --nnodes and --hosts. */
static int refuse_for_hosts(const lksi_run *run) {
    if (run->ssh != NULL) return lksi_refuse("run", "--ssh is for the hosts of --hosts FILE, which is missing");
    return lksi_refuse("run", "%s is for several hosts: --nnodes N or --hosts FILE is missing (--nnodes 1: one host)",
                       run->node >= 0         ? "--node-rank"
                       : run->address != NULL ? "--master-addr"
                       : run->port != 0       ? "--master-port"
                                              : "-x");
}

/* Checks combinations of options. */
static int check_request(lksi_run_request *request, const char *program) {
    const lksi_run *run = &request->run;
    const lksi_job *job = &run->job;
    if (run->n_nodes > 0 || run->hosts_file != NULL) {
        int refused = check_hosts(request);
        if (refused != 0) return refused;
    } else if (run->node >= 0 || run->address != NULL || run->port != 0 || run->ssh != NULL || run->n_forwarded > 0) {
        return refuse_for_hosts(run);
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

/* With grains the result does not depend on the number of ranks, so there is no need to wait for a lost host. */
static void set_defaults(lksi_run *run) {
    if (run->node < 0) run->node = 0;
    if (run->min_ranks == 0 && run->job.grains > 0) run->min_ranks = 1;
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
    refused = take_one_host(request);
    if (refused == 0) refused = check_request(request, argv[n_taken]);
    if (refused != 0) return refused;
    request->run.job.argv = argv + n_taken;
    set_defaults(&request->run);
    if (request->run.hosts_file != NULL || (request->run.n_nodes > 0 && request->run.node == 0))
        return lksi_head_run(&request->run);
    if (request->run.n_nodes > 0) return lksi_agent_run(&request->run);
    return run_here(&request->run);
}

static int run(int argc, char **argv) {
    lksi_run_request request = {.run = {.job.report = report, .node = -1}};
    request.forwarded = lksi_alloc_array((size_t)argc, sizeof *request.forwarded);
    if (request.forwarded == NULL) return lksi_refuse("run", "%s", lks_error_text());
    lksi_log_set_writer(say_warning);
    int exit_status = run_request(argc, argv, &request);
    lksi_log_set_writer(NULL);
    lksi_terminal_drain();
    if (exit_status == 0 && lksi_terminal_has_lost()) exit_status = 1;
    lksi_free(request.forwarded);
    return exit_status;
}

const lksi_command lksi_command_run = {.name = "run",
                                       .summary = "start a program as several ranks, here or on several hosts",
                                       .help = help_text,
                                       .run = run};

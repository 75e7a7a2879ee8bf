/* Starts agents: as a child process here, or through a remote shell on another host. */
#define _GNU_SOURCE /* memfd_create */
#include "launch/child.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_WORDS = 32, COMMAND_NBYTES = 10240 };

bool lksi_host_is_here(const char *name) {
    char own[256];
    lksi_host_name(own, sizeof own);
    return strcmp(name, "localhost") == 0 || strncmp(name, "127.", 4) == 0 || strcmp(name, "::1") == 0 ||
           strcmp(name, own) == 0;
}

/* --- the command --- */

/* Appends `text` quoted as one word for a shell. Returns false if there is no space. */
static bool quote(char *command, const char *text) {
    size_t n = strlen(command);
    if (n + 4 * strlen(text) + 3 > COMMAND_NBYTES) return false;
    command[n++] = '\'';
    for (; *text != '\0'; text++) {
        if (*text == '\'') {
            memcpy(command + n, "'\\''", 4);
            n += 4;
        } else {
            command[n++] = *text;
        }
    }
    command[n++] = '\'';
    command[n] = '\0';
    return true;
}

/* Writes the command for the remote shell: the same program in the same directory. */
static lks_status write_command(const char *self, char command[COMMAND_NBYTES]) {
    char directory[4096];
    if (getcwd(directory, sizeof directory) == NULL) return lksi_error_errno("cannot get the working directory");
    strcpy(command, "cd ");
    bool has_room = quote(command, directory);
    strcat(command, " && exec ");
    has_room = has_room && quote(command, self);
    if (!has_room) return lksi_error(LKS_ERR_ARGUMENT, "the path of the working directory is too long");
    strcat(command, " run --agent");
    return LKS_OK;
}

typedef struct command {
    char self[4096], shell[4096], remote[COMMAND_NBYTES];
    const char *words[MAX_WORDS + 3];
} command;

static lks_status split_words(command *c) {
    int n_words = 0;
    for (char *rest, *word = strtok_r(c->shell, " \t", &rest); word != NULL; word = strtok_r(NULL, " \t", &rest)) {
        if (n_words == MAX_WORDS) return lksi_error(LKS_ERR_ARGUMENT, "--ssh has over %d words", MAX_WORDS);
        c->words[n_words++] = word;
    }
    return n_words > 0 ? LKS_OK : lksi_error(LKS_ERR_ARGUMENT, "--ssh names no program");
}

static lks_status make_command(const lksi_child *child, const char *ssh, command *c) {
    *c = (command){.self = ""};
    const ssize_t length = readlink("/proc/self/exe", c->self, sizeof c->self - 1);
    if (length < 0) return lksi_error_errno("cannot get the path of this program");
    if (child->host == NULL) {
        c->words[0] = c->self, c->words[1] = "run", c->words[2] = "--agent";
        return LKS_OK;
    }
    if (ssh == NULL) ssh = "ssh -o BatchMode=yes";
    if (strlen(ssh) >= sizeof c->shell)
        return lksi_error(LKS_ERR_ARGUMENT, "--ssh has over %zu characters", sizeof c->shell - 1);
    strcpy(c->shell, ssh);
    LKS_TRY(split_words(c));
    LKS_TRY(write_command(c->self, c->remote));
    int n_words = 0;
    while (c->words[n_words] != NULL) n_words++;
    c->words[n_words++] = child->host;
    c->words[n_words] = c->remote;
    return LKS_OK;
}

/* --- the process --- */

/* The child has no terminal: keys pressed there are for the head, and a remote shell must not ask for a password. */
static _Noreturn void be_child(const lksi_child *child, const command *c, int orders, pid_t head,
                               const lksi_signalfd *signals) {
    setsid();
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != head) _exit(1);
    dup2(orders, STDIN_FILENO);
    lksi_output_connect(child->output, 0);
    lksi_signalfd_restore_in_child(signals);
    unsetenv("LOCKSTEP_JOB_KEY"); /* the key comes with the orders */
    execvp(c->words[0], (char *const *)(uintptr_t)c->words);
    fprintf(stderr, "cannot start '%s': %s\n", c->words[0], strerror(errno));
    fflush(stderr);
    _exit(LKSI_EXIT_NOT_FOUND);
}

/* Uses a file in memory rather than a pipe, so that writing never waits for the reader. */
static lks_status open_orders(const char *text, size_t nbytes, int *orders) {
    int made = memfd_create("lockstep-agent", MFD_CLOEXEC);
    if (made < 0) return lksi_error_errno("cannot make a file for an agent's orders");
    for (size_t n_done = 0; n_done < nbytes;) {
        ssize_t n_written = write(made, text + n_done, nbytes - n_done);
        if (n_written < 0 && errno == EINTR) continue;
        if (n_written <= 0) {
            lks_status status = lksi_error_errno("cannot write an agent's orders");
            close(made);
            return status;
        }
        n_done += (size_t)n_written;
    }
    (void)lseek(made, 0, SEEK_SET);
    *orders = made;
    return LKS_OK;
}

lks_status lksi_child_start(lksi_child *child, const char *ssh, const char *text, size_t nbytes,
                            const lksi_signalfd *signals) {
    command c;
    int orders = -1;
    lksi_child_end(child);
    LKS_TRY(make_command(child, ssh, &c));
    LKS_TRY(open_orders(text, nbytes, &orders));
    lks_status status = lksi_output_create(&child->output, &(lksi_job){.n_ranks = 1, .prefix = true}, false);
    if (status == LKS_OK) {
        fflush(NULL);
        const pid_t head = getpid(), pid = fork();
        if (pid == 0) be_child(child, &c, orders, head, signals);
        if (pid < 0) status = lksi_error_errno("cannot start an agent");
        lksi_output_was_connected(child->output, 0);
        child->pid = pid > 0 ? pid : 0;
    }
    close(orders);
    return status;
}

void lksi_child_poll_fill(const lksi_child *child, struct pollfd polled[LKSI_CHILD_N_POLLED]) {
    for (int i = 0; i < LKSI_CHILD_N_POLLED; i++) polled[i] = (struct pollfd){.fd = -1};
    lksi_output_poll_fill(child->output, polled);
}

bool lksi_child_take_output(lksi_child *child, const struct pollfd polled[LKSI_CHILD_N_POLLED]) {
    return lksi_output_take(child->output, polled);
}

static void describe_end(lksi_child *child, int wait_status) {
    char name[16];
    if (WIFSIGNALED(wait_status))
        snprintf(child->end, sizeof child->end, "was killed by %s", lksi_signal_name(WTERMSIG(wait_status), name));
    else
        snprintf(child->end, sizeof child->end, "ended with status %d", WEXITSTATUS(wait_status));
}

bool lksi_child_reap(lksi_child *child) {
    int wait_status;
    if (child->pid == 0 || waitpid(child->pid, &wait_status, WNOHANG) != child->pid) return false;
    child->pid = 0;
    describe_end(child, wait_status);
    lksi_output_take_rank(child->output, 0);
    child->last_lines = lksi_strdup(lksi_output_last_lines(child->output, 0));
    return true;
}

void lksi_child_end(lksi_child *child) {
    if (child->pid != 0) {
        lksi_signal_child(child->pid, SIGKILL); /* a wrapper script and the remote shell, too */
        while (waitpid(child->pid, NULL, 0) < 0 && errno == EINTR) continue;
    }
    lksi_output_destroy(child->output);
    lksi_free(child->last_lines);
    *child = (lksi_child){.host = child->host};
}

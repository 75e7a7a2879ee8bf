/* Signals as a descriptor to poll. A handler could only set a flag, which would be global to the process. A signalfd
 * also tells which child ended first, which the report of a failure needs. */
#define _GNU_SOURCE /* SFD_CLOEXEC, SIGPOLL and other names */
#include "launch/launch_internal.h"

#include <pthread.h>
#include <sys/signalfd.h>
#include <unistd.h>

static bool is_ignored(int signal_number) {
    struct sigaction action;
    return sigaction(signal_number, NULL, &action) == 0 && action.sa_handler == SIG_IGN;
}

lks_status lksi_signalfd_open(lksi_signalfd *signals, bool even_if_ignored) {
    sigset_t taken;
    sigemptyset(&taken);
    sigaddset(&taken, SIGCHLD);
    sigaddset(&taken, LKSI_SIGNAL_ANNOUNCED);
    if (even_if_ignored || !is_ignored(SIGINT)) sigaddset(&taken, SIGINT);
    if (even_if_ignored || !is_ignored(SIGTERM)) sigaddset(&taken, SIGTERM);
    if (!is_ignored(SIGHUP)) sigaddset(&taken, SIGHUP); /* stays ignored under nohup */
    if (even_if_ignored && !is_ignored(SIGUSR1)) sigaddset(&taken, SIGUSR1);
    if (even_if_ignored && !is_ignored(SIGUSR2)) sigaddset(&taken, SIGUSR2);
    if (!is_ignored(SIGTSTP)) sigaddset(&taken, SIGTSTP);
    int descriptor = signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK);
    if (descriptor < 0) return lksi_error_errno("cannot make a signal descriptor");
    signals->descriptor = descriptor;
    signals->even_if_ignored = even_if_ignored;
    pthread_sigmask(SIG_BLOCK, &taken, &signals->old_mask);
    /* If SIGCHLD is ignored, the kernel reaps children itself and their exit statuses are lost. */
    struct sigaction child_action = {.sa_handler = SIG_DFL, .sa_flags = SA_NOCLDSTOP};
    sigemptyset(&child_action.sa_mask);
    sigaction(SIGCHLD, &child_action, &signals->old_child_action);
    return LKS_OK;
}

bool lksi_signalfd_may_stop(const lksi_signalfd *signals) {
    if (signals->is_over_hosts)
        lksi_log(LKS_LOG_WARNING, "SIGTSTP (Ctrl-Z) does not stop a run over hosts: who falls silent is lost to the "
                                  "others. All ranks go on");
    return !signals->is_over_hosts;
}

bool lksi_signal_is_notice(int signal_number) { return signal_number == SIGUSR1 || signal_number == SIGUSR2; }

int lksi_signalfd_next_request(const lksi_signalfd *signals) {
    struct signalfd_siginfo info;
    while (read(signals->descriptor, &info, sizeof info) == sizeof info) {
        if (info.ssi_signo == SIGTSTP && lksi_signalfd_may_stop(signals)) raise(SIGSTOP); /* SIGTSTP's default action */
        if (info.ssi_signo != SIGTSTP && info.ssi_signo != SIGCHLD && info.ssi_signo != (uint32_t)LKSI_SIGNAL_ANNOUNCED)
            return (int)info.ssi_signo;
    }
    return 0;
}

void lksi_signalfd_restore_in_child(const lksi_signalfd *signals) {
    sigset_t mask = signals->old_mask;
    if (signals->even_if_ignored) {
        /* Signals that the launcher forwards must reach the program, however the launcher itself was started. */
        signal(SIGINT, SIG_DFL);
        signal(SIGTERM, SIG_DFL);
        sigdelset(&mask, SIGINT);
        sigdelset(&mask, SIGTERM);
    }
    signal(SIGXFSZ, SIG_DFL); /* the command `lockstep` ignores it */
    sigaction(SIGCHLD, &signals->old_child_action, NULL);
    pthread_sigmask(SIG_SETMASK, &mask, NULL);
    close(signals->descriptor);
}

void lksi_signalfd_close(lksi_signalfd *signals) {
    if (signals->descriptor < 0) return;
    /* Unread announcements would kill the caller once the signal is unblocked. */
    while (lksi_signalfd_next_request(signals) != 0) continue;
    close(signals->descriptor);
    signals->descriptor = -1;
    sigaction(SIGCHLD, &signals->old_child_action, NULL);
    pthread_sigmask(SIG_SETMASK, &signals->old_mask, NULL);
}

const char *lksi_signal_name(int signal_number, char buffer[16]) {
    static const struct {
        int number;
        const char *name;
    } names[] = {
        {SIGHUP, "SIGHUP"},   {SIGINT, "SIGINT"},   {SIGQUIT, "SIGQUIT"}, {SIGILL, "SIGILL"},   {SIGTRAP, "SIGTRAP"},
        {SIGABRT, "SIGABRT"}, {SIGBUS, "SIGBUS"},   {SIGFPE, "SIGFPE"},   {SIGKILL, "SIGKILL"}, {SIGSEGV, "SIGSEGV"},
        {SIGUSR1, "SIGUSR1"}, {SIGUSR2, "SIGUSR2"}, {SIGPIPE, "SIGPIPE"}, {SIGALRM, "SIGALRM"}, {SIGTERM, "SIGTERM"},
        {SIGXCPU, "SIGXCPU"}, {SIGXFSZ, "SIGXFSZ"}, {SIGSYS, "SIGSYS"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].number == signal_number) return names[i].name;
    snprintf(buffer, 16, "signal %d", signal_number);
    return buffer;
}

/* Makes the kernel refuse a system call, as Yama (reading the memory of other processes) and many containers do. */
#ifndef LKSI_REFUSE_H
#define LKSI_REFUSE_H

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

/* From now on `system_call` fails with `error` in this thread and the threads that it starts. Returns -1 if that is not
 * possible. */
static inline int refuse_with(unsigned system_call, unsigned error) {
    struct sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, system_call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {.len = sizeof steps / sizeof steps[0], .filter = steps};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return -1;
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter);
}

static inline int refuse(unsigned system_call) { return refuse_with(system_call, EPERM); }

static inline int refuse_reading(void) { return refuse(SYS_process_vm_readv); }

#endif

/* Sends and receives fixed-size records over a local socket, optionally with a descriptor. */
#define _GNU_SOURCE /* MSG_CMSG_CLOEXEC */
#include "comm/bootstrap/handshake.h"
#include "comm/bootstrap/local_socket.h"
#include "comm/clock.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

typedef union ancillary {
    struct cmsghdr alignment;
    char bytes[CMSG_SPACE(sizeof(int))];
} ancillary;

void lksi_identity_fill(lksi_identity *identity, int rank) {
    *identity = (lksi_identity){.rank = rank, .pid = (int32_t)getpid()};
    lksi_host_name(identity->host, sizeof identity->host);
}

void lksi_hello_fill(lksi_hello *hello, const lksi_environment *environment, const lksi_meeting *meeting,
                     bool is_over_tcp) {
    *hello = (lksi_hello){.magic = LKSI_HELLO_MAGIC,
                          .size = meeting->size,
                          .local_size = meeting->is_world ? environment->local_size : meeting->size,
                          .is_over_tcp = is_over_tcp};
    lksi_build_fill(&hello->build);
    lksi_identity_fill(&hello->identity, meeting->rank);
    snprintf(hello->transport, sizeof hello->transport, "%s", environment->transport);
}

bool lksi_hello_is_credible(const lksi_hello *hello, int size) {
    int rank = hello->identity.rank;
    bool is_follower = rank > 0 && rank < size;
    return hello->magic == LKSI_HELLO_MAGIC && (is_follower || hello->size != size);
}

void lksi_turn_away(int connection, lks_status status) {
    lksi_welcome verdict = {.magic = LKSI_HELLO_MAGIC, .status = (int32_t)status};
    snprintf(verdict.text, sizeof verdict.text, "%s", lksi_error_text());
    if (lksi_hand_over(connection, "!", 1, -1) == LKS_OK)
        (void)lksi_hand_over(connection, &verdict, sizeof verdict, -1);
    (void)lksi_error(status, "%s", verdict.text);
}

lks_status lksi_hand_over(int connection, const void *record, size_t nbytes, int descriptor) {
    ancillary room;
    memset(&room, 0, sizeof room);
    struct iovec part = {.iov_base = (void *)(uintptr_t)record, .iov_len = nbytes};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (descriptor >= 0) {
        message.msg_control = room.bytes, message.msg_controllen = sizeof room.bytes;
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        head->cmsg_level = SOL_SOCKET, head->cmsg_type = SCM_RIGHTS, head->cmsg_len = CMSG_LEN(sizeof descriptor);
        memcpy(CMSG_DATA(head), &descriptor, sizeof descriptor);
    }
    ssize_t n_sent;
    do n_sent = sendmsg(connection, &message, MSG_NOSIGNAL);
    while (n_sent < 0 && errno == EINTR);
    if (n_sent < 0) return lksi_error_errno("cannot write to a rank's control connection");
    /* Records are smaller than any socket buffer. So a partial write means that the peer stopped reading long ago. */
    return (size_t)n_sent == nbytes ? LKS_OK : lksi_error(LKS_ERR_SYSTEM, "a rank's control connection is full");
}

static lks_status wait_readable(int connection, int64_t deadline_ns) {
    for (;;) {
        int64_t left_ms = (deadline_ns - lksi_running_ns()) / 1000000;
        if (left_ms < 0) return lksi_error(LKS_ERR_TIMEOUT, "nothing came over the control connection in time");
        struct pollfd ready = {.fd = connection, .events = POLLIN};
        int n_ready = lksi_poll(&ready, 1, left_ms > 1000 ? 1000 : (int)left_ms + 1);
        if (n_ready > 0) return LKS_OK;
        if (n_ready < 0 && errno != EINTR) return lksi_error_errno("poll");
    }
}

static ssize_t receive_part(int connection, void *data, size_t nbytes, int *descriptor) {
    ancillary room;
    struct iovec part = {.iov_base = data, .iov_len = nbytes};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = room.bytes, .msg_controllen = sizeof room.bytes};
    ssize_t n_read = recvmsg(connection, &message, MSG_CMSG_CLOEXEC);
    struct cmsghdr *head = n_read > 0 ? CMSG_FIRSTHDR(&message) : NULL;
    if (head == NULL || head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) return n_read;
    int handed;
    memcpy(&handed, CMSG_DATA(head), sizeof handed);
    if (descriptor != NULL && *descriptor < 0)
        *descriptor = handed;
    else
        close(handed);
    return n_read;
}

lks_status lksi_take_over(int connection, void *record, size_t nbytes, int *descriptor, int64_t deadline_ns) {
    if (descriptor != NULL) *descriptor = -1;
    lks_status status = LKS_OK;
    for (size_t n_done = 0; n_done < nbytes && status == LKS_OK;) {
        status = wait_readable(connection, deadline_ns);
        if (status != LKS_OK) break;
        ssize_t n_read = receive_part(connection, (char *)record + n_done, nbytes - n_done, descriptor);
        if (n_read > 0)
            n_done += (size_t)n_read;
        else if (n_read == 0 || errno == ECONNRESET)
            status = lksi_error(LKS_ERR_PEER, "the control connection ended");
        else if (errno != EINTR && errno != EAGAIN)
            status = lksi_error_errno("cannot read the control connection");
    }
    if (status != LKS_OK && descriptor != NULL && *descriptor >= 0) close(*descriptor);
    return status;
}

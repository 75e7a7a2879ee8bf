/* How the processes of one host find each other, before there is a segment, over a local socket: name, meet, hand over.
 */
#ifndef LKSI_HANDSHAKE_H
#define LKSI_HANDSHAKE_H

#include "comm/bootstrap/build.h"
#include "comm/bootstrap/environment.h"
#include "comm/transport/segment/control.h"

/* What a rank says when it comes, and what it hears in the end: fixed sizes, so that nothing read is a length, and the
 * same in every version of the library, so that two versions can say which they are. The rank of the identity is that
 * of the meeting; local_size is `size` again but in the world's meeting. */
typedef struct lksi_hello {
    uint64_t magic;
    lksi_build build;
    int32_t size, local_size;
    lksi_identity identity;
    char transport[7];   /* that was asked for, by name; zeros behind it */
    uint8_t is_over_tcp; /* it meets the others there, and only looks in here (crossing.h) */
} lksi_hello;
_Static_assert(sizeof(lksi_hello) == 128, "a hello has this length in every version");

/* Follows when all have arrived, together with the descriptor of the control segment; or when it failed, without. */
typedef struct lksi_welcome {
    uint64_t magic;
    uint64_t control_nbytes;
    int32_t status;
    char text[LKSI_ABORT_TEXT_NBYTES];
} lksi_welcome;

/* Which ranks of this host meet, and what for. Where a pointer to one is NULL, all ranks of the world meet, for
 * lks_init. */
typedef struct lksi_meeting {
    const char *call; /* that it is for, as texts name it: "lks_init", "group_split" */
    bool is_world;    /* it is that of all ranks of the world, for lks_init */
    uint64_t id;      /* with that and the job's secrets it makes the socket's name, so that no two of a job meet */
    int rank, size;   /* of the meeting; rank 0 leads */
    const int *names; /* the ranks' numbers in the world, as texts name them; NULL: the same */
    bool (*is_given_up)(void *argument); /* asked now and then; NULL: the deadline alone ends it */
    void *argument;
} lksi_meeting;

/* The socket's name: whoever does not know the job's key cannot tell it. Abstract, so that nothing is left behind. */
enum { LKSI_SOCKET_NAME_NBYTES = 96 };
lks_status lksi_socket_name(const lksi_environment *environment, const lksi_meeting *meeting,
                            char name[LKSI_SOCKET_NAME_NBYTES]);
/* The same with any key and generation, for ranks of one job that do not have the same. */
lks_status lksi_socket_name_without_key(const lksi_environment *environment, char name[LKSI_SOCKET_NAME_NBYTES]);
/* `meeting`, or where it is NULL that of the world. */
lksi_meeting lksi_meeting_or_world(const lksi_environment *environment, const lksi_meeting *meeting);
static inline bool lksi_meeting_is_given_up(const lksi_meeting *meeting) {
    return meeting->is_given_up != NULL && meeting->is_given_up(meeting->argument);
}
/* The number by which texts name rank `rank` of the meeting. */
static inline int lksi_meeting_name(const lksi_meeting *meeting, int rank) {
    return meeting->names != NULL ? meeting->names[rank] : rank;
}

/* What those that are missing may have wrong, for the end of a text: "" but in the world's meeting. */
const char *lksi_meeting_hint(const lksi_meeting *meeting);
/* Whether it lasts long enough for a warning, which is then *is_told. */
bool lksi_meeting_is_slow(int64_t began_ns, bool *is_told);

void lksi_hello_fill(lksi_hello *hello, const lksi_environment *environment, const lksi_meeting *meeting,
                     bool is_over_tcp);
/* A hello of this job's ranks, or of one that has another size in mind. That of another version is one. */
bool lksi_hello_is_credible(const lksi_hello *hello, int size);
/* Tells a rank that has said hello why it cannot come in: it would otherwise try until its deadline. The text is the
 * current error's, which stays as it is. */
void lksi_turn_away(int connection, lks_status status);

/* The leader's side: connections[r] for every rank r of the meeting but itself, with the identities (in which rank is
 * the number in the world); all close-on-exec. Strangers are dropped. Errors: LKS_ERR_TIMEOUT naming who did not come,
 * LKS_ERR_MISMATCH, LKS_ERR_PEER. */
lks_status lksi_leader_meet(const lksi_environment *environment, const lksi_meeting *meeting, int64_t deadline_ns,
                            int *connections, lksi_identity *identities);
/* A follower's side: comes back when the leader has heard it. */
lks_status lksi_follower_meet(const lksi_environment *environment, const lksi_meeting *meeting, int64_t deadline_ns,
                              int *connection);

/* Sends and receives one record, with a descriptor where `descriptor` is not NULL (-1: none). */
lks_status lksi_hand_over(int connection, const void *record, size_t nbytes, int descriptor);
lks_status lksi_take_over(int connection, void *record, size_t nbytes, int *descriptor, int64_t deadline_ns);

void lksi_identity_fill(lksi_identity *identity, int rank);

#endif

/* How the processes of one host meet over a local socket before a control segment exists. */
#ifndef LKSI_HANDSHAKE_H
#define LKSI_HANDSHAKE_H

#include "comm/bootstrap/build.h"
#include "comm/bootstrap/environment.h"
#include "comm/transport/segment/control.h"

/* What a rank sends when it connects. All messages have fixed sizes, so that no length is read from the socket. The
 * layout is the same in every version of the library, so that two versions can report each other. identity.rank is the
 * rank in the meeting. local_size equals `size` except in the world's meeting. */
typedef struct lksi_hello {
    uint64_t magic;
    lksi_build build;
    int32_t size, local_size;
    lksi_identity identity;
    char transport[7];   /* requested from lks_init, padded with zeros */
    uint8_t is_over_tcp; /* it meets the others over TCP and only looks here (crossing.h) */
} lksi_hello;
_Static_assert(sizeof(lksi_hello) == 128, "a hello has this length in every version");

/* The answer when all ranks have arrived, with the descriptor of the control segment. After a failure it has no
 * descriptor. */
typedef struct lksi_welcome {
    uint64_t magic;
    uint64_t control_nbytes;
    int32_t status;
    char text[LKSI_ABORT_TEXT_NBYTES];
} lksi_welcome;

/* Which ranks of this host meet, and for what. A NULL pointer to a meeting means all ranks of the world, for
 * lks_init. */
typedef struct lksi_meeting {
    const char *call;                    /* the call, for texts: "lks_init", "group_split" */
    bool is_world;                       /* all ranks of the world meet, for lks_init */
    uint64_t id;                         /* part of the socket's name, unique within the job */
    int rank, size;                      /* of the meeting; rank 0 is the leader */
    const int *names;                    /* by rank of the meeting: rank in the world, for texts; NULL: the same */
    lks_status (*check)(void *argument); /* called periodically: an error ends the meeting; NULL: there is none */
    void *argument;
} lksi_meeting;

/* The name of the socket. It cannot be guessed without the job's key. It is abstract, so that no file is left
 * behind. */
enum { LKSI_SOCKET_NAME_NBYTES = 96 };
lks_status lksi_socket_name(const lksi_environment *environment, const lksi_meeting *meeting,
                            char name[LKSI_SOCKET_NAME_NBYTES]);
/* The name for any key and generation, for ranks of one job that disagree on them. */
lks_status lksi_socket_name_without_key(const lksi_environment *environment, char name[LKSI_SOCKET_NAME_NBYTES]);
/* *meeting, or the meeting of the world if `meeting` is NULL. */
lksi_meeting lksi_meeting_or_world(const lksi_environment *environment, const lksi_meeting *meeting);
static inline lks_status lksi_meeting_check(const lksi_meeting *meeting) {
    return meeting->check != NULL ? meeting->check(meeting->argument) : LKS_OK;
}
/* The number that texts use for rank `rank` of the meeting. */
static inline int lksi_meeting_name(const lksi_meeting *meeting, int rank) {
    return meeting->names != NULL ? meeting->names[rank] : rank;
}

/* What ranks that did not arrive may have set wrong, as the end of a text. "" except in the world's meeting. */
enum { LKSI_HINT_NBYTES = 768 };
void lksi_meeting_hint(const lksi_environment *environment, const lksi_meeting *meeting, char text[LKSI_HINT_NBYTES]);
/* Whether the meeting has lasted long enough for a warning: ten seconds, or one if the address is suspicious
 * (environment->loopback). Returns true only once: it then sets *is_told. */
bool lksi_meeting_is_slow(const lksi_environment *environment, const lksi_meeting *meeting, int64_t began_ns,
                          bool *is_told);

void lksi_hello_fill(lksi_hello *hello, const lksi_environment *environment, const lksi_meeting *meeting,
                     bool is_over_tcp);
/* Whether the hello comes from a rank of this job, or from a rank that expects another size. A hello of another version
 * counts. */
bool lksi_hello_is_credible(const lksi_hello *hello, int size);
/* Tells a rank that has sent its hello why it cannot join. Otherwise it would retry until its deadline. The text is
 * that of the current error, which stays current. */
void lksi_turn_away(int connection, lks_status status);

/* For the leader. Sets connections[r] and identities[r] for every other rank r of the meeting. identities[r].rank is
 * the rank in the world. The connections are close-on-exec. Strangers are dropped. Errors: LKS_ERR_TIMEOUT names the
 * ranks that did not arrive, LKS_ERR_MISMATCH, LKS_ERR_PEER. */
lks_status lksi_leader_meet(const lksi_environment *environment, const lksi_meeting *meeting, int64_t deadline_ns,
                            int *connections, lksi_identity *identities);
/* For a follower. Returns when the leader has accepted its hello. */
lks_status lksi_follower_meet(const lksi_environment *environment, const lksi_meeting *meeting, int64_t deadline_ns,
                              int *connection);

/* Sends or receives one record. lksi_hand_over passes `descriptor` along unless it is -1. lksi_take_over sets
 * *descriptor to the received one, or -1. `descriptor` may be NULL. */
lks_status lksi_hand_over(int connection, const void *record, size_t nbytes, int descriptor);
lks_status lksi_take_over(int connection, void *record, size_t nbytes, int *descriptor, int64_t deadline_ns);

/* For texts: the number, or "unset" for 0, an unknown LOCAL_WORLD_SIZE. */
enum { LKSI_LOCAL_SIZE_NBYTES = 16 };
const char *lksi_local_size_text(int local_size, char text[LKSI_LOCAL_SIZE_NBYTES]);

void lksi_identity_fill(lksi_identity *identity, int rank);

#endif

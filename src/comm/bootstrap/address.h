/* The address of a socket: IPv4 or IPv6, with the port. Its layout is fixed, so that it can be part of a record. */
#ifndef LKSI_ADDRESS_H
#define LKSI_ADDRESS_H

#include "base/base.h"

#include <sys/socket.h>

typedef struct lksi_address {
    struct sockaddr_storage storage;
    socklen_t nbytes;
} lksi_address;

enum {
    LKSI_ADDRESS_TEXT_NBYTES = 64,
    LKSI_BACKLOG = 4096, /* for all ranks and some strangers at once; SOMAXCONN is only 128 on some systems */
};

/* `host` is a name, an IPv4 address, or an IPv6 address with or without brackets. If a name has several addresses, the
 * first IPv4 address is used, so that all ranks use the same. Errors (the texts name the host): LKS_ERR_ARGUMENT,
 * LKS_ERR_SYSTEM, LKS_ERR_TIMEOUT if no name server answered. */
lks_status lksi_address_resolve(const char *host, int port, lksi_address *address);
/* The same, but asks again until the deadline while no name server answers, as on machines that have just started. The
 * type of `is_given_up` is that of lksi_dial's; it may be NULL. */
lks_status lksi_address_await(const char *host, int port, int64_t deadline_ns, bool (*is_given_up)(void *),
                              void *argument, lksi_address *address);
/* Parses "host:port" or "[::1]:port". Error texts name the variable `name`, from which the text comes. */
lks_status lksi_address_parse(const char *name, const char *text, lksi_address *address);
/* Writes "127.0.0.1:80" or "[::1]:80". */
void lksi_address_text(const lksi_address *address, char text[LKSI_ADDRESS_TEXT_NBYTES]);
/* Writes the host alone, without brackets: "127.0.0.1" or "::1". */
void lksi_address_host_text(const lksi_address *address, char text[LKSI_ADDRESS_TEXT_NBYTES]);
/* Whether host and port are the same. */
bool lksi_address_is_same(const lksi_address *a, const lksi_address *b);
bool lksi_address_is_loopback(const lksi_address *address);
/* Whether it stands for all addresses of a host (0.0.0.0, ::). A socket can listen there. Whoever connects to it
 * reaches its own host. */
bool lksi_address_is_unspecified(const lksi_address *address);
/* Returns LKS_ERR_ARGUMENT if the address is unspecified. The text names `name`, from which the address comes. */
lks_status lksi_address_check_specified(const char *name, const lksi_address *address);
/* Finds the local address from which packets to `there` leave. */
lks_status lksi_address_towards(const lksi_address *there, lksi_address *own);
/* Whether a record from the network contains an address that can be connected to. */
bool lksi_address_is_valid(const lksi_address *address);
int lksi_address_port(const lksi_address *address);
void lksi_address_set_port(lksi_address *address, int port);
/* The local address of the socket `descriptor`. */
lks_status lksi_address_of_socket(int descriptor, lksi_address *address);

/* Listens on exactly `wanted`. If its port is 0, the system chooses the port. The socket is non-blocking and
 * close-on-exec. *bound gets its address. `bound` may be NULL. Errors: LKS_ERR_SYSTEM, with errno set. */
lks_status lksi_listen(const lksi_address *wanted, int *listener, lksi_address *bound);

#endif

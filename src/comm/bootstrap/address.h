/* Where a socket listens: an IPv4 or IPv6 address with its port. Fixed layout, so that it may travel in a record. */
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
    LKSI_BACKLOG = 4096, /* all ranks and some strangers may knock at once; some systems' SOMAXCONN is 128 */
};

/* `host` is a name, an IPv4 address, or an IPv6 address with or without brackets. Of several addresses the first of
 * IPv4 is taken, so that all ranks take the same. Errors: LKS_ERR_ARGUMENT naming the host; LKS_ERR_SYSTEM. */
lks_status lksi_address_resolve(const char *host, int port, lksi_address *address);
/* "host:port", "[::1]:port". `name` is the variable it comes from, for the text of an error. */
lks_status lksi_address_parse(const char *name, const char *text, lksi_address *address);
/* "127.0.0.1:80", "[::1]:80". */
void lksi_address_text(const lksi_address *address, char text[LKSI_ADDRESS_TEXT_NBYTES]);
/* The host alone, without brackets: "127.0.0.1", "::1". */
void lksi_address_host_text(const lksi_address *address, char text[LKSI_ADDRESS_TEXT_NBYTES]);
/* The same host and port. */
bool lksi_address_is_same(const lksi_address *a, const lksi_address *b);
bool lksi_address_is_loopback(const lksi_address *address);
/* Whether a record that came over the network holds an address that can be dialled. */
bool lksi_address_is_valid(const lksi_address *address);
int lksi_address_port(const lksi_address *address);
void lksi_address_set_port(lksi_address *address, int port);
/* Where this end of `descriptor` is. */
lks_status lksi_address_of_socket(int descriptor, lksi_address *address);

/* Listens on exactly `wanted`, on a port of the system's choice where its port is 0. Non-blocking, closed on exec.
 * *bound, which may be NULL, is where. Errors: LKS_ERR_SYSTEM; errno is then that of the failure. */
lks_status lksi_listen(const lksi_address *wanted, int *listener, lksi_address *bound);

#endif

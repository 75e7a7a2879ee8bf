#include "comm/bootstrap/address.h"

#include "comm/clock.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <string.h>
#include <unistd.h>

#define ASK_AGAIN_NS (200 * LKSI_NS_PER_MS)

static void take_best(const struct addrinfo *found, lksi_address *address) {
    const struct addrinfo *best = found;
    for (const struct addrinfo *each = found->ai_next; each != NULL && best->ai_family != AF_INET; each = each->ai_next)
        if (each->ai_family == AF_INET) best = each;
    *address = (lksi_address){.nbytes = best->ai_addrlen};
    memcpy(&address->storage, best->ai_addr, best->ai_addrlen);
}

lks_status lksi_address_resolve(const char *host, int port, lksi_address *address) {
    char bare[256];
    size_t length = strlen(host);
    bool is_bracketed = length > 2 && host[0] == '[' && host[length - 1] == ']';
    if (is_bracketed) host++, length -= 2;
    if (length == 0 || length >= sizeof bare)
        return lksi_error(LKS_ERR_ARGUMENT, "a host name of %zu characters is not valid", length);
    memcpy(bare, host, length);
    bare[length] = '\0';
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *found = NULL;
    int failed = getaddrinfo(bare, NULL, &hints, &found);
    if (failed != 0 && strcmp(bare, "localhost") == 0) /* so that it works without /etc/hosts (RFC 6761) */
        failed = getaddrinfo("127.0.0.1", NULL, &hints, &found);
    if (failed != 0)
        return lksi_error(failed == EAI_NONAME  ? LKS_ERR_ARGUMENT
                          : failed == EAI_AGAIN ? LKS_ERR_TIMEOUT
                                                : LKS_ERR_SYSTEM,
                          "cannot find the host '%s': %s", bare, gai_strerror(failed));
    take_best(found, address);
    freeaddrinfo(found);
    lksi_address_set_port(address, port);
    return LKS_OK;
}

lks_status lksi_address_await(const char *host, int port, int64_t deadline_ns, bool (*is_given_up)(void *),
                              void *argument, lksi_address *address) {
    for (bool is_told = false;; is_told = true) {
        lks_status status = lksi_address_resolve(host, port, address);
        if (status != LKS_ERR_TIMEOUT || lksi_running_ns() + ASK_AGAIN_NS >= deadline_ns) return status;
        if (!is_told) lksi_log(LKS_LOG_WARNING, "%s; asking again until the deadline", lksi_error_text());
        lksi_doze(ASK_AGAIN_NS);
        if (is_given_up != NULL && is_given_up(argument)) return status;
    }
}

lks_status lksi_address_parse(const char *name, const char *text, lksi_address *address) {
    char host[256];
    int64_t port;
    const char *colon = strrchr(text, ':');
    size_t length = colon != NULL ? (size_t)(colon - text) : 0;
    /* Without brackets the end of an IPv6 address is ambiguous. */
    bool is_clear = length > 0 && length < sizeof host && (text[0] == '[' || memchr(text, ':', length) == NULL);
    if (!is_clear || !lksi_parse_i64(colon + 1, 1, 65535, &port))
        return lksi_error(LKS_ERR_ARGUMENT, "%s is '%s': host:port or [address]:port was expected", name, text);
    memcpy(host, text, length);
    host[length] = '\0';
    lks_status status = lksi_address_resolve(host, (int)port, address);
    return status == LKS_ERR_TIMEOUT ? lksi_error(LKS_ERR_SYSTEM, "%s", lksi_error_text()) : status;
}

/* The fields of the two families are copied out, because strict aliasing forbids to read the storage as another
 * type. */
static struct sockaddr_in as_ipv4(const lksi_address *address) {
    struct sockaddr_in ipv4;
    memcpy(&ipv4, &address->storage, sizeof ipv4);
    return ipv4;
}

static struct sockaddr_in6 as_ipv6(const lksi_address *address) {
    struct sockaddr_in6 ipv6;
    memcpy(&ipv6, &address->storage, sizeof ipv6);
    return ipv6;
}

static void write_host(const lksi_address *address, char *text, socklen_t text_nbytes) {
    const struct sockaddr *generic = (const struct sockaddr *)&address->storage;
    if (getnameinfo(generic, address->nbytes, text, text_nbytes, NULL, 0, NI_NUMERICHOST) != 0) strcpy(text, "?");
}

void lksi_address_host_text(const lksi_address *address, char text[LKSI_ADDRESS_TEXT_NBYTES]) {
    write_host(address, text, LKSI_ADDRESS_TEXT_NBYTES);
}

void lksi_address_text(const lksi_address *address, char text[LKSI_ADDRESS_TEXT_NBYTES]) {
    char host[LKSI_ADDRESS_TEXT_NBYTES - 10];
    bool is_ipv6 = address->storage.ss_family == AF_INET6;
    write_host(address, host, sizeof host);
    snprintf(text, LKSI_ADDRESS_TEXT_NBYTES, is_ipv6 ? "[%s]:%d" : "%s:%d", host, lksi_address_port(address));
}

bool lksi_address_is_same(const lksi_address *a, const lksi_address *b) {
    if (a->storage.ss_family != b->storage.ss_family || lksi_address_port(a) != lksi_address_port(b)) return false;
    if (a->storage.ss_family == AF_INET) return as_ipv4(a).sin_addr.s_addr == as_ipv4(b).sin_addr.s_addr;
    struct sockaddr_in6 host_a = as_ipv6(a), host_b = as_ipv6(b);
    return host_a.sin6_scope_id == host_b.sin6_scope_id &&
           memcmp(&host_a.sin6_addr, &host_b.sin6_addr, sizeof host_a.sin6_addr) == 0;
}

bool lksi_address_is_loopback(const lksi_address *address) {
    if (address->storage.ss_family == AF_INET) return ntohl(as_ipv4(address).sin_addr.s_addr) >> 24 == 127;
    if (address->storage.ss_family != AF_INET6) return false;
    struct in6_addr host = as_ipv6(address).sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(&host) || (IN6_IS_ADDR_V4MAPPED(&host) && host.s6_addr[12] == 127);
}

bool lksi_address_is_unspecified(const lksi_address *address) {
    if (address->storage.ss_family == AF_INET) return as_ipv4(address).sin_addr.s_addr == htonl(INADDR_ANY);
    if (address->storage.ss_family != AF_INET6) return false;
    struct in6_addr host = as_ipv6(address).sin6_addr;
    static const unsigned char nothing[4];
    return IN6_IS_ADDR_UNSPECIFIED(&host) ||
           (IN6_IS_ADDR_V4MAPPED(&host) && memcmp(&host.s6_addr[12], nothing, sizeof nothing) == 0);
}

lks_status lksi_address_check_specified(const char *name, const lksi_address *address) {
    char text[LKSI_ADDRESS_TEXT_NBYTES];
    if (!lksi_address_is_unspecified(address)) return LKS_OK;
    lksi_address_text(address, text);
    return lksi_error(LKS_ERR_ARGUMENT,
                      "%s is %s, which every host takes for itself: an address that all hosts reach is needed", name,
                      text);
}

bool lksi_address_is_valid(const lksi_address *address) {
    socklen_t expected = address->storage.ss_family == AF_INET    ? sizeof(struct sockaddr_in)
                         : address->storage.ss_family == AF_INET6 ? sizeof(struct sockaddr_in6)
                                                                  : 0;
    return expected != 0 && address->nbytes == expected && lksi_address_port(address) > 0;
}

int lksi_address_port(const lksi_address *address) {
    if (address->storage.ss_family == AF_INET) return ntohs(as_ipv4(address).sin_port);
    return address->storage.ss_family == AF_INET6 ? ntohs(as_ipv6(address).sin6_port) : 0;
}

void lksi_address_set_port(lksi_address *address, int port) {
    if (address->storage.ss_family == AF_INET) {
        struct sockaddr_in ipv4 = as_ipv4(address);
        ipv4.sin_port = htons((uint16_t)port);
        memcpy(&address->storage, &ipv4, sizeof ipv4);
    } else if (address->storage.ss_family == AF_INET6) {
        struct sockaddr_in6 ipv6 = as_ipv6(address);
        ipv6.sin6_port = htons((uint16_t)port);
        memcpy(&address->storage, &ipv6, sizeof ipv6);
    }
}

lks_status lksi_address_of_socket(int descriptor, lksi_address *address) {
    lksi_address found = {.nbytes = sizeof found.storage};
    if (getsockname(descriptor, (struct sockaddr *)&found.storage, &found.nbytes) != 0)
        return lksi_error_errno("cannot get the address of a socket");
    *address = found;
    return LKS_OK;
}

/* connect on a datagram socket sends nothing. */
lks_status lksi_address_towards(const lksi_address *there, lksi_address *own) {
    char text[LKSI_ADDRESS_TEXT_NBYTES];
    lks_status status = LKS_OK;
    int probe = socket(there->storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (probe < 0) return lksi_error_errno("cannot make a socket");
    lksi_address_host_text(there, text);
    if (connect(probe, (const struct sockaddr *)&there->storage, there->nbytes) != 0)
        status = lksi_error_errno("cannot find a route to %s", text);
    if (status == LKS_OK) status = lksi_address_of_socket(probe, own);
    close(probe);
    return status;
}

/* SO_REUSEADDR: a given port may be bound again while connections of its last owner are in TIME_WAIT, but not while
 * another socket listens on it. An IPv6 socket does not accept IPv4 connections. */
static bool bind_and_listen(int listener, const lksi_address *wanted) {
    int one = 1;
    if (lksi_address_port(wanted) != 0) (void)setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (wanted->storage.ss_family == AF_INET6) (void)setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof one);
    return bind(listener, (const struct sockaddr *)&wanted->storage, wanted->nbytes) == 0 &&
           listen(listener, LKSI_BACKLOG) == 0;
}

lks_status lksi_listen(const lksi_address *wanted, int *listener, lksi_address *bound) {
    char text[LKSI_ADDRESS_TEXT_NBYTES];
    lks_status status = LKS_OK;
    lksi_address_text(wanted, text);
    int created = socket(wanted->storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (created < 0) return lksi_error_errno("cannot make a socket for %s", text);
    if (!bind_and_listen(created, wanted))
        status = lksi_error_errno("cannot listen on %s", text);
    else if (bound != NULL)
        status = lksi_address_of_socket(created, bound);
    if (status != LKS_OK) {
        int saved = errno;
        close(created);
        errno = saved;
        return status;
    }
    *listener = created;
    return LKS_OK;
}

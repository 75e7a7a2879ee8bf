/* Lists the addresses of this machine, and finds out which addresses of rank 0's machine it can reach. */
#include "comm/transport/mpi/interfaces.h"

#include "comm/bootstrap/address.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* --- listing --- */

static bool is_wanted(const struct ifaddrs *each, int family) {
    if (each->ifa_addr == NULL || each->ifa_addr->sa_family != family) return false;
    if ((each->ifa_flags & IFF_UP) == 0 || (each->ifa_flags & IFF_LOOPBACK) != 0) return false;
    struct sockaddr_in6 ipv6;
    if (family != AF_INET6) return true;
    memcpy(&ipv6, each->ifa_addr, sizeof ipv6);
    return !IN6_IS_ADDR_LINKLOCAL(&ipv6.sin6_addr); /* link-local addresses need the name of an interface */
}

static void add(lksi_interfaces *interfaces, const struct ifaddrs *each, socklen_t nbytes) {
    if (interfaces->n == LKSI_MAX_INTERFACES) return;
    char *text = interfaces->addresses[interfaces->n];
    if (getnameinfo(each->ifa_addr, nbytes, text, LKSI_INTERFACE_NBYTES, NULL, 0, NI_NUMERICHOST) == 0) interfaces->n++;
}

void lksi_interfaces_list(lksi_interfaces *interfaces, bool are_near) {
    struct ifaddrs *all = NULL;
    *interfaces = (lksi_interfaces){.n = 1, .addresses = {"127.0.0.1"}};
    if (are_near) return;
    interfaces->n = 0;
    if (getifaddrs(&all) != 0) return;
    for (const struct ifaddrs *each = all; each != NULL; each = each->ifa_next)
        if (is_wanted(each, AF_INET)) add(interfaces, each, sizeof(struct sockaddr_in));
    for (const struct ifaddrs *each = all; each != NULL; each = each->ifa_next)
        if (is_wanted(each, AF_INET6)) add(interfaces, each, sizeof(struct sockaddr_in6));
    freeifaddrs(all);
}

/* --- reachability --- */

/* The bytes of an address, in network order. */
static const unsigned char *bytes_of(const struct sockaddr_storage *address, size_t *nbytes) {
    bool is_ipv4 = address->ss_family == AF_INET;
    *nbytes = is_ipv4 ? sizeof(struct in_addr) : sizeof(struct in6_addr);
    size_t offset = is_ipv4 ? offsetof(struct sockaddr_in, sin_addr) : offsetof(struct sockaddr_in6, sin6_addr);
    return (const unsigned char *)address + offset;
}

typedef struct relation {
    bool is_own, is_on_link;
} relation;

static void compare(const struct ifaddrs *each, const lksi_address *candidate, relation *found) {
    struct sockaddr_storage own = {.ss_family = 0}, mask = {.ss_family = 0};
    size_t length = candidate->storage.ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
    size_t nbytes;
    if (each->ifa_addr == NULL || each->ifa_netmask == NULL) return;
    if (each->ifa_addr->sa_family != candidate->storage.ss_family) return;
    memcpy(&own, each->ifa_addr, length);
    memcpy(&mask, each->ifa_netmask, length);
    mask.ss_family = own.ss_family;
    const unsigned char *a = bytes_of(&own, &nbytes), *b = bytes_of(&candidate->storage, &nbytes);
    const unsigned char *m = bytes_of(&mask, &nbytes);
    bool is_same = true, is_neighbour = true;
    for (size_t i = 0; i < nbytes; i++) {
        is_same &= a[i] == b[i];
        is_neighbour &= ((a[i] ^ b[i]) & m[i]) == 0;
    }
    found->is_own |= is_same, found->is_on_link |= is_neighbour;
}

/* connect on a datagram socket looks up the route and sends nothing. */
static bool has_route(const lksi_address *candidate) {
    int asked = socket(candidate->storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (asked < 0) return false;
    bool has = connect(asked, (const struct sockaddr *)&candidate->storage, candidate->nbytes) == 0;
    close(asked);
    return has;
}

uint64_t lksi_interfaces_reach(const lksi_interfaces *interfaces) {
    struct ifaddrs *all = NULL;
    uint64_t reached = 0;
    (void)getifaddrs(&all);
    for (int i = 0; i < interfaces->n && i < LKSI_MAX_INTERFACES; i++) {
        lksi_address candidate;
        relation found = {.is_own = false};
        if (lksi_address_resolve(interfaces->addresses[i], 1, &candidate) != LKS_OK) continue;
        for (const struct ifaddrs *each = all; each != NULL; each = each->ifa_next) compare(each, &candidate, &found);
        if (found.is_own) continue;
        if (found.is_on_link) reached |= UINT64_C(1) << i;
        if (has_route(&candidate)) reached |= UINT64_C(1) << (32 + i);
    }
    if (all != NULL) freeifaddrs(all);
    return reached;
}

const char *lksi_interfaces_choose(const lksi_interfaces *interfaces, uint64_t reached) {
    for (int kind = 0; kind <= 32; kind += 32)
        for (int i = 0; i < interfaces->n && i < LKSI_MAX_INTERFACES; i++)
            if ((reached >> (kind + i) & 1) != 0) return interfaces->addresses[i];
    return NULL;
}

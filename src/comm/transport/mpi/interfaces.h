/* The addresses of a machine, and which addresses of another machine can be reached. */
#ifndef LKSI_MPI_INTERFACES_H
#define LKSI_MPI_INTERFACES_H

#include "base/base.h"

enum { LKSI_MAX_INTERFACES = 31, LKSI_INTERFACE_NBYTES = 46 };

/* The layout is fixed, because rank 0 sends it to all. */
typedef struct lksi_interfaces {
    int32_t n;
    char addresses[LKSI_MAX_INTERFACES][LKSI_INTERFACE_NBYTES];
} lksi_interfaces;

/* Lists the addresses of this machine's interfaces that are up, IPv4 first. `are_near` (all ranks share a network
 * namespace): 127.0.0.1 only. */
void lksi_interfaces_list(lksi_interfaces *interfaces, bool are_near);
/* Bit i: address i is in a network of this machine. Bit 32 + i: there is a route to address i. */
uint64_t lksi_interfaces_reach(const lksi_interfaces *interfaces);
/* `reached` is the bitwise and over all ranks. The first address in a common network, otherwise the first one with a
 * route. NULL: there is none. */
const char *lksi_interfaces_choose(const lksi_interfaces *interfaces, uint64_t reached);

#endif

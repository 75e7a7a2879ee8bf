/* The addresses of a machine, and which of another's can be reached. */
#ifndef LKSI_MPI_INTERFACES_H
#define LKSI_MPI_INTERFACES_H

#include "base/base.h"

enum { LKSI_MAX_INTERFACES = 31, LKSI_INTERFACE_NBYTES = 46 };

/* Fixed layout: it travels. */
typedef struct lksi_interfaces {
    int32_t n;
    char addresses[LKSI_MAX_INTERFACES][LKSI_INTERFACE_NBYTES];
} lksi_interfaces;

/* Those of this machine that are up, IPv4 first; where all ranks are near, 127.0.0.1 alone. */
void lksi_interfaces_list(lksi_interfaces *interfaces, bool are_near);
/* Bit i: the i-th is of a network that this machine is on; bit 32 + i: there is a route to it. */
uint64_t lksi_interfaces_reach(const lksi_interfaces *interfaces);
/* The first in a common network, else the first with a route, of those that all can reach; NULL: there is none. */
const char *lksi_interfaces_choose(const lksi_interfaces *interfaces, uint64_t reached);

#endif

#include "comm/transport/tcp/tcp.h"
void lksi_roll_call_hear(lks_group *group, const lksi_star_record *record) { (void)group, (void)record; }

/* Ranks that are still on their way together do not see one of theirs end that has not come yet: they would wait for it
 * until their deadline. Its launcher sees it, and comes in its place:
 *
 *     rank r has ended     its launcher goes to rank 0, as r would have, which then fails with all who are there;
 *     rank 0 has           the launcher stands where rank 0 would, and tells whoever comes. So it does in either case
 *                          when rank 0 has gone
 */
#ifndef LKSI_LOST_RANK_H
#define LKSI_LOST_RANK_H

#include "base/base.h"

/* For a process of its own, whose environment is that of the lost rank, which was process `pid` of this host; rank 0 is
 * `pid_of_0`, 0: another host's. Comes back when all have heard it, or nobody can be told any more, or at the deadline:
 * ranks that have met before look nowhere. */
void lksi_lost_rank_tell(int pid, int pid_of_0, int64_t deadline_ns);

#endif

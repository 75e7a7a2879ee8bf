#!/usr/bin/env python3
"""What bench/start.py starts by torchrun: the ranks meet over Gloo, pass a barrier, and rank 0 says when, in nanoseconds
since 1970."""
import time

import torch.distributed as dist

dist.init_process_group("gloo")
dist.barrier()
now = time.time_ns()
if dist.get_rank() == 0:
    print(now, flush=True)
dist.destroy_process_group()

#!/usr/bin/env python3
"""The program that bench/start.py starts by torchrun. The ranks connect over Gloo and pass a barrier. Rank 0 then prints the
time, in nanoseconds since 1970."""
import time

import torch.distributed as dist

dist.init_process_group("gloo")
dist.barrier()
now = time.time_ns()
if dist.get_rank() == 0:
    print(now, flush=True)
dist.destroy_process_group()

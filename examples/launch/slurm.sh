#!/bin/bash
# A training run as a batch job, one rank per task:
#
#     sbatch examples/launch/slurm.sh build/examples/mnist --epochs 5
#     sbatch -N 4 --ntasks-per-node=8 examples/launch/slurm.sh PROGRAM ARGUMENTS...
#
# Ranks of a node share memory, those of different nodes talk over TCP. Who they are and where they meet they know from
# the variables that srun sets; MASTER_ADDR and MASTER_PORT may be set to choose another place.
#SBATCH --job-name=lockstep
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
set -eu
[ $# -gt 0 ] || { echo "usage: sbatch $0 PROGRAM [ARGUMENTS...]" >&2; exit 2; }

# The secret that lets the job's ranks in, and nobody else. srun hands it to every task with the rest of the environment.
LOCKSTEP_JOB_KEY=$(od -An -vtx1 -N32 /dev/urandom | tr -d ' \n')
export LOCKSTEP_JOB_KEY

# A rank that fails ends all others, and the job with its exit status.
exec srun --kill-on-bad-exit=1 "$@"

#!/bin/sh
# What mpirun starts once per rank, on every host of the file:
#
#     cd examples/launch
#     mpirun --hostfile hosts -np 4 ./run_training.sh                          # MNIST, as below
#     mpirun --hostfile hosts -np 4 ./run_training.sh build/examples/resnet9 --epochs 10
#
# Who a rank is, where the ranks meet and the job's key come from mpirun and MPI. All else that a rank needs is set here,
# because mpirun hands no environment to other hosts, where this directory must be too (a shared file system, or a copy).
set -eu
cd "$(dirname "$0")/../.."
export LOCKSTEP_TIMEOUT_MS="${LOCKSTEP_TIMEOUT_MS:-60000}" # a rank that does not come is named after a minute
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"             # of whatever else a program brings along: one rank, one CPU
[ $# -gt 0 ] || set -- build/examples/mnist --epochs 5
exec "$@" # so that signals reach the trainer itself

#!/usr/bin/env bash
# labels: no-asan
# Ranks that torchrun starts, and ranks that MPI's launchers start and that are told where to meet (examples/launch/):
# their ranks, and the same bits as elsewhere. Usage: test_launchers.sh BUILD_DIR. Without PyTorch or Debian's
# openmpi-bin or mpich it names what it skipped.
set -u
# shellcheck source=tests/system/common.sh
. tests/system/common.sh
same_as_run() { same "$(value "$work/$1.json" params_sha256)" "$(value "$work/run.json" params_sha256)"; }
# If ranks that do not call MPI end at once, MPICH 4.0's mpirun is sometimes killed by SIGPIPE and all output is lost (1
# to 3 % of `mpirun.mpich -np 2 echo` on a busy machine). Such a run shows nothing about this library.
run_under() { # FAMILY ARGUMENT...
  for _ in 1 2 3; do
    run "mpirun.$1" "${@:2}"
    [ "$status" = 141 ] && [ ! -s "$work/out" ] || return
    echo "note: mpirun.$1 was killed by SIGPIPE before its ranks said anything; it is started again"
  done
}
unset LOCKSTEP_JOB_KEY
export MASTER_ADDR=127.0.0.1 MASTER_PORT=$((15000 + $$ % 5000))

# torchrun HOST OPTION...: one host of two, which ranks take for different ones.
torchrun() {
  LOCKSTEP_JOB_KEY=test LOCKSTEP_TIMEOUT_MS=20000 LOCKSTEP_HOST_ID=host-$1 timeout 60 "$python" -m torch.distributed.run \
    --master_addr 127.0.0.1 --master_port "$MASTER_PORT" --nproc_per_node 1 --redirects 2 --tee 2 --log_dir "$work/torchrun-$1" \
    --no_python --node_rank "$@"
}
n_launchers=0
if python=$(tools/torch-python) && "$python" -c 'import torch.distributed.run' 2>/dev/null; then
  n_launchers=1
  torchrun 1 --nnodes 2 "$build/examples/hello" >"$work/other" 2>&1 &
  run torchrun 0 --nnodes 2 "$build/examples/hello"
  wait $! # its status does not count: the agent of PyTorch 1.13 may fail when the other has ended
  check "under torchrun of two hosts ranks meet beside its store" eval '[ "$status" = 0 ] && out_has "rank 0 of 2 .*transport tcp" && grep -q "rank 1 of 2" "$work/other"'
  run torchrun 0 --nnodes 1 "$lockstep" run -n 2 "$build/examples/hello"
  check "a lockstep run below torchrun has its own" eval '[ "$status" = 0 ] && out_has "rank 1 of 2 .*transport shm"'
  run "$lockstep" run -n 1 bash -c "$(declare -f torchrun); python=$python work=$work MASTER_PORT=$MASTER_PORT; torchrun 0 --nnodes 1 $build/examples/sum_of_ranks"
  check "and a torchrun below lockstep run" [ "$status" = 0 ]
else
  echo "note: no Python here has PyTorch (Debian: python3-torch)"
fi

for launcher in openmpi mpich; do
  command -v mpirun.$launcher >/dev/null || { echo "note: no mpirun.$launcher (Debian: openmpi-bin, mpich)"; continue; }
  n_launchers=$((n_launchers + 1))
  run_under $launcher -np 2 "$build/examples/hello"
  check "under mpirun.$launcher ranks are who it says" eval '[ "$status" = 0 ] && out_has "rank 1 of 2 .*local rank 1 of 2, transport shm"'
  run_under $launcher -np 2 env RANK=0 WORLD_SIZE=1 "$build/examples/hello"
  check "and where RANK and WORLD_SIZE say otherwise, each is told" eval '[ "$(grep -cE "warning: .*WORLD_SIZE is 1, while (OMPI_COMM_WORLD|PMI)_SIZE is 2" "$work/err")" = 2 ]'
done
[ $n_launchers -gt 0 ] || { echo "skipped: no torchrun or mpirun on this machine (Debian: python3-torch, openmpi-bin, mpich)"; exit 77; }

if ! found=$(tools/find-data); then
  echo "note: no data set in MNIST's format on this machine; what trains on it is left out"
elif command -v mpirun.openmpi >/dev/null; then
  read -r _ directory <<<"$found"
  steps=(--data "$directory" --steps 30 --grains 4)
  build=$(cd "$build" && pwd)
  run "$lockstep" run -n 2 "$build/examples/mnist" "${steps[@]}" --summary "$work/run.json"
  check "two ranks of lockstep run, to compare with" [ "$status" = 0 ]
  # The call in the documentation, if MPI can tell the ranks where to meet.
  [ ! -f "$build/lockstep-mpi-openmpi.so" ] || unset MASTER_ADDR MASTER_PORT
  run mpirun.openmpi --hostfile examples/launch/hosts -np 4 examples/launch/run_training.sh "$build/examples/mnist" \
    "${steps[@]}" --summary "$work/mpirun.json"
  check "examples/launch/ under mpirun gives the same bits" eval '[ "$status" = 0 ] && same_as_run mpirun && same "$(value "$work/mpirun.json" world_size)" 4'
fi

[ $n_failed = 0 ] && echo "launchers: ok"
exit $((n_failed > 0))

#!/usr/bin/env bash
# labels: no-asan no-tsan
# Trainers under mpirun of Open MPI and MPICH: the same bits as under `lockstep run`, on one host and on two simulated
# ones, over shared memory, MPI and both.
# Usage: test_mpi.sh BUILD_DIR. Prints a line per behaviour; fails if one does; skipped without an MPI or data.
set -u
# shellcheck source=tests/system/common.sh
. "$(dirname "$0")/common.sh"
export OMPI_MCA_btl=^tcp # without a network for it, version 5 would print a message
export OMP_NUM_THREADS=1

families=()
for family in openmpi mpich; do
  [ -f "$build/lockstep-mpi-$family.so" ] && command -v "mpirun.$family" >/dev/null && families+=("$family")
done
if [ ${#families[@]} = 0 ]; then
  echo "skipped: no MPI was found (Debian: openmpi-bin libopenmpi-dev mpich libmpich-dev)"
  exit 77
fi
if ! found=$(tools/find-data); then
  echo "skipped: no data set in MNIST's format on this machine"
  exit 77
fi
read -r _ directory <<<"$found"
trainer=("$build/examples/mnist" --data "$directory" --steps 30 --grains 4 --quiet)

# Ranks 0 and 1 appear to be on one host, 2 and 3 on another.
cat >"$work/on_two_hosts" <<'SCRIPT'
#!/bin/sh
LOCKSTEP_HOST_ID=host-$((${OMPI_COMM_WORLD_RANK:-$PMI_RANK} / 2)) exec "$@"
SCRIPT
chmod +x "$work/on_two_hosts"

is_like_one() { same "$(value "$work/$1" params_sha256)" "$(value "$work/one" params_sha256)"; }
went_over() { same "$(value "$work/$1" transport)" "$2"; }
start() { # FAMILY FILE COMMAND...
  local family=$1 file=$2
  shift 2
  rm -f "$work/$file"
  run timeout 100 "mpirun.$family" -np 4 "$@" --summary "$work/$file"
}

run "$lockstep" run -n 4 "${trainer[@]}" --summary "$work/one"
check "lockstep run trains" [ "$status" = 0 ]

run "$lockstep" info
for family in "${families[@]}"; do
  check "$family: lockstep info shows the module and its MPI" grep -qE "^MPI module: +$family: (Open MPI|MPICH)" "$work/out"
done

for family in "${families[@]}"; do
  start "$family" auto "${trainer[@]}"
  check "$family: mpirun trains, over shared memory" eval '[ $status = 0 ] && went_over auto shm'
  check "$family: to the same bits" is_like_one auto
  check "$family: and prints nothing about how it ends" [ ! -s "$work/err" ]
  start "$family" mpi "${trainer[@]}" --transport mpi --strategy bucketed --bucket 65536
  check "$family: over MPI, in small buckets beside the backward pass" eval '[ $status = 0 ] && went_over mpi mpi'
  check "$family: to the same bits" is_like_one mpi
  start "$family" two "$work/on_two_hosts" "${trainer[@]}"
  check "$family: on two hosts, over shared memory and MPI" eval '[ $status = 0 ] && went_over two mpi'
  check "$family: to the same bits" is_like_one two
  run timeout 100 "mpirun.$family" -np 2 "$lockstep" bench all_reduce --transport mpi --algorithm all --sizes 8K
  check "$family: bench shows native beside ours, all right" \
    eval '[ $status = 0 ] && grep -qE "^all_reduce +8192 .* native .* 0$" "$work/out" && grep -qE " halving_doubling " "$work/out"'
done

family=${families[0]}
LOCKSTEP_TRANSPORT=tcp start "$family" tcp "$work/on_two_hosts" "${trainer[@]}"
check "$family: on two hosts, over tcp where that is asked for" eval '[ $status = 0 ] && went_over tcp tcp'
check "$family: to the same bits" is_like_one tcp

# --- error messages ---
LOCKSTEP_MPI_MODULE=$work/nowhere run timeout 60 "mpirun.$family" -np 2 "$build/examples/hello"
check "a module that is not there is named, and where it was looked for" \
  err_has "the module lockstep-mpi-$family.so was not found in: LOCKSTEP_MPI_MODULE \($work/nowhere\)"
LOCKSTEP_TRANSPORT=mpi run "$lockstep" run -n 2 "$build/examples/hello"
check "transport mpi without an MPI launcher is refused" \
  eval '[ $status != 0 ] && err_has "no MPI launcher \(mpirun, srun --mpi\) has started this rank"'
if [ ${#families[@]} = 2 ]; then
  LOCKSTEP_MPI_MODULE=$build/lockstep-mpi-mpich.so run timeout 60 mpirun.openmpi -np 2 "$build/examples/hello"
  check "the module of another MPI is refused" err_has "lockstep-mpi-mpich.so is the module for MPICH.*, not for Open MPI"
  LOCKSTEP_MPI_MODULE=$build/lockstep-mpi-mpich.so run "$lockstep" info
  check "and info does not take it for the other" \
    eval 'grep -q "openmpi: .* is the module for MPICH" "$work/out" && grep -q "mpich: MPICH" "$work/out"'
  run timeout 60 mpirun.mpich -np 2 env OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=2 \
    OMPI_COMM_WORLD_LOCAL_RANK=0 "$build/examples/hello"
  check "another MPI's mpirun is noticed, and nothing is aborted" \
    eval 'err_has "MPI says that this is rank 0 of 1, the environment rank [01] of 2" && ! err_has "Abort|COMM_NULL|Assertion" &&
      ! out_has "Abort|COMM_NULL|Assertion"'
fi

[ $n_failed = 0 ] || { echo "$n_failed failed"; exit 1; }

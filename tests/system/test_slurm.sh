#!/usr/bin/env bash
# labels: no-asan
# Ranks that a real Slurm starts, on one node and on three: their ranks, where they meet, the same bits as elsewhere,
# and how they end. Usage: test_slurm.sh BUILD_DIR. Needs what tests/system/slurm.sh needs, and is skipped without it.
set -u
# shellcheck source=tests/system/common.sh
. tests/system/common.sh
# shellcheck source=tests/system/slurm.sh
. tests/system/slurm.sh
trap 'slurm_stop; rm -rf "$work"' EXIT
why=$(slurm_can) || { echo "skipped: $why"; exit 77; }
begin() { slurm_start "$1" >"$work/why" || { echo "FAIL $(cat "$work/why")"; exit 1; }; }
all_lines_say() { [ "$(grep -c '^lockstep: ' "$work/err")" = "$1" ] && [ "$(grep -cE -- "^lockstep: .*$2" "$work/err")" = "$1" ]; }
# pgrep prints its own status, because a failure of nsenter would also have status 1.
# shellcheck disable=SC2016
nothing_runs() { [ "$(slurm_run sh -c 'pgrep -x "mnist|hello" >&2; echo $?' 2>"$work/out")" = 1 ]; }
same_as_run() { same "$(value "$work/$1.json" params_sha256)" "$(value "$work/run.json" params_sha256)"; }
has_ended() { [[ $(scontrol show job "$1") =~ JobState=(COMPLETED|FAILED|CANCELLED) ]]; }
batch() { # ARGUMENTS of sbatch: output in $work/batch, exit status in $status (sbatch --wait polls every ten seconds)
  run sbatch --parsable -o "$work/batch" "$@"
  local job
  job=$(cat "$work/out")
  eventually has_ended "$job"
  status=$(scontrol show job "$job" | sed -nE 's/.* ExitCode=([0-9]+):([0-9]+).*/\1/p')
  cp "$work/batch" "$work/out"
}
unset LOCKSTEP_JOB_KEY MASTER_ADDR MASTER_PORT

if ! found=$(tools/find-data); then
  echo "skipped: no data set in MNIST's format on this machine"
  exit 77
fi
read -r _ directory <<<"$found"
steps=(--data "$directory" --steps 30 --grains 4)
run "$lockstep" run -n 4 "$build/examples/mnist" "${steps[@]}" --summary "$work/run.json"
check "four ranks of lockstep run, to compare with" [ "$status" = 0 ]

# --- one node ---

begin 1
run srun -n 2 "$build/examples/mnist" "${steps[@]}" --summary "$work/srun.json"
check "srun on one node needs no key and gives the same bits" eval '[ "$status" = 0 ] && same_as_run srun && same "$(value "$work/srun.json" transport)" shm'
for mpi in pmi2 pmix; do
  run srun --mpi=$mpi -n 3 "$build/examples/hello"
  check "under srun --mpi=$mpi ranks are who srun says" eval '[ "$status" = 0 ] && out_has "rank 2 of 3 on n1.*local rank 2 of 3, transport shm"'
done
batch -n 3 --wrap "$build/examples/hello"
check "a batch script is no rank: what it runs without srun is a world of one" out_has "rank 0 of 1"
# shellcheck disable=SC2016 # the tasks' variables
run srun -n 3 env LOCKSTEP_TIMEOUT_MS=1000 sh -c '[ "$SLURM_PROCID" != 1 ] && exec "$0"' "$build/examples/hello"
check "the rank that did not arrive is named" all_lines_say 2 "rank\(s\) 1 of 3 did not arrive"
slurm_stop

# --- three nodes ---

begin 3
run srun -N 3 -n 3 "$build/examples/hello"
check "a job across nodes needs a key" all_lines_say 3 "needs LOCKSTEP_JOB_KEY"
export LOCKSTEP_JOB_KEY=the-key-of-this-test
run srun -N 3 -n 4 "$build/examples/hello"
check "nodes are hosts, the first is rank 0's" eval '[ "$status" = 0 ] && out_has "rank 0 of 4 on n1.* local rank 0 of 2, transport tcp" && out_has "rank 3 of 4 on n3.* local rank 0 of 1, transport tcp"'
for nodes in 2 3; do
  run srun -N $nodes -n 4 "$build/examples/mnist" "${steps[@]}" --summary "$work/nodes$nodes.json"
  check "four ranks on $nodes nodes give the same bits" eval '[ "$status" = 0 ] && same_as_run nodes$nodes && same "$(value "$work/nodes$nodes.json" transport)" tcp'
done
# Slurm sorts the step's list of nodes, but rank 0 is on n2 and on n3.
heterogeneous=(-w n2 -n 2 "$build/examples/hello" : -w n1 -n 1 "$build/examples/hello")
LOCKSTEP_TIMEOUT_MS=8000 run srun "${heterogeneous[@]}"
check "a heterogeneous step whose rank 0 is not on the first node of the list is told what to set" \
  err_has "rank 0 is not on n1, the first host of SLURM_STEP_NODELIST.*set MASTER_ADDR to n2"
MASTER_ADDR=n2 run srun "${heterogeneous[@]}"
check "and with MASTER_ADDR its ranks are who srun says" eval '[ "$status" = 0 ] && out_has "rank 1 of 3 on n2.* local rank 1 of 2" && out_has "rank 2 of 3 on n1.* local rank 0 of 1"'
arbitrary=(-K -m arbitrary -w "n3,n1,n2,n1" -n 4 "$build/examples/hello")
LOCKSTEP_TIMEOUT_MS=8000 run srun "${arbitrary[@]}"
check "so it is with an arbitrary distribution" err_has "rank 0 is not on n1, .*set MASTER_ADDR to n3"
MASTER_ADDR=n3 run srun "${arbitrary[@]}"
check "and with MASTER_ADDR there" eval '[ "$status" = 0 ] && out_has "rank 0 of 4 on n3.* local rank 0 of 1" && out_has "rank 3 of 4 on n1.* local rank 1 of 2"'
unset LOCKSTEP_JOB_KEY
batch -N 2 --ntasks-per-node=2 examples/launch/slurm.sh "$build/examples/mnist" "${steps[@]}" --summary "$work/batch.json"
check "so does examples/launch/slurm.sh, which makes a key" eval '[ "$status" = 0 ] && same_as_run batch && same "$(value "$work/batch.json" transport)" tcp'
export LOCKSTEP_JOB_KEY=the-key-of-this-test

# --- how they end ---

# shellcheck disable=SC2016
LOCKSTEP_TIMEOUT_MS=8000 run srun -N 3 -n 3 sh -c '[ "$SLURM_PROCID" != 1 ] || export LOCKSTEP_JOB_KEY=mistyped; exec "$0"' "$build/examples/hello"
check "a wrong key is said by every rank" eval '[ "$(grep -c "^lockstep: .*another LOCKSTEP_JOB_KEY" "$work/err")" = 3 ] && err_has "rank\(s\) 1 of 3 did not arrive, and somebody at "'

slurm_run timeout 20 python3 -c 'import socket, time
s = socket.socket(); s.bind(("10.78.0.1", 29999)); s.listen(); print("there", flush=True); time.sleep(20)' >"$work/listener" 2>&1 &
disown
eventually grep -q there "$work/listener"
run srun -N 2 -n 2 env MASTER_PORT=29999 LOCKSTEP_TIMEOUT_MS=1000 "$build/examples/hello"
check "a port in use is named" err_has "rank 0 cannot listen on 10.78.0.1:29999 .* another program does"

# shellcheck disable=SC2016
killed='[ "$SLURM_PROCID" = 2 ] || exec "$0" "$@"; timeout -s KILL 2 "$0" "$@"'
run srun -N 2 -n 4 sh -c "$killed" "$build/examples/mnist" --data "$directory" --steps 1000000 --quiet
check "a killed rank is named by those on its node and on the other" eval '[ "$status" != 0 ] && [ "$(grep -c "rank 2 (host n1, pid [0-9]*) was lost" "$work/err")" = 3 ]'
check "and nothing is left" eventually nothing_runs
batch -N 2 --ntasks-per-node=2 examples/launch/slurm.sh sh -c "$killed" "$build/examples/mnist" \
  --data "$directory" --steps 1000000 --quiet
check "under examples/launch/slurm.sh it ends the job" [ "$status" != 0 ]
check "and nothing is left there either" eventually nothing_runs

job=$(sbatch --parsable -N 2 --ntasks-per-node=2 -o "$work/batch" examples/launch/slurm.sh "$build/examples/mnist" \
  --data "$directory" --steps 1000000 --run "$work/cancelled" --checkpoint-every 50 --quiet)
check "checkpoints are written while a job trains" eventually eval 'compgen -G "$work/cancelled/checkpoints/step-*.safetensors" >"$work/out"'
scancel "$job"
check "scancel ends the ranks" eventually nothing_runs
check "which have written a checkpoint where they stopped" eventually grep -qE "stopped by SIGTERM at step .*checkpoint" "$work/batch"

[ $n_failed = 0 ] && echo "slurm: ok"
exit $((n_failed > 0))

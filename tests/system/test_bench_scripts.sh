#!/usr/bin/env bash
# labels: busy no-asan
# The scripts of bench/ that the documents tell readers to run, each once and as short as possible; wrong calls of them. No
# timings are checked. Usage: test_bench_scripts.sh BUILD_DIR. Where PyTorch or data is missing, it names what it left out.
set -u
# shellcheck source=tests/system/common.sh
. tests/system/common.sh
python=$(python3 -c 'import sys; print(sys.executable)') # the program itself, because the one in PATH may be a wrapper
export LOCKSTEP_DATA=${LOCKSTEP_DATA:-${XDG_CACHE_HOME:-$HOME/.cache}/lockstep/data}

# script NAME ARGS...: bench/NAME.py with this build
script() { run "$python" "bench/$1.py" --build "$build" "${@:2}"; }
# has SCRIPT NAME...: the data sets NAME are there; otherwise it says that SCRIPT is left out
has() {
  local name
  for name in "${@:2}"; do
    [ -e "$LOCKSTEP_DATA/$name" ] || { echo "note: no $name here; $1 is left out"; return 1; }
  done
}

# --- comm.py, without running another library ---
"$python" bench/comm.py --build "$build" --contenders ordinary,symmetric --operations all_reduce,all_gather --ranks 2,3 \
  --sizes 4,1K --repetitions 2 --json "$work/comm.json" >"$work/out" 2>"$work/err"
status=$?
check "bench/comm.py prints tables of runs within one state of the machine, and how many there were of each" \
  eval 'status_is 0 && out_has "^half a round trip .* us; [0-9]+ runs near, [0-9]+ runs far, [0-9]+ runs mixed" &&
    { out_has "^all_reduce, f32, 2 ranks, (near|far): microseconds" || out_has " [1-9][0-9]* runs mixed"; }'
check "and writes what it measured" python3 -c 'import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
sys.exit(len(rows) != 2 * 2 * (2 * 2 + 2 * 2) or {row["contender"] for row in rows} != {"ordinary", "symmetric"})' "$work/comm.json"
PATH=/nonexistent "$python" bench/comm.py --build "$build" --contenders openmpi,mpich >"$work/out" 2>"$work/err"
status=$?
check "contenders that are not there are named and left out; without any, nothing was measured" \
  eval 'status_is 1 && out_has "^skipped: openmpi: mpicc.openmpi is not installed" && out_has "^skipped: mpich: " && err_has "^nothing was measured"'
"$python" bench/comm.py --build "$build" --contenders ordinary --operations all_reduce --ranks 2 --sizes 4 --json /dev/full \
  >"$work/out" 2>"$work/err"
status=$?
check "a full disk is told after the first run" \
  eval 'status_is 1 && err_has "^/dev/full: No space left on device" && [ "$(grep -c "^[0-9]*/5 " "$work/err")" = 1 ]'

# --- training ---
if has bench/checkpoint.py cifar-10-batches-bin; then
  script checkpoint --repetitions 1 --steps 21 --every 10
  check "bench/checkpoint.py prints what checkpoints cost" eval 'status_is 0 && out_has "\"example\": \"resnet9\", .*\"cost_percent\": "'
fi
if has bench/grains.py mnist cifar-10-batches-bin ptb; then
  script grains --repetitions 1 --steps 21 --ranks 1 --grains 2
  check "bench/grains.py prints a table of all examples" \
    eval 'status_is 0 && [ "$(grep -cE "^\| (mlp|mnist|resnet9|language_model) \| 1 \| (none|2) " "$work/out")" = 8 ]'
fi
if ! tools/torch-python >/dev/null; then
  echo "note: no Python here has PyTorch; bench/train.py and bench/gpu.py are left out"
else
  script train --repetitions 1 --examples mlp --steps 21 --ranks 1 --json "$work/train.json"
  if err_has "PyTorch uses the reference BLAS"; then
    echo "note: PyTorch uses the reference BLAS here; bench/train.py is left out"
  else
    check "bench/train.py prints a table" eval 'status_is 0 && out_has "^mlp +1 .*x$"'
  fi
  if has bench/gpu.py mnist cifar-10-batches-bin ptb; then
    echo '{"case": "before"}' >"$work/gpu.json"
    script gpu --repetitions 1 --cases mlp --steps 21 --device cpu --peer-on-cpu --variables '' --json "$work/gpu.json"
    check "bench/gpu.py prints a table, here without a GPU, and appends its lines" \
      eval 'status_is 0 && out_has "^mlp +64 .*x" && [ "$(grep -cE "^.\"case\": \"(before|mlp)\"" "$work/gpu.json")" = 2 ]'
    script gpu --cases mlp --json /nonexistent/gpu.json
    check "a file that cannot be written is named before anything is measured" refused 1 "^/nonexistent/gpu.json: No such file"
  fi
fi

# --- start.py ---
script start --repetitions 1
check "bench/start.py prints a table" eval 'status_is 0 && out_has "^lockstep 8 .* 150$" && out_has "^lockstep 64 "'

# --- overlap ---
if [ "$(id -u)" != 0 ]; then
  echo "note: bench/overlap needs root; it is left out"
elif has bench/overlap cifar-10-batches-bin; then
  run bench/overlap --build "$build" --batch 64 --cpus 1 --steps 21 --repetitions 1 --no-peer --timeline "$work/timeline"
  if err_has "^bench/overlap: "; then
    echo "note: $(cat "$work/err"); it is left out"
  else
    check "bench/overlap prints what is hidden" eval 'status_is 0 && out_has "^overlapped +[0-9]+ us +[0-9.]+$"'
    check "and records a timeline" eval '[ -s "$work/timeline/rank0.json" ] && [ -s "$work/timeline/rank1.json" ]'
  fi
fi

# --- wrong calls ---
while read -r which flag value; do
  script "$which" "$flag" "$value"
  check "bench/$which.py $flag $value is refused" \
    eval 'status_is 2 && err_has "^$which.py: error: argument $flag: .*$value" && [ ! -e "$work/typo" ]'
done <<EOF2
comm --repetitions 0
comm --ranks 0
comm --sizes 4x
comm --build $work/typo
train --repetitions 0
train --ranks x
train --ranks 0
train --examples foo
train --steps 20
train --build $work/typo
gpu --repetitions 0
gpu --cases foo
gpu --kernels foo
gpu --variables foo
gpu --steps 20
gpu --build $work/typo
start --repetitions 0
start --build $work/typo
checkpoint --repetitions 0
checkpoint --every 0
checkpoint --ranks 0
checkpoint --directory $work/typo
checkpoint --build $work/typo
grains --repetitions 0
grains --examples foo
grains --ranks 0
grains --grains x
grains --build $work/typo
EOF2

check "nothing is left in /dev/shm" eventually nothing_new_in_shm
exit $((n_failed > 0))

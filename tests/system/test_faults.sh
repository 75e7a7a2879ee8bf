#!/usr/bin/env bash
# labels: no-asan
# Ranks started by hand with different options: all of them end at once, and one reports the difference.
# Usage: test_faults.sh BUILD_DIR. Prints a line per behaviour; fails if one does.
set -u
# shellcheck source=tests/system/common.sh
. "$(dirname "$0")/common.sh"
mlp=$build/examples/mlp
lstm=$build/examples/language_model
port=29731

# start COMMON... -- ODD...: starts 3 ranks of a program. Rank 1 also gets the odd arguments. Exit statuses are in
# $statuses, output in $work/out and $work/err.
start() {
  local common=() rank pids=()
  while [ "$1" != -- ]; do
    common+=("$1")
    shift
  done
  shift
  : >"$work/out"
  : >"$work/err"
  for rank in 0 1 2; do
    [ "$rank" = 1 ] && odd=("$@") || odd=()
    RANK=$rank WORLD_SIZE=3 LOCAL_RANK=$rank LOCAL_WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
      timeout 60 env LOCKSTEP_ISA="${isas[$rank]}" "${common[@]}" "${odd[@]}" >>"$work/out" 2>>"$work/err" &
    pids+=($!)
  done
  port=$((port + 1))
  statuses=
  for pid in "${pids[@]}"; do
    wait "$pid"
    statuses="$statuses $?"
  done
}
isas=("" "" "")

# EXIT_STATUS LINE: every rank ends with this status. The table is printed once and has this line.
differs() {
  [ "$statuses" = " $1 $1 $1" ] && [ "$(grep -c 'the ranks do not agree' "$work/err")" = 1 ] &&
    err_has '^  option +\| ranks 0, 2 +\| rank 1$' && err_has "$2"
}

small=("$mlp" --samples 200 --features 16 --hidden 8 --classes 4 --steps 5 --batch 12)
start "${small[@]}" --
check "ranks that agree train" [ "$statuses" = " 0 0 0" ]
start "${small[@]}" -- --batch 24
check "another batch size" differs 2 '^  --batch +\| 12 +\| 24$'
start "${small[@]}" -- --lr 0.25
check "another learning rate" differs 2 '^  --lr +\| 0\.1 +\| 0\.25$'
start "${small[@]}" -- --seed 3 --steps 7
check "another seed and number of steps" eval \
  "differs 2 '^  --seed +\\| 1 +\\| 3\$' && err_has '^  --steps +\\| 5 +\\| 7\$'"
start "${small[@]}" -- --accumulate 1 --strategy auto --epochs 5
check "ranks that say the same in other words train" [ "$statuses" = " 0 0 0" ]
start "${small[@]}" --compress powersgd --transport tcp -- --compress-rank 4
check "a default that is given is the default" [ "$statuses" = " 0 0 0" ]
start "${small[@]}" --steps 50 -- --epochs 1
check "an end of the run that only the data tells" differs 1 '^  steps of the run +\| 50 +\| 15$'
start "${small[@]}" -- --bucket 4096 --grains 2 --check-replicas 2
unset_flags() {
  differs 2 '^  --bucket +\| chosen +\| 4096$' && err_has '^  --grains +\| none +\| 2$' &&
    err_has '^  --check-replicas +\| at the end +\| 2$'
}
check "what was not given is shown in a word" unset_flags
start "${small[@]}" -- --hidden 9
check "another model" differs 2 '^  --hidden +\| 8 +\| 9$'
start "${small[@]}" -- --steps -1
others_hear() { [ "$statuses" = " 2 2 2" ] && [ "$(grep -c '^lockstep: rank 1 gave up, and says why$' "$work/err")" = 2 ]; }
check "who is refused is named where nobody hears it" others_hear
check "and names itself" err_has '^[^ ]*mlp: rank 1: --steps '
start "${small[@]}" --steps -1 --
check "what all are refused for is no rank's" eval '[ "$statuses" = " 2 2 2" ] && err_has "^[^ ]*mlp: --steps "'
start "${small[@]}" -- --check-gradients
check "checks that others do not make" differs 2 '^  --check-gradients +\| no +\| yes$'
start "${small[@]}" -- --device reference
check "another device" differs 1 '^  device +\| cpu +\| reference$'
isas=(base "" base)
if "$lockstep" info | grep -q avx; then
  start "${small[@]}" --
  check "another instruction set" differs 1 '^  instruction set +\| base +\| avx'
fi
isas=("" "" "")

# Initial weights, which each rank reads from a file of its own.
run "$mlp" --samples 200 --features 16 --hidden 8 --classes 4 --steps 1 --batch 12 --quiet --save "$work/good"
run "$mlp" --samples 200 --features 16 --hidden 9 --classes 4 --steps 1 --batch 12 --quiet --save "$work/wider"
head -c 2000 "$work/good" >"$work/cut"
# REASON: rank 1 reports it. Rank 0 names it, and rank 2 is told that rank 0 reports.
follows() {
  [ "$statuses" = " 2 2 2" ] && [ "$(grep -c "^lockstep: $1" "$work/err")" = 1 ] &&
    err_has "^lockstep: $work/good: rank 1 failed, so rank 0 stops too: $1" &&
    [ "$(wc -l <"$work/err")" = 3 ] && err_has '^lockstep: rank 0 gave up, and says why$'
}
start "${small[@]}" --init "$work/good" -- --init "$work/nowhere"
check "a rank that has no weights says so" follows "$work/nowhere: No such file"
start "${small[@]}" --init "$work/good" -- --init "$work/cut"
check "one whose weights are cut, too" follows "$work/cut: truncated"
start "${small[@]}" --init "$work/good" -- --init "$work/wider"
check "and one that has another model's" follows "$work/wider: entry 'layers.3.weight' has the shape"
start "${small[@]}" --init "$work/nowhere" -- --init "$work/cut"
both_say() {
  [ "$statuses" = " 2 2 2" ] && [ "$(grep -c "^lockstep: $work/nowhere: No such file" "$work/err")" = 1 ] &&
    err_has "^lockstep: $work/cut: truncated"
}
check "two reasons are two lines" both_say

# Two texts of the same size that differ in one word.
mkdir "$work/text" "$work/other"
for split in train valid test; do
  yes 'the cat sees the dog' | head -n 60 >"$work/text/ptb.$split.txt"
  sed '$s/cat/dog/' "$work/text/ptb.$split.txt" >"$work/other/ptb.$split.txt"
done
start "$lstm" --hidden 8 --batch 6 --steps 3 --data "$work/text" -- --data "$work/other"
check "another text" differs 1 '^  data \(hash\) +\| [0-9a-f]{16} +\| [0-9a-f]{16}$'
start "$lstm" --hidden 8 --batch 6 --steps 3 --data "$work/text" -- --data "$work/nowhere"
check "a rank without its text names itself" eval '[ "$statuses" = " 1 1 1" ] && err_has "^lockstep: rank 1: $work/nowhere: "'

# --- optional checks ---
run "$lockstep" run -n 3 "${small[@]}" --check-gradients --check-replicas 2 --summary "$work/checked"
check "a run with all checks" [ "$status" = 0 ]
run "$lockstep" run -n 3 "${small[@]}" --summary "$work/plain"
check "checks change no bit" same "$(value "$work/checked" params_sha256)" "$(value "$work/plain" params_sha256)"

# Weights of 0, then of 3e38: the hidden units are 0 and the loss is ln 4, but the gradient of the first layer
# overflows.
python3 - "$work/large.safetensors" <<'END'
import json, struct, sys
layers = {"layers.0.weight": ([8, 16], [0.0] * 128), "layers.1.weight": ([4, 8], [3e38] * 8 + [-3e38] * 24)}
header, data = {}, b""
for name, (shape, values) in layers.items():
    added = struct.pack(f"<{len(values)}f", *values)
    header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(added)]}
    data += added
header = json.dumps(header).encode()
with open(sys.argv[1], "wb") as file:
    file.write(struct.pack("<Q", len(header)) + header + data)
END
large=("${small[@]}" --layers 2 --init "$work/large.safetensors")
run "$lockstep" run -n 3 "${large[@]}" --check-gradients
check "a gradient that is no number is named with its parameter, rank and step" \
  refused 1 "the gradient of 'layers.0.weight' on rank 0 in step 1 holds -?(inf|nan); nothing was updated"
run "$lockstep" run -n 3 "${large[@]}"
check "who does not ask hears of it a step later" eval '[ "$status" = 1 ] && err_has "the loss of rank [0-2] in step 2 is"'
[ "$n_failed" = 0 ]

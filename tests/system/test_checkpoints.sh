#!/usr/bin/env bash
# labels: no-asan
# Checkpoints and the trainers' other files from the command line: real processes, and files read by another language.
# Usage: test_checkpoints.sh BUILD_DIR. Prints a line per behaviour; fails if one does. Needs no data.
set -u
# shellcheck source=tests/system/common.sh
. "$(dirname "$0")/common.sh"

# train RANKS ARGS...: the small classifier; an epoch has 22 steps
train() {
  local ranks=$1
  shift
  case " $* " in *" --steps "*) ;; *) set -- --steps 40 "$@" ;; esac
  rm -f "$work/summary" # a file found there afterwards belongs to this run
  run "$lockstep" run -n "$ranks" "$build/examples/mlp" --layers 3 --features 48 --hidden 32 --classes 8 \
    --samples 1540 --summary "$work/summary" "$@"
}
# Of the last run. Fails and prints nothing if that failed.
hash_of() {
  [ "$status" = 0 ] && [ -r "$work/summary" ] &&
    sed -nE 's/.*"params_sha256":"([0-9a-f]{64})".*/\1/p' "$work/summary" | grep .
}
fine() { [ "$status" = 0 ] && "$@"; } # COMMAND...: it succeeds, and so did the last run
# The checks below rely on this: missing values never pass.
run "$work/no_program"
check "a run that failed has no hash, and nothing equals nothing" eval '! hash_of && ! same "" "" && ! fine true'

# --- a run that is killed resumes from its last checkpoint ---
die_after_a_save() { # ARGS...: a rank is killed as soon as there is a checkpoint
  rm -f "$work/checkpoint"
  "$lockstep" run -n 2 "$build/examples/mlp" --layers 3 --features 48 --hidden 32 --classes 8 --samples 1540 "$@" \
    --save "$work/checkpoint" >"$work/out" 2>"$work/err" &
  local launcher=$!
  for _ in $(seq 3000); do # the disk may be busy
    [ -e "$work/checkpoint" ] && break
    sleep 0.01
  done
  kill -9 "$(pgrep -P $launcher -f examples/mlp | tail -n 1)" 2>/dev/null
  wait $launcher
}
train 2 --steps 4000
whole=$(hash_of)
die_after_a_save --steps 4000
train 2 --steps 4000 --resume "$work/checkpoint" --save "$work/end"
check "a run that was killed is resumed to the bits of one that was not" same "$(hash_of)" "$whole"
steps=$(sed -nE 's/^mlp: 2 ranks .* ([0-9]+) steps in .*/\1/p' "$work/out")
check "and had something left to do ($steps steps)" fine [ "$steps" -gt 0 ]
for ranks in 1 2 3; do
  train $ranks
  whole=$(hash_of)
  train $ranks --save "$work/end"
  check "saving does not change a run of $ranks" same "$(hash_of)" "$whole"
  train $ranks --resume "$work/end"
  check "a run of $ranks that is resumed at its end is what it was" same "$(hash_of)" "$whole"
done

# --- texts: states are carried, and dropout draws continue ---
mkdir "$work/text"
for split in train valid test; do
  awk -v seed=$split 'BEGIN { x = length(seed); for (i = 0; i < 400; i++) { line = ""; for (j = 0; j < 3 + i % 5; j++)
    { x = (x * 37 + i + j) % 41; line = line " w" x }; print line } }' >"$work/text/ptb.$split.txt"
done
text() { # RANKS ARGS...
  local ranks=$1
  shift
  rm -f "$work/summary"
  run "$lockstep" run -n "$ranks" "$build/examples/language_model" --data "$work/text" --hidden 16 --bptt 8 --batch 12 \
    --decay none --lr 1 --dropout 0.3 --summary "$work/summary" "$@"
}
for ranks in 1 2 3; do
  text $ranks --steps 50
  whole=$(hash_of)
  text $ranks --steps 17 --save "$work/text_checkpoint"
  text $ranks --steps 50 --resume "$work/text_checkpoint"
  check "a language model of $ranks goes on in the middle of a text to the same bits" same "$(hash_of)" "$whole"
done
text 2 --steps 50 --transport tcp
whole=$(hash_of)
text 2 --steps 17 --save "$work/text_checkpoint"
text 2 --steps 50 --transport tcp --resume "$work/text_checkpoint"
check "a checkpoint of ranks that share memory is resumed by ranks that do not, to the same bits" \
  same "$(hash_of)" "$whole"
text 2 --steps 50 --resume "$work/text_checkpoint" --quiet
check "and by others that do" same "$(hash_of)" "$whole"
text 3 --steps 17 --resume "$work/text_checkpoint" --save "$work/again"
check "three ranks save what two saved" fine cmp -s "$work/again" "$work/text_checkpoint"
nothing_left() { # STEPS
  [ "$status" = 0 ] && [ "$(grep -c . "$work/out")" = 1 ] && ! grep -qE "(train|valid)_" "$work/out" "$work/summary" &&
    grep -q "nothing left to train: $work/text_checkpoint ends at step 17, this run at $1 |.* params " "$work/out"
}
text 2 --steps 17 --resume "$work/text_checkpoint" --quiet
check "resuming with nothing left to train says so in one line" nothing_left 17
text 2 --steps 10 --resume "$work/text_checkpoint" --quiet
check "and so where the run would end before its checkpoint" nothing_left 10
shows_time() { grep -qE '^epoch 1/1 .* \| ([1-9][0-9]*\.[0-9]*|0\.0?[1-9][0-9]?) s$' "$work/out"; }
text 2 --hidden 512 --steps 10 --save "$work/wide"
check "an epoch that a run ends in shows its time" shows_time
text 2 --hidden 512 --steps 20 --resume "$work/wide"
check "and one that a run is resumed in" shows_time

# --- the file as other programs see it ---
cat >"$work/read.py" <<'PYTHON'
"""read.py CHECKPOINT SHA256: by the format's description alone."""
import hashlib, json, math, struct, sys
data = open(sys.argv[1], "rb").read()
(length,) = struct.unpack("<Q", data[:8])
header, body = json.loads(data[8:8 + length]), data[8 + length:]
metadata = header.pop("__metadata__")
assert length % 8 == 0 and metadata["sha256"] == hashlib.sha256(body).hexdigest()
blank = data[8:8 + length]
for digits in metadata["sha256"], metadata["header_sha256"]:
    blank = blank.replace(digits.encode(), b"0" * 64)
assert metadata["header_sha256"] == hashlib.sha256(blank).hexdigest()
end = 0
for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
    assert entry["data_offsets"][0] == end, name
    end = entry["data_offsets"][1]
    size = {"F32": 4, "F64": 8, "I64": 8, "U8": 1}[entry["dtype"]]
    assert end - entry["data_offsets"][0] == size * math.prod(entry["shape"]), name
assert end == len(body)
weights = hashlib.sha256()
for name in sorted(header):
    if not name.startswith(("optimizer.", "trainer.")):
        weights.update(body[slice(*header[name]["data_offsets"])])
assert weights.hexdigest() == sys.argv[2], "the weights hash to " + weights.hexdigest()
counters = struct.unpack("<11q", body[slice(*header["trainer.counters"]["data_offsets"])])
assert counters[1] == 40, counters
PYTHON
train 2 --save "$work/checkpoint"
check "another program finds the weights that params_sha256 is of" \
  fine python3 "$work/read.py" "$work/checkpoint" "$(hash_of)"
train 1 --init "$work/checkpoint" --steps 1
check "weights to begin with are another beginning" [ "$status" = 0 ]

# --- errors ---
train 2 --save "$work/checkpoint"
train 2 --resume "$work/nowhere"
check "a missing checkpoint is named" refused 2 "$work/nowhere: No such file"
head -c 5000 "$work/checkpoint" >"$work/cut"
train 2 --resume "$work/cut"
check "a truncated checkpoint is named with its entry" refused 2 "$work/cut: truncated: entry '"
cp "$work/checkpoint" "$work/flipped"
printf '\377' | dd of="$work/flipped" bs=1 seek=6000 conv=notrunc 2>/dev/null
train 2 --resume "$work/flipped"
check "a damaged checkpoint is named" refused 2 "$work/flipped: damaged"
mkdir "$work/all_damaged"
cp "$work/flipped" "$work/all_damaged/step-000000000040.safetensors"
mkfifo "$work/all_damaged/step-000000000030.safetensors"
train 2 --resume "$work/all_damaged"
check "a directory of nothing but damaged checkpoints is refused" eval '[ "$status" = 2 ] && err_has "step-000000000030.*: not a regular file; it is passed over" && err_has "^lockstep: .*$work/all_damaged: none of the 2 checkpoints"'
train 2 --init "$work/flipped"
check "damaged weights are named" refused 2 "$work/flipped: damaged"
echo "not a checkpoint" >"$work/text_file"
train 2 --init "$work/text_file"
check "a file that is no checkpoint is named" refused 2 "$work/text_file: not a safetensors file"
train 2 --hidden 33 --resume "$work/checkpoint"
check "a checkpoint of another model is refused by the flag" refused 2 "saved with '--hidden 32', this run has '--hidden 33'"
train 2 --hidden 33 --init "$work/checkpoint"
check "weights of another model are named with their entry" refused 2 "entry '.*' has the shape"
train 2 --shard batches --resume "$work/checkpoint"
check "a checkpoint of another order of samples is refused by the flag" \
  refused 2 "saved with '--shard blocks', this run has '--shard batches'"
run "$lockstep" run -n 2 --max-restarts 2 "$build/examples/mlp" --samples 500 --steps 3 --resume "$work/nowhere"
check "a run that cannot begin is not restarted" eval 'refused 2 "nowhere: No such file" && ! err_has "generation 1"'
train 2 --seed 7 --resume "$work/checkpoint"
check "a checkpoint of another seed is refused by both numbers" refused 2 'seed 1, this run has 7'
train 2 --batch 32 --resume "$work/checkpoint"
check "a checkpoint of another batch is refused by both numbers" refused 2 'global batch 64, this run has 32'
cat >"$work/counters.py" <<'PYTHON'
"""counters.py CHECKPOINT STEP EPOCH EPOCH_STEP: other counters, and the hash that belongs to them."""
import hashlib, json, struct, sys
data = open(sys.argv[1], "rb").read()
(length,) = struct.unpack("<Q", data[:8])
header, body = data[8:8 + length], bytearray(data[8 + length:])
at = json.loads(header)["trainer.counters"]["data_offsets"][0]
body[at + 8:at + 32] = struct.pack("<3q", *map(int, sys.argv[2:]))
old = json.loads(header)["__metadata__"]["sha256"].encode()
open(sys.argv[1], "wb").write(data[:8] + header.replace(old, hashlib.sha256(body).hexdigest().encode()) + body)
PYTHON
for counters in "40 $((1 << 54)) 0" "40 $(((1 << 63) - 1)) 22" "5000 0 5000" "0 0 3" "$((1 << 40)) 0 3"; do
  cp "$work/checkpoint" "$work/counted"
  python3 "$work/counters.py" "$work/counted" $counters
  train 2 --resume "$work/counted"
  check "counters that do not add up ($counters) are refused" refused 2 "$work/counted: entry 'trainer.counters': "
done
train 2 --device reference --precision bf16 --resume "$work/checkpoint"
check "a checkpoint of another precision is refused by both" refused 2 'saved with precision f32, this run has bf16'
train 2 --device reference --accumulate 2 --resume "$work/checkpoint"
check "other micro-batches and another device are not refused" [ "$status" = 0 ]
train 2 --samples 1541 --resume "$work/checkpoint"
check "a checkpoint of a run on other data is refused" refused 2 "$work/checkpoint: .* other data: .* hash"
text 2 --decay linear --steps 17 --save "$work/text_checkpoint"
text 2 --decay linear --steps 50 --resume "$work/text_checkpoint"
check "a longer run with a schedule over all steps is refused by what was given" \
  refused 2 'schedule of 17 steps, this run.s has 50: .* --epochs or --steps'
text 2 --steps 17 --save "$work/text_checkpoint"
text 2 --dropout 0.2 --steps 20 --resume "$work/text_checkpoint"
check "another dropout is not" [ "$status" = 0 ]
gpt=("$build/examples/transformer" --data "$work/text" --level word --context 8 --hidden 16 --layers 1 --batch 12 --decay none)
run "$lockstep" run -n 2 "${gpt[@]}" --steps 5 --save "$work/gpt"
run "$lockstep" run -n 2 "${gpt[@]}" --heads 2 --steps 5 --resume "$work/gpt"
check "another number of heads is, which no shape shows" refused 2 "saved with '--heads 4', this run has '--heads 2'"
train 2 --resume "$work/checkpoint" --init "$work/checkpoint"
check "--init and --resume exclude each other" refused 2 -- '--init and --resume'
train 2 --save "$work/nowhere/checkpoint"
check "a checkpoint that cannot be written is named" refused 1 "$work/nowhere/checkpoint"
train 2 --save "$work"
check "a directory is not overwritten" refused 1 "$work: the checkpoint cannot be written"
train 2 --precision bf16
if [ "$status" = 0 ]; then # the CPU supports it
  check "a run in bf16 says so" grep -q '"precision":"bf16"' "$work/summary"
else
  check "bf16 is refused by what the CPU lacks" refused 2 'bf16 needs a CPU with AVX512-BF16 or AMX, this one has '
fi
train 2 --device reference --precision bf16 --steps 20
check "the reference device emulates bf16" fine grep -q '"device":"reference","precision":"bf16"' "$work/summary"
rounded=$(hash_of)
train 2 --device reference --precision bf16 --steps 20
check "a second run in bf16 gives the same bits" same "$(hash_of)" "$rounded"
train 2 --device reference --steps 20
check "a run in f32 gives others" fine differ "$(hash_of)" "$rounded"
train 2 --device reference --precision bf16 --steps 20 --init "$work/checkpoint"
check "bf16 goes on from an f32 run's weights" fine grep -q '"precision":"bf16"' "$work/summary"

echo "half of what a killed run wrote" >"$work/checkpoint.tmp"
train 2 --save "$work/checkpoint"
check "what a death during a save leaves is gone after the next save" [ ! -e "$work/checkpoint.tmp" ]

# --- the other flags ---
train 2 --run "$work/run"
check "a run's metrics are a line of JSON per report" fine python3 - "$work/run/metrics.jsonl" <<'PYTHON'
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
assert [line["step"] for line in lines] == [0, 40], lines
for key in "step epoch train_loss train_accuracy test_loss test_accuracy lr samples_per_s elapsed_s".split():
    assert key in lines[1], key
PYTHON
train 2 --print-program --quiet
check "--print-program shows kernels with layout, bytes and time" \
  fine grep -qE '^[a-z]+:linear.* \| row-major \| [0-9]+ bytes \| [0-9.]+ us$' "$work/out"
train 2
whole=$(hash_of >/dev/null && cat "$work/summary")
train 2 --accumulate 4
check "micro-batches train like whole ones" fine python3 - "$whole" "$(cat "$work/summary")" <<'PYTHON'
import json, sys
whole, pieces = (json.loads(text) for text in sys.argv[1:])
assert abs(whole["test_loss"] - pieces["test_loss"]) < 1e-4 * whole["test_loss"]
PYTHON
"$build/examples/mlp" --samples 500 --steps 3 >/dev/full 2>"$work/err"
status=$?
check "a full standard output is noticed" refused 1 'standard output cannot be written: No space left'
"$lockstep" run -n 2 "$build/examples/mlp" --samples 500 --steps 3 >/dev/full 2>"$work/err"
status=$?
check "under the launcher, too, with the reason" refused 1 'standard output cannot be written: No space left'
run "$build/examples/mlp" --samples 500 --steps 3 --summary "$work/nowhere/summary"
check "a summary without a place is refused before the training" \
  eval 'refused 1 "nowhere/summary: the summary cannot be written: No such file" && [ ! -s "$work/out" ]'

check "no process is left" eval '! pgrep -f "$work" >/dev/null'
check "no temporary file is left" eval '! ls "$work" | grep -q tmp'
[ "$n_failed" = 0 ]

#!/usr/bin/env bash
# labels: no-asan
# Checkpoints while training, from the command line: runs that are killed at any moment, or asked to stop, resume with
# the bits of an undisturbed run. Usage: test_checkpointing.sh BUILD_DIR. Prints a line per behaviour; fails if one
# does. Tests that need a data set or root are skipped with a message.
set -u
# shellcheck source=tests/system/common.sh
. "$(dirname "$0")/common.sh"
clean_up() {
  [ -z "${launcher:-}" ] || kill -9 "$launcher" 2>/dev/null
  rm -rf "$work"
}
trap clean_up EXIT

mkdir "$work/text"
for split in train valid test; do
  awk -v seed=$split 'BEGIN { x = length(seed); for (i = 0; i < 400; i++) { line = ""; for (j = 0; j < 3 + i % 5; j++)
    { x = (x * 37 + i + j) % 41; line = line " w" x }; print line } }' >"$work/text/ptb.$split.txt"
done
text=("$build/examples/language_model" --data "$work/text" --hidden 64 --bptt 8 --batch 12 --decay none --lr 1 --dropout 0.3)
mlp=("$build/examples/mlp" --layers 3 --features 48 --hidden 32 --classes 8 --samples 1540)

# --- helper functions ---

start() { # RANKS COMMAND...: in the background
  local ranks=$1
  shift
  forget_output
  "$lockstep" run -n "$ranks" "$@" >"$work/out" 2>"$work/err" </dev/null &
  launcher=$!
}
finish() { # sets $status
  { wait "$launcher"; } 2>/dev/null # hides bash's messages about killed processes
  status=$?
  launcher=
  for _ in $(seq 6000); do # ranks of a killed launcher may still be about to end, after their writes reached the disk
    pgrep -f "$work" >/dev/null || return
    sleep 0.01
  done
}
ranks_of() { pgrep -P "$1" -f "^$build/examples/"; } # not its guard, which has the launcher's command line
newest() { # DIRECTORY: the largest step with a checkpoint; 0: none
  local file=0
  for file in "$1"/checkpoints/step-*.safetensors; do :; done
  file=${file##*step-}
  file=${file%.safetensors}
  [ "$file" = '*' ] && file=0
  echo $((10#$file))
}
until_step() { # DIRECTORY STEP: waits until it has a checkpoint or the run has ended
  for _ in $(seq 3000); do
    [ "$(newest "$1")" -ge "$2" ] && return
    kill -0 "$launcher" 2>/dev/null || return
    sleep 0.01
  done
}
finished() { # RANKS COMMAND...: prints params_sha256, or nothing if the run failed
  local ranks=$1
  shift
  rm -f "$work/summary"
  run "$lockstep" run -n "$ranks" "$@" --summary "$work/summary"
  [ "$status" = 0 ] && value "$work/summary" params_sha256
}
cat >"$work/whole.py" <<'PYTHON'
"""whole.py FILE...: are all of them whole, by the format's description?"""
import hashlib, json, struct, sys
for path in sys.argv[1:]:
    data = open(path, "rb").read()
    (length,) = struct.unpack("<Q", data[:8])
    wanted = json.loads(data[8:8 + length])["__metadata__"]["sha256"]
    assert wanted == hashlib.sha256(data[8 + length:]).hexdigest(), path
assert len(sys.argv) > 1
PYTHON
all_whole() { python3 "$work/whole.py" "$1"/checkpoints/step-*.safetensors 2>"$work/err"; }
steps_in() { (cd "$1/checkpoints" && echo step-*.safetensors) | sed -E 's/step-0*([0-9]+)\.safetensors/\1/g'; }

# --- fewer ranks after every killed rank, the same bits ---
die_and_go_on() { # NAME STEPS EVERY PROGRAM ARGS...: on 4 ranks, then on 2, then on one
  local name=$1 steps=$2 every=$3 dir=$work/elastic whole gone_on
  shift 3
  rm -rf "$dir"
  whole=$(finished 2 "$@" --grains 4 --steps "$steps" --quiet)
  start 4 "$@" --grains 4 --steps "$steps" --run "$dir" --checkpoint-every "$every"
  until_step "$dir" "$every"
  kill -9 "$(ranks_of $launcher | tail -n 1)" 2>/dev/null
  finish
  local first
  first=$(newest "$dir")
  LOCKSTEP_GRAINS=4 start 2 "$@" --steps "$steps" --run "$dir" --checkpoint-every "$every" --resume "$dir/checkpoints"
  until_step "$dir" $((first + every))
  kill -9 "$(ranks_of $launcher | head -n 1)" 2>/dev/null
  finish
  gone_on=$(LOCKSTEP_GRAINS=4 finished 1 "$@" --steps "$steps" --run "$dir" --checkpoint-every "$every" --resume "$dir/checkpoints")
  check "$name: 4 ranks, a death (at $first or later), 2, a death, 1: the bits of an undisturbed run" \
    same "$gone_on" "$whole"
  check "$name: the last one went on where the one before had been" grep -qE 'resumed from .*/step-0*[1-9][0-9]*' "$work/out"
}
die_and_go_on "a classifier" 400 40 "$build/examples/mlp" --samples 1540
die_and_go_on "a language model with its states" 300 20 "${text[@]}"
data=${LOCKSTEP_DATA:-}
if [ -n "$data" ] && [ -d "$data/mnist" ]; then
  die_and_go_on mnist 900 60 "$build/examples/mnist"
else
  echo "skipped: mnist goes on after deaths (\$LOCKSTEP_DATA/mnist is missing)"
fi
if [ -n "$data" ] && [ -d "$data/cifar-10-batches-bin" ]; then
  die_and_go_on resnet9 24 3 "$build/examples/resnet9" --batch 32
else
  echo "skipped: resnet9 goes on after deaths (\$LOCKSTEP_DATA/cifar-10-batches-bin is missing)"
fi

# --- kills at any moment of a write ---
dir=$work/killed
n_kills=${LOCKSTEP_KILLS:-20}
n_lost=0
for ((i = 0; i < n_kills; i++)); do
  before=$(newest "$dir")
  start 2 "${text[@]}" --steps 100000 --run "$dir" --checkpoint-every 1 --keep 2 --resume "$dir/checkpoints"
  until_step "$dir" $((before + 1))
  sleep "0.0$((RANDOM % 90 + 10))"
  seen=$(newest "$dir")
  case $((i % 3)) in
    0) kill -9 "$(ranks_of $launcher | head -n 1)" ;; # this rank writes the checkpoints
    1) kill -9 "$(ranks_of $launcher | tail -n 1)" ;;
    *) kill -9 "$launcher" ;;
  esac
  finish
  { [ "$seen" -gt "$before" ] && [ "$(newest "$dir")" -ge "$seen" ] && all_whole "$dir"; } && continue
  n_lost=$((n_lost + 1))
  echo "lost, kill $i: newest $before before it began, $seen before the kill, $(newest "$dir") after; status $status"
  tail -n 5 "$work/out" "$work/err"
done
check "$n_kills kills during writes lose none that was there ($n_lost did)" [ "$n_lost" = 0 ]
last=$(newest "$dir")
gone_on=$(finished 2 "${text[@]}" --steps $((last + 10)) --run "$dir" --checkpoint-every 1000 --resume "$dir/checkpoints")
check "the run of $last steps and $n_kills deaths has the bits of one that was left alone" \
  same "$gone_on" "$(finished 2 "${text[@]}" --steps $((last + 10)))"
check "what killed writers left is gone after the next start" eval '! ls "$dir/checkpoints" | grep -q tmp'

# --- damaged checkpoints are passed over ---
dir=$work/damaged
finished 2 "${text[@]}" --steps 45 --run "$work/end" --checkpoint-every 20 --keep 9 >"$work/sum"
check "a run that ends keeps what it has trained" [ "$(steps_in "$work/end")" = "20 40 45" ]
finished 2 "${text[@]}" --steps 40 --run "$dir" --checkpoint-every 10 >"$work/sum"
whole=$(finished 2 "${text[@]}" --steps 50)
check "the last three are kept" [ "$(steps_in "$dir")" = "20 30 40" ]
printf '\377' | dd of="$dir/checkpoints/step-000000000040.safetensors" bs=1 seek=60000 conv=notrunc 2>/dev/null
truncate -s 5000 "$dir/checkpoints/step-000000000030.safetensors"
gone_on=$(finished 1 "${text[@]}" --steps 50 --resume "$dir/checkpoints")
passed_over() { grep -qE "warning: .*/step-0*$1.safetensors: $2.*; it is passed over" "$work/err"; }
check "a flipped bit and a torn file are passed over, by name" eval 'passed_over 40 damaged && passed_over 30 truncated'
check "and the one before them is gone on from" grep -q "resumed from $dir/checkpoints/step-000000000020.* at step 20" "$work/out"
gone_on=$(finished 2 "${text[@]}" --steps 50 --resume "$dir/checkpoints")
check "to the same bits" same "$gone_on" "$whole"
mkdir "$work/empty"
gone_on=$(finished 2 "${text[@]}" --steps 50 --resume "$work/empty")
check "an empty directory begins anew, and says so" \
  eval 'same "$gone_on" "$whole" && grep -q "no checkpoint to resume from yet: the run begins anew" "$work/err"'
run "$lockstep" run -n 2 "${text[@]}" --seed 7 --steps 50 --resume "$dir/checkpoints"
check "a directory of another run's checkpoints is refused by what differs" \
  eval '[ "$status" = 2 ] && err_has "step-000000000020.* seed 1, this run has 7"'
run "$lockstep" run -n 2 "${text[@]}" --steps 50 --run "$dir" --checkpoint-every 10
check "a run that begins anew does not write among another's checkpoints" \
  refused 2 "$dir/checkpoints: it holds a run.s checkpoints up to step 40, and this one begins at step 0"
run "$lockstep" run -n 2 --max-restarts 2 "${text[@]}" --steps 50 --run "$dir" --checkpoint-every 10 --keep 1
check "nor does a restart of it go on with them" \
  eval '[ "$status" = 2 ] && ! err_has "generation 1" && [ "$(steps_in "$dir")" = "20 30 40" ]'
if [ "$(id -u)" = 0 ] && setpriv --reuid 65534 --clear-groups test -x "$lockstep" 2>/dev/null; then
  chmod -R a+rX "$work"
  chmod 000 "$dir/checkpoints/step-000000000030.safetensors"
  run setpriv --reuid 65534 --clear-groups "$lockstep" run -n 2 "${text[@]}" --steps 50 --resume "$dir/checkpoints"
  check "one that cannot be read, and may be whole, ends the run" \
    eval '[ "$status" = 2 ] && err_has "^lockstep: .*step-000000000030.safetensors: Permission denied"'
else
  echo "skipped: a checkpoint that cannot be read ends the run (needs root, and a build that another user may run)"
fi
run "$lockstep" run -n 2 "${text[@]}" --steps 50 --checkpoint-every 10
check "--checkpoint-every needs a directory" refused 2 '--checkpoint-every needs --run DIR'
run "$lockstep" run -n 2 "${text[@]}" --steps 50 --keep 2
check "--keep needs --checkpoint-every" refused 2 '--keep needs --checkpoint-every'
LOCKSTEP_GRAINS=many run "$lockstep" run -n 2 "${text[@]}" --steps 50
check "LOCKSTEP_GRAINS is checked" refused 2 "LOCKSTEP_GRAINS cannot be 'many'"

# --- a full disk ---
if [ "$(id -u)" = 0 ] && unshare -m true 2>/dev/null; then
  mkdir "$work/small"
  # shellcheck disable=SC2016 # the inner shell's
  run unshare -m bash -c 'mount -t tmpfs -o size=600k none "$1" && shift && "$@"' - "$work/small" \
    "$lockstep" run -n 2 "${text[@]}" --steps 100 --run "$work/small/run" --checkpoint-every 10
  check "a full disk is named with its file" \
    eval '[ "$status" = 1 ] && err_has "run/checkpoints/step-0*[0-9]+.safetensors: No space left on device"'
else
  echo "skipped: a full disk is named (needs root, for a small file system of its own)"
fi

# --- one run at a time ---
dir=$work/one
start 2 "${text[@]}" --steps 100000 --run "$dir" --checkpoint-every 50
until_step "$dir" 50
mv "$work/err" "$work/err.first" # of the first run, which has it open
run "$lockstep" run -n 2 "${text[@]}" --steps 100 --run "$dir" --checkpoint-every 50
check "a second run of the same directory is refused" refused 2 "checkpoints/lock: another run writes .*: pid [0-9]+ on "
run "$lockstep" run -n 2 "${text[@]}" --steps 100 --run "$dir"
check "and so is one that would write its metrics alone" eval '[ "$status" = 1 ] && err_has "metrics.jsonl: .* another run"'
kill -9 "$launcher"
finish
run "$lockstep" run -n 2 "${text[@]}" --steps $(($(newest "$dir") + 5)) --run "$dir" --checkpoint-every 50 --resume "$dir/checkpoints"
check "kill -9 lets go of it (status $status)" [ "$status" = 0 ]

# --- signals ---
stopped() { # SIGNAL STATUS DIRECTORY: one line reports it, with a checkpoint of the step it names
  [ "$status" = "$2" ] && [ "$(grep -c 'stopped by' "$work/out")" = 1 ] &&
    grep -qE "stopped by $1 at step $(newest "$3") of 100000; checkpoint: $3/checkpoints/step-0*$(newest "$3").safetensors" "$work/out"
}
dir=$work/signals
start 2 "${text[@]}" --steps 100000 --run "$dir" --checkpoint-every 30
until_step "$dir" 30
kill -TERM "$launcher"
finish
check "SIGTERM to the launcher ends all ranks with a checkpoint" stopped SIGTERM 143 "$dir"

# Corruption of the heap by a signal handler's frame (examples/trainer_signals.c) showed in one of 25 runs, so this
# repeats.
n_ended=0
for _ in 1 2 3 4 5 6 7 8; do
  start 2 "${text[@]}" --steps 100000 --run "$work/often" --checkpoint-every 30
  until_step "$work/often" 30
  kill -TERM "$launcher"
  finish
  [ "$status" = 143 ] && n_ended=$((n_ended + 1))
  rm -rf "$work/often"
done
check "so it does each time ($n_ended of 8)" [ $n_ended = 8 ]

start 3 "${text[@]}" --steps 100000 --run "$dir" --checkpoint-every 30 --resume "$dir/checkpoints"
until_step "$dir" $(($(newest "$dir") + 30))
kill -INT "$(ranks_of $launcher | tail -n 1)"
finish
check "SIGINT to one of three ranks ends all of them with a checkpoint" stopped SIGINT 130 "$dir"
start 2 --threads "${text[@]}" --steps 100000 --run "$dir" --checkpoint-every 30 --resume "$dir/checkpoints"
until_step "$dir" $(($(newest "$dir") + 30))
kill -HUP "$launcher"
finish
check "and so it is with SIGHUP, and ranks that are threads" stopped SIGHUP 129 "$dir"
for count in TORCHELASTIC_RESTART_COUNT SLURM_RESTART_COUNT; do
  run env "$count=1" "$lockstep" run -n 2 "${text[@]}" --steps $(($(newest "$dir") + 3)) --run "$dir" --checkpoint-every 30
  check "a run that says $count goes on from its last checkpoint" eval '[ "$status" = 0 ] && out_has "resumed from $dir/checkpoints/step-"'
done
last=$(newest "$dir")
gone_on=$(finished 2 "${text[@]}" --steps $((last + 10)) --resume "$dir/checkpoints")
same_on_three() { # with 3 ranks in between, sums differ: only the step at which it resumed can be compared
  [ -n "$gone_on" ] && grep -q "at step $last\$" "$work/out"
}
check "what was stopped goes on" same_on_three
forget_output
"${text[@]}" --steps 100000 --save "$work/alone" >"$work/out" 2>"$work/err" &
alone=$!
for _ in $(seq 500); do grep -q epoch "$work/out" && break || sleep 0.01; done
kill -TERM $alone
wait $alone
status=$?
check "a single rank is stopped likewise, and --save is where its checkpoint goes" \
  eval '[ $status = 143 ] && grep -q "checkpoint: $work/alone$" "$work/out" && [ -s "$work/alone" ]'

catches_sigterm() { # PID: is mlp, not the shell before its exec
  grep -qx mlp "/proc/$1/comm" && (($((16#$(sed -nE 's/^SigCgt:\s*//p' "/proc/$1/status"))) >> 14 & 1))
}
"$build/examples/mlp" --samples 8000 --features 1024 --hidden 2048 --batch 8000 --steps 100 >"$work/out" 2>"$work/err" & # long steps
alone=$!
for _ in $(seq 3000); do catches_sigterm $alone && break || sleep 0.01; done
kill -TERM $alone
sleep 0.1
kill -TERM $alone # the same request again, as timeout(1) sends it
sleep 0.2
check "one request that comes twice is one" kill -0 $alone
sleep 0.5
kill -TERM $alone
{ wait $alone; } 2>/dev/null
status=$?
check "a second signal ends a rank at once" eval '[ $status = 143 ] && ! grep -q "stopped by" "$work/out"'
"$build/examples/mlp" --steps 1000000 >/dev/full 2>"$work/err" & # as a terminal that was closed
alone=$!
for _ in $(seq 3000); do catches_sigterm $alone && break || sleep 0.01; done
kill -TERM $alone
wait $alone
status=$?
check "a rank that cannot say that it was stopped has the signal's status, too" eval '[ $status = 143 ] && err_has "standard output cannot be written"'

# --- metrics of resumed runs ---
dir=$work/metrics
"$lockstep" run -n 2 "${mlp[@]}" --steps 450 --run "$dir" --checkpoint-every 150 >"$work/out" 2>"$work/err"
rm "$dir/checkpoints/step-000000000450.safetensors"
printf '{"step":440,"train_l' >>"$dir/metrics.jsonl" # as a killed process leaves it
run "$lockstep" run -n 1 "${mlp[@]}" --steps 450 --run "$dir" --checkpoint-every 150 --resume "$dir/checkpoints"
check "the metrics of a resumed run go on behind the step that it begins at" [ "$status" = 0 ]
check "each step once, no line torn" python3 - "$dir/metrics.jsonl" <<'PYTHON'
import json, sys
steps = [json.loads(line)["step"] for line in open(sys.argv[1])]
assert steps == [0, 100, 200, 300, 400, 450], steps
PYTHON
cp "$dir/metrics.jsonl" "$work/metrics.before"
run "$lockstep" run -n 1 "${mlp[@]}" --steps 450 --run "$dir" --checkpoint-every 150 --resume "$dir/checkpoints"
check "those of a run that was over stay as they are" eval '[ "$status" = 0 ] && cmp -s "$dir/metrics.jsonl" "$work/metrics.before"'
cat >"$work/parser.c" <<'C'
#include <cjson/cJSON.h>
#include <errno.h>
#include <stdlib.h>
static void *no_memory(size_t nbytes) {
    (void)nbytes;
    errno = ENOMEM;
    return NULL;
}
cJSON *cJSON_Parse(const char *text) {
    cJSON_Hooks none = {no_memory, free};
    cJSON_InitHooks(&none);
    cJSON *object = cJSON_ParseWithOpts(text, NULL, 0);
    cJSON_InitHooks(NULL);
    return object;
}
C
# shellcheck disable=SC2046
cc -shared -fPIC -o "$work/parser.so" "$work/parser.c" $(pkg-config --cflags --libs libcjson)
run env LD_PRELOAD="$work/parser.so" "${mlp[@]}" --steps 450 --run "$dir" --resume "$dir/checkpoints"
check "those that cannot be read for want of memory are not cut" \
  eval 'refused 1 "metrics.jsonl: the metrics cannot be written: Cannot allocate memory" && cmp -s "$dir/metrics.jsonl" "$work/metrics.before"'

check "no process is left" eval '! pgrep -f "$work" >/dev/null'
[ "$n_failed" = 0 ]

#!/usr/bin/env bash
# LOCKSTEP_TIMELINE: every rank leaves a file of what its threads did, as processes and as threads, also if it is killed.
# Usage: test_timeline.sh BUILD_DIR. Prints a line per behaviour; fails if one does.
set -u
# shellcheck source=tests/system/common.sh
. tests/system/common.sh
examples=$build/examples

# timeline_has FILE CATEGORY...: is JSON, has these categories, and sections of one thread nest
timeline_has() {
  python3 - "$@" <<'P'
import json, sys
events = [e for e in json.load(open(sys.argv[1])) if e["ph"] == "X"]
missing = set(sys.argv[2:]) - {e["cat"] for e in events}
threads = {}
for e in events:
    threads.setdefault(e["tid"], []).append((e["ts"], -e["dur"]))
for sections in threads.values():
    ends = []
    for begin, length in sorted(sections):
        while ends and ends[-1] <= begin + 0.001:
            ends.pop()
        if ends and begin - length > ends[-1] + 0.002:
            sys.exit("sections overlap at %f" % begin)
        ends.append(begin - length)
sys.exit("missing: %s" % missing if missing else 0)
P
}

files_are() { # NAME...: are all files of the last timeline
  [ "$(cd "$LOCKSTEP_TIMELINE" && echo *)" = "$*" ]
}
mlp=("$examples/mlp" --samples 2000 --layers 3)

# --- processes that share memory ---
export LOCKSTEP_TIMELINE=$work/processes
run timeout 120 "$lockstep" run -n 2 "${mlp[@]}" --steps 20
check "two processes train" status_is 0
check "each leaves a file" files_are rank0.json rank1.json
for rank in 0 1; do
  check "rank $rank shows steps, passes, kernels, messages, updates and batches" timeline_has \
    "$LOCKSTEP_TIMELINE/rank$rank.json" step pass kernel communication update data
done
steps=$(grep -c '"name":"step"' "$LOCKSTEP_TIMELINE/rank1.json")
check "all 20 steps are there" same "$steps" 20

# --- its drawing ---
draw() { run python3 bench/draw_timeline.py "$@"; }
title_is() { grep -qE "font-size=\"15\">$1: [0-9.]+ ms<" "$work/drawing.svg"; }
draw "$LOCKSTEP_TIMELINE" --output "$work/drawing.svg"
check "one step is drawn" eval 'status_is 0 && title_is "step [0-9]+"'
draw "$LOCKSTEP_TIMELINE" --step 18 --steps 50 --output "$work/drawing.svg"
last=$(grep -o '"step":[0-9]*' "$LOCKSTEP_TIMELINE/rank0.json" | cut -d : -f 2 | sort -n | tail -n 1)
check "the title names the steps that are there" title_is "steps 18 to $last"
draw "$LOCKSTEP_TIMELINE" --steps 0
check "no steps are refused" eval 'status_is 2 && err_has "argument --steps: .0. is not a number from 1"'
draw "$LOCKSTEP_TIMELINE" --output "$work/missing/drawing.svg"
check "a file that cannot be written is named" refused 1 "^$work/missing/drawing.svg: No such file"
mkdir "$work/damaged" && head -c 100 "$LOCKSTEP_TIMELINE/rank0.json" >"$work/damaged/rank0.json"
draw "$work/damaged"
check "so is a damaged one" refused 1 "^$work/damaged/rank0.json: not a timeline"

# --- threads, over TCP with buckets, with checkpoints ---
export LOCKSTEP_TIMELINE=$work/threads
run timeout 120 env LOCKSTEP_TRANSPORT=tcp "$lockstep" run -n 2 "${mlp[@]}" --steps 20 --strategy bucketed \
  --run "$work/run" --checkpoint-every 10
check "two ranks over TCP train" status_is 0
check "rank 0 shows buckets, waits and checkpoints, too" timeline_has "$LOCKSTEP_TIMELINE/rank0.json" step pass kernel \
  communication bucket wait update data checkpoint
check "on more than one thread" eval '[ "$(grep -c thread_name "$LOCKSTEP_TIMELINE/rank0.json")" -ge 2 ]'
export LOCKSTEP_TIMELINE=$work/rank_threads
run timeout 120 "$lockstep" run -n 3 --threads "${mlp[@]}" --steps 5
check "three threads train" status_is 0
check "each thread leaves a file" files_are rank0.json rank1.json rank2.json
check "thread 2 shows its kernels" timeline_has "$LOCKSTEP_TIMELINE/rank2.json" step pass kernel communication

# --- a rank that is killed ---
export LOCKSTEP_TIMELINE=$work/killed
forget_output
"$lockstep" run -n 2 "${mlp[@]}" --steps 1000000 --quiet >"$work/out" 2>"$work/err" </dev/null &
launcher=$!
eventually grep -qs '"name":"step"' "$LOCKSTEP_TIMELINE/rank1.json"
kill -9 "$(pgrep -P $launcher -f "^$build/examples/" | tail -n 1)"
wait $launcher
check "after a kill both files are whole" eval 'timeline_has "$LOCKSTEP_TIMELINE/rank0.json" step kernel &&
  timeline_has "$LOCKSTEP_TIMELINE/rank1.json" step kernel'

# --- a directory that cannot be written ---
export LOCKSTEP_TIMELINE=/dev/null/there
run timeout 120 "$lockstep" run -n 2 "${mlp[@]}" --steps 5
check "a bad directory is an error that names it" eval \
  '! status_is 0 && err_has "LOCKSTEP_TIMELINE: /dev/null/there: Not a directory"'
export LOCKSTEP_TIMELINE=$work/missing/there
run timeout 120 "$examples/hello"
check "so is one whose parent is missing, in one line" eval \
  'status_is 1 && err_has "LOCKSTEP_TIMELINE: $LOCKSTEP_TIMELINE: No such file or directory" && same "$(wc -l <"$work/err")" 1'

exit $((n_failed > 0))

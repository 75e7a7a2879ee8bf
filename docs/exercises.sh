#!/usr/bin/env bash
# Runs the exercises of docs/exercises.md and prints their tables, as they stand there. What an exercise needs and this
# machine lacks (root for network namespaces, Slurm, a data set) is said in a line; the exercise is then skipped. A program
# that fails, a table without a line, and parameters that should be equal and are not make the exercise fail.
# Usage: docs/exercises.sh [--build DIR] [--quick] [--write] [EXERCISE...]
#   --quick    one repetition, small sizes: shows that everything runs, not how fast
#   --write    puts the tables into docs/exercises.md, between the marks <!-- MEASURED NAME --> and <!-- /MEASURED -->
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
all="hello message fake_world race by_hand broadcast gather matmul hooks pipeline replicas combinations slurm_tasks slurm_training"
build=build
repetitions=5
is_quick=0
is_written=0
chosen=()
while [ $# -gt 0 ]; do
  case $1 in
    --build) build=${2:?--build needs a directory}; shift ;;
    --quick) is_quick=1 repetitions=1 ;;
    --write) is_written=1 ;;
    -*) sed -n '2,8s/^# //p' "$0" >&2; exit 2 ;;
    *) chosen+=("$1") ;;
  esac
  shift
done
[ ${#chosen[@]} -gt 0 ] || read -ra chosen <<<"$all"
lockstep=$build/lockstep
examples=$build/examples
[ -x "$lockstep" ] || { echo "docs/exercises.sh: there is no $lockstep: run make, or name a build by --build" >&2; exit 2; }
work=$(mktemp -d)
export LOCKSTEP_JOB_KEY=the-secret-of-the-exercises OMP_NUM_THREADS=1
has_hosts=0 has_slurm=0
# shellcheck source=tools/hosts.sh
. tools/hosts.sh

clean_up() {
  [ $has_hosts = 0 ] || hosts_remove
  [ $has_slurm = 0 ] || slurm_stop
  rm -rf "$work"
}
trap clean_up EXIT

# --- what the exercises share ---

quick() { [ $is_quick = 1 ]; }
skip() { echo "skipped: $*"; return 77; }
fail() { echo "docs/exercises.sh: $*" >>"$work/failed"; return 1; }
# COMMAND...: whose failure is the exercise's, wherever in a pipe or a loop it stands
run() { "$@" || fail "status $?: $*"; }

# Lines "KEY|figure|figure..." become one line per key, with the medians of its figures.
medians() {
  awk -F '|' '
    function median(list,    n, a, i, j, x) {
      n = split(list, a, " ")
      for (i = 2; i <= n; i++) { x = a[i] + 0; for (j = i - 1; j > 0 && a[j] + 0 > x; j--) a[j + 1] = a[j]; a[j + 1] = x }
      return n % 2 ? a[(n + 1) / 2] : (a[n / 2] + a[n / 2 + 1]) / 2
    }
    !($1 in columns) { order[++n_keys] = $1 }
    { columns[$1] = NF; for (i = 2; i <= NF; i++) seen[$1, i] = seen[$1, i] " " $i }
    END {
      for (k = 1; k <= n_keys; k++) {
        printf "%s", order[k]
        for (i = 2; i <= columns[order[k]]; i++) printf "|%.10g", median(seen[order[k], i])
        print ""
      }
    }'
}
# Three digits are what such times are good for: 1234.5 as 1230, 12.345 as 12.3, 0.12345 as 0.123.
rounded() {
  awk -v x="$1" 'BEGIN { if (x >= 1000) printf "%d", int(x / 10 + 0.5) * 10; else if (x >= 100) printf "%.0f", x;
    else if (x >= 10) printf "%.1f", x; else if (x >= 1) printf "%.2f", x; else printf "%.3f", x }'
}
value() { sed -nE "s/.*\"$2\":\"?([^\",}]+).*/\1/p" "$1"; } # FILE KEY: of a summary
fenced() { echo '```'; cat; echo '```'; }

hosts_ready() { # N: so many hosts, joined by links of 1 Gbit/s; says why where there are none
  [ $has_hosts = 0 ] || { hosts_remove; has_hosts=0; }
  has_hosts=1
  hosts_make 1gbit "$1" >"$work/why" 2>&1 || skip "$(cat "$work/why")"
}
# N PER_HOST COMMAND...: what a user types on each of N hosts; output of the first in $work/out
on_hosts() {
  local n=$1 per_host=$2 index pids=() status=0
  shift 2
  for ((index = 0; index < n; index++)); do
    timeout 300 ip netns exec "${hosts[index]}" "$lockstep" run --nnodes "$n" --node-rank "$index" \
      --master-addr 10.77.0.1 -n "$per_host" "$@" >"$work/out.$index" 2>"$work/err.$index" &
    pids+=($!)
  done
  for index in "${!pids[@]}"; do wait "${pids[index]}" || status=1; done
  cp "$work/out.0" "$work/out"
  [ $status = 0 ] || { cat "$work"/err.* >&2; fail "on $n hosts: $*"; }
}
slurm_ready() { # N nodes
  [ $has_slurm = 0 ] || { slurm_stop; has_slurm=0; }
  # shellcheck source=tests/system/slurm.sh
  . tests/system/slurm.sh
  has_slurm=1
  slurm_start "$1" >"$work/why" 2>&1 || skip "$(tail -n 1 "$work/why")"
}
data_ready() { read -r _ data <<<"$(tools/find-data)" && [ -n "$data" ] || skip "no data set in MNIST's format here"; }

# --- the exercises ---

hello() { run "$lockstep" run -n 4 "$examples/hello" | sed -E "s/ on [^ ]+, pid [0-9]+/ on $(hostname), pid .../" | sort | fenced; }

# NAME: what ping_pong printed in $work/out, a line per size
message_lines() { sed -nE "s/^ *([0-9]+) +([0-9.]+)$/$1 \1|\2/p" "$work/out"; }
message() {
  local repetition where has_two=0 sizes size
  hosts_ready 2 >"$work/note" && has_two=1
  for ((repetition = 0; repetition < repetitions; repetition++)); do
    run "$lockstep" run -n 2 --threads "$examples/ping_pong" >"$work/out" && message_lines threads
    run "$lockstep" run -n 2 "$examples/ping_pong" >"$work/out" && message_lines processes
    LOCKSTEP_TRANSPORT=tcp run "$lockstep" run -n 2 "$examples/ping_pong" >"$work/out" && message_lines loopback
    [ $has_two = 0 ] || { on_hosts 2 1 "$examples/ping_pong" && message_lines hosts; }
  done >"$work/message"
  medians <"$work/message" >"$work/medians"
  echo "| bytes | two threads, us | two processes, us | TCP, loopback, us | TCP, two hosts, us |"
  echo "| --- | --- | --- | --- | --- |"
  sizes=$(sed -nE 's/^processes ([0-9]+)\|.*/\1/p' "$work/medians")
  for size in $sizes; do
    printf '| %s |' "$size"
    for where in threads processes loopback hosts; do
      printf ' %s |' "$(rounded_or_none "$where $size")"
    done
    echo
  done
  [ $has_two = 1 ] || { echo; echo "Two hosts: $(cat "$work/note")"; }
}
rounded_or_none() { # KEY: of $work/medians
  local figure
  figure=$(grep -F "$1|" "$work/medians" | cut -d '|' -f 2)
  if [ -n "$figure" ]; then rounded "$figure"; else echo "-"; fi
}

fake_world() { run "$examples/fake_world" | fenced; }
race() { run "$examples/race" | fenced; }

# OPERATION...: the lines of collectives_by_hand on 4 ranks, medians over the repetitions
lessons() {
  local repetition key by_hand by_library operation algorithm nbytes wanted=" $* "
  for ((repetition = 0; repetition < repetitions; repetition++)); do
    run "$lockstep" run -n 4 "$examples/collectives_by_hand"
  done | awk '$NF == "right" { print $1 " " $2 " " $3 "|" $4 "|" $5 }' | medians >"$work/medians"
  echo "| operation | algorithm | bytes | by hand, us | the library's, us |"
  echo "| --- | --- | --- | --- | --- |"
  while IFS='|' read -r key by_hand by_library; do
    read -r operation algorithm nbytes <<<"$key"
    [[ $wanted == *" $operation "* ]] || continue
    echo "| $operation | $algorithm | $nbytes | $(rounded "$by_hand") | $(rounded "$by_library") |"
  done <"$work/medians"
}
by_hand() { lessons reduce all_reduce; }
gather() { lessons gather all_gather; }

broadcast() {
  local sizes=1K,64K,1M,16M numbers="2 4 8" transport n size algorithm algorithms="naive tree ring scatter_allgather direct"
  if quick; then sizes=1K numbers="2 4"; fi
  for transport in shm tcp; do
    for n in $numbers; do
      run "$lockstep" bench broadcast --ranks "$n" --transport $transport --algorithm all --sizes $sizes --json "$work/json" >/dev/null
      sed -nE "s/.*\"algorithm\":\"([a-z_]+)\".*\"bytes\":([0-9]+),\"time_us_median\":([0-9.e+]+).*/$transport $n \2 \1|\3/p" "$work/json"
    done
  done >"$work/medians"
  echo "| transport | ranks | bytes | naive | tree | ring | scatter_allgather | direct |"
  echo "| --- | --- | --- | --- | --- | --- | --- | --- |"
  cut -d '|' -f 1 "$work/medians" | awk '{ print $1, $2, $3 }' | uniq | awk '!seen[$0]++' | while read -r transport n size; do
    printf '| %s | %s | %s |' "$transport" "$n" "$size"
    for algorithm in $algorithms; do printf ' %s |' "$(rounded_or_none "$transport $n $size $algorithm")"; done
    echo
  done
}

# PROGRAM RANKS: its line "... | scatter A, broadcast B 0.9 ms | compute 1.5 ms | gather C 1.6 ms" as a key and three figures
matmul_line() {
  run "$lockstep" run -n "$2" "$examples/$1" |
    sed -nE "s/^at most [0-9]+ [a-z]+ each \| [^|]* ([0-9.]+) ms \| compute ([0-9.]+) ms \| [^|]* ([0-9.]+) ms$/$1 $2|\1|\2|\3/p"
}
matmul() {
  local repetition program n before compute after
  for ((repetition = 0; repetition < repetitions; repetition++)); do
    for program in matmul_rows matmul_reduction; do
      for n in 1 2 4; do matmul_line $program $n; done
    done
  done | medians >"$work/medians"
  echo "| program | ranks | handing out, ms | computing, ms | collecting, ms |"
  echo "| --- | --- | --- | --- | --- |"
  while IFS='| ' read -r program n before compute after; do
    echo "| $program | $n | $(rounded "$before") | $(rounded "$compute") | $(rounded "$after") |"
  done <"$work/medians"
}

hooks() { run "$lockstep" run -n 4 "$examples/own_data_parallel" | sort -u | fenced; }
pipeline() {
  local repetition micro ms whole turns
  for ((repetition = 0; repetition < repetitions; repetition++)); do
    run "$lockstep" run -n 2 "$examples/pipeline" >"$work/pipeline"
    grep -q "whole model's bits" "$work/pipeline" || fail "the stages' parameters: $(tail -n 1 "$work/pipeline")"
    awk 'NF == 4 && $2 + 0 == $2 {print $1 "|" $2 "|" $3 "|" $4}' "$work/pipeline"
  done | medians >"$work/medians"
  echo "| micro-batches | two stages, ms a step | in one piece, ms | (M + S - 1) / M |"
  echo "| --- | --- | --- | --- |"
  while IFS='|' read -r micro ms whole turns; do
    echo "| $micro | $(rounded "$ms") | $(rounded "$whole") | $turns |"
  done <"$work/medians"
}
replicas() { run "$lockstep" run -n 3 "$examples/replicas" | fenced; }

# NAME: the figures of the summary in $work/summary, for medians; and its parameters' hash, apart
training_figures() {
  echo "$1|$(value "$work/summary" world_size)|$(value "$work/summary" step_us_median)|$(value "$work/summary" epoch_s)"
  echo "$1|$(value "$work/summary" transport)|$(value "$work/summary" params_sha256 | cut -c 1-16)" >>"$work/hashes"
}
training_table() { # HEADING: of the first column; the last is one hash in all of them
  local key n step epoch transport params
  echo "| $1 | ranks | transport | step, us | epoch, s | params |"
  echo "| --- | --- | --- | --- | --- | --- |"
  while IFS='|' read -r key n step epoch; do
    IFS='|' read -r transport params <<<"$(grep -F "$key|" "$work/hashes" | cut -d '|' -f 2,3 | sort -u | head -n 1)"
    echo "| $key | $n | $transport | $(rounded "$step") | $(rounded "$epoch") | $params |"
  done <"$work/medians"
  [ "$(cut -d '|' -f 3 "$work/hashes" | sort -u | wc -l)" = 1 ] || fail "the parameters differ: $(tr '\n' ' ' <"$work/hashes")"
}

combinations() {
  local repetition length=(--epochs 1) arguments
  data_ready || return
  quick && length=(--steps 60)
  arguments=("$examples/mnist" --data "$data" --grains 4 "${length[@]}" --quiet --summary "$work/summary")
  hosts_ready 4 || return
  rm -f "$work/hashes"
  for ((repetition = 0; repetition < repetitions; repetition++)); do
    run "$lockstep" run -n 1 "${arguments[@]}" >/dev/null && training_figures "1 host x 1"
    run "$lockstep" run -n 2 "${arguments[@]}" >/dev/null && training_figures "1 host x 2"
    run "$lockstep" run -n 4 "${arguments[@]}" >/dev/null && training_figures "1 host x 4"
    on_hosts 2 1 "${arguments[@]}" && training_figures "2 hosts x 1"
    on_hosts 2 2 "${arguments[@]}" && training_figures "2 hosts x 2"
    on_hosts 4 1 "${arguments[@]}" && training_figures "4 hosts x 1"
  done >"$work/figures"
  medians <"$work/figures" >"$work/medians"
  training_table "hosts x workers"
}

show() { echo "\$ $1"; run bash -o pipefail -c "$1"; }
slurm_tasks() {
  slurm_ready 3 || return
  {
    show 'srun -N 3 -n 3 hostname | sort'
    show 'srun -N 3 -n 9 --ntasks-per-node 3 hostname | sort | uniq -c'
    show 'srun -w n1,n3 -n 2 hostname | sort'
    show "salloc -Q -N 2 -n 4 bash -c 'srun -n 2 hostname | sort; srun -n 4 hostname | sort | uniq -c'"
    show "salloc -Q -N 3 bash -c 'srun -N 1 -n 1 --exact hostname & srun -N 2 -n 2 --exact hostname & wait' | sort"
  } 2>&1 | sed '/^srun: job .* resources$/d' | fenced
}

slurm_training() {
  local repetition length=(--epochs 1) allocation arguments
  data_ready || return
  quick && length=(--steps 60)
  slurm_ready 3 || return
  arguments=("$examples/mnist" --data "$data" --grains 4 "${length[@]}" --quiet --summary "$work/summary")
  rm -f "$work/hashes"
  for ((repetition = 0; repetition < repetitions; repetition++)); do
    for allocation in "-N 1 -n 1" "-N 1 -n 2" "-N 1 -n 4" "-N 2 -n 2" "-N 2 --ntasks-per-node 2" "-N 2 -n 4" "-N 3 -n 4"; do
      # shellcheck disable=SC2086
      run srun --kill-on-bad-exit=1 $allocation "${arguments[@]}" >/dev/null && training_figures "srun $allocation"
    done
  done >"$work/figures"
  medians <"$work/figures" >"$work/medians"
  training_table "allocation"
}

# --- all of them ---

write_table() { # NAME: what is in $work/table goes between its marks
  awk -v mark="<!-- MEASURED $1 -->" -v table="$work/table" '
    $0 == "<!-- /MEASURED -->" { is_old = 0 }
    !is_old { print }
    $0 == mark { is_old = 1; while ((getline line < table) > 0) print line }' docs/exercises.md >"$work/doc"
  cat "$work/doc" >docs/exercises.md
}

n_failed=0
for name in "${chosen[@]}"; do
  [[ " $all " == *" $name "* ]] || { echo "docs/exercises.sh: no exercise '$name'; there are: $all" >&2; exit 2; }
  echo "--- $name"
  rm -f "$work/failed"
  "$name" >"$work/table"
  status=$?
  cat "$work/table"
  if [ $status = 77 ]; then continue; fi
  # The first two lines are a table's head, or a fence.
  [ "$(wc -l <"$work/table")" -gt 2 ] || fail "the table is empty"
  if [ -s "$work/failed" ]; then
    cat "$work/failed" >&2
    n_failed=$((n_failed + 1))
    echo "FAIL $name"
    continue
  fi
  [ $is_written = 0 ] || write_table "$name"
done
[ $n_failed = 0 ]

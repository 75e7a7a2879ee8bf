#!/usr/bin/env bash
# labels: busy no-asan
# lockstep bench as a command: every flag once, with tiny sizes; its output; its errors. No timings are checked.
# Usage: test_bench.sh BUILD_DIR. Prints a line per behaviour; fails if one does.
set -u
# shellcheck source=tests/system/common.sh
. tests/system/common.sh
export XDG_CACHE_HOME=$work/cache

# run ARGS...: lockstep with its output in $work/out and $work/err and its exit status in $status
run() {
  "$lockstep" "$@" >"$work/out" 2>"$work/err"
  status=$?
}

# rows N: a heading and N rows, each without wrong elements
rows() { [ "$(wc -l <"$work/out")" = $(($1 + 1)) ] && [ "$(grep -cE ' 0$' "$work/out")" = "$1" ]; }
succeeded() { status_is 0 && [ ! -s "$work/err" ] && rows "$1"; }
refused() { status_is 2 && [ "$(wc -l <"$work/err")" = 1 ] && err_has "$1"; }
# json CONDITION: it holds for every line of $work/json, an object `row` with exactly these keys
json() {
  python3 - "$work/json" "$1" <<'PY'
import json, sys
keys = ["op", "algorithm", "chosen", "transport", "ranks", "symmetric", "type", "bytes", "time_us_median",
        "time_us_p99", "algbw", "busbw", "errors"]
rows = [json.loads(line) for line in open(sys.argv[1])]
wrong = [row for row in rows if list(row) != keys or row["errors"] != 0 or not eval(sys.argv[2])]
sys.exit(not rows or bool(wrong))
PY
}
well_formed() { python3 -c 'import sys, xml.dom.minidom as dom; dom.parse(sys.argv[1])' "$1"; }

# --- every operation, as processes and as threads ---
for operation in all_reduce broadcast reduce all_gather reduce_scatter gather scatter all_to_all gatherv scatterv all_gatherv reduce_scatterv all_to_allv; do
  run bench $operation --ranks 3 --threads --sizes 4,100,4K --json "$work/json"
  check "$operation on threads" eval 'status_is 0 && json "row[\"op\"] == \"$operation\" and row[\"transport\"] == \"thread\" and row[\"ranks\"] == 3"'
  case $operation in all_* | reduce_scatter*) root=() ;; *) root=(--root 1) ;; esac
  run bench $operation --ranks 2 --processes "${root[@]}" --sizes 64 --type f64 --json "$work/json"
  check "$operation on processes" eval 'status_is 0 && rows 1 && json "row[\"transport\"] == \"shm\" and row[\"type\"] == \"f64\" and row[\"bytes\"] == 64"'
done
run bench barrier --ranks 3
check "barrier has one row" succeeded 1
run bench send_recv --ranks 3 --sizes 4,64K --json "$work/json"
check "send_recv looks at two of three ranks" eval 'succeeded 2 && json "abs(row[\"algbw\"] * row[\"time_us_median\"] * 1e3 / row[\"bytes\"] - 1) < 1e-6"'
run bench all --ranks 2 --threads --sizes 16
check "all operations in one run" eval 'succeeded 15 && out_has "^scatterv " && out_has "^send_recv "'

# --- the flags ---
run bench all_reduce --ranks 4 --sizes 256 --json "$work/json"
check "busbw of all_reduce is 2(n-1)/n algbw" json 'abs(row["busbw"] / row["algbw"] - 1.5) < 1e-9'
run bench all_gather --ranks 4 --sizes 256 --json "$work/json"
check "busbw of all_gather is (n-1)/n algbw" json 'abs(row["busbw"] / row["algbw"] - 0.75) < 1e-9'
run bench all_reduce --ranks 2 --algorithm all --sizes 4:64:4 --json "$work/json" --plot "$work/plot.svg"
check "all algorithms that these ranks can use, auto among them" eval 'status_is 0 && err_has "left out: all_reduce: two_level" && json "row[\"bytes\"] in (4, 16, 64)" && out_has " auto " && out_has " direct " && out_has " naive "'
check "the plot is well-formed and has a curve for each" eval 'well_formed "$work/plot.svg" && grep -q ">naive</text>" "$work/plot.svg" && grep -q "<polyline" "$work/plot.svg" && grep -q "fill=.#fff" "$work/plot.svg"'
run bench all_reduce --ranks 2 --sizes 8 --plot "$work/point.svg"
check "a plot of one point is well-formed, too" well_formed "$work/point.svg"
run bench all_reduce --ranks 2 --sizes 12 --plot "$work/between.svg"
check "the axis of a size that is no power of two has the powers around it" \
  eval 'grep -q ">8 B</text>" "$work/between.svg" && grep -q ">16 B</text>" "$work/between.svg"'
run bench barrier --ranks 2 --plot "$work/barrier.svg"
check "the plot of a barrier shows no size" \
  eval 'well_formed "$work/barrier.svg" && ! grep -qE " B</text>|>size<" "$work/barrier.svg" && grep -q ">no data</text>" "$work/barrier.svg"'
run bench all_reduce --ranks 2 --algorithm naive --sizes 8 --json "$work/json"
check "an algorithm by name" json 'row["algorithm"] == "naive" and row["chosen"] == "naive"'
run bench all_reduce --ranks 2 --symmetric --sizes 8,100K --json "$work/json"
check "--symmetric" eval 'succeeded 2 && json "row[\"symmetric\"] is True"'
run bench all_reduce --ranks 2 --cold --sizes 4,1M
check "--cold" succeeded 2
run bench broadcast --ranks 2 --cold --symmetric --root 1 --sizes 4K
check "--cold --symmetric" succeeded 1
for operation in all_reduce broadcast reduce all_gather reduce_scatter gatherv all_to_allv send_recv; do
  run bench $operation --ranks 2 --used --sizes 4,1K,100K
  check "--used $operation" succeeded 3
done
run bench all_reduce --ranks 2 --repetitions 21 --sizes 4
check "--repetitions" succeeded 1
for type in f32 f64 f16 bf16 i8 u8 i32 i64; do
  for operator in sum product min max; do
    run bench all_reduce --ranks 3 --threads --type $type --operator $operator --sizes 200
    check "$operator of $type is exact" succeeded 1
  done
done
for operator in band bor bxor; do
  run bench all_reduce --ranks 3 --threads --type u8 --operator $operator --sizes 200
  check "$operator of u8" succeeded 1
done
run bench all_reduce --ranks 3 --threads --type f16 --operator avg --sizes 200
check "avg of f16" succeeded 1
run bench all_reduce --ranks 2 --transport thread --sizes 4 --json "$work/json"
check "--transport thread makes threads of the ranks" json 'row["transport"] == "thread"'
run bench all_reduce --ranks 2 --transport tcp --sizes 4,64K --json "$work/json"
check "--transport tcp" eval 'succeeded 2 && json "row[\"transport\"] == \"tcp\""'
run bench all_reduce --ranks 2 --transport shm,tcp --algorithm all --sizes 4,64 --json "$work/json" --plot "$work/transports.svg"
of_transport() { [ "$(grep -c "\"algorithm\":\"ring\".*\"transport\":\"$1\"" "$work/json")" = 2 ] && [ "$(grep -cE "^all_reduce .* $1 +ring " "$work/out")" = 2 ]; }
check "a list of transports: sizes and algorithms over each, in one table and file" \
  eval 'status_is 0 && json "row[\"transport\"] in (\"shm\", \"tcp\")" && of_transport shm && of_transport tcp'
check "the plot has a curve for each algorithm and transport" \
  eval 'well_formed "$work/transports.svg" && grep -q ">ring, shm</text>" "$work/transports.svg" && grep -q ">ring, tcp</text>" "$work/transports.svg"'
run run -n 2 "$lockstep" bench all_reduce --transport shm,tcp --sizes 4 --json "$work/json"
check "also as ranks of a launcher" eval 'succeeded 2 && [ "$(grep -o "\"transport\":\"...\"" "$work/json" | tr "\n" " ")" = "\"transport\":\"shm\" \"transport\":\"tcp\" " ]'
run bench all_gather --ranks 3 --sizes 4,8,12,16 --json "$work/json"
check "sizes that hold the same whole elements are one" eval 'rows 1 && json "row[\"bytes\"] == 12"'

LOCKSTEP_ALGORITHM=two_level run bench all_reduce --ranks 3 --sizes 4,8
check "an algorithm of LOCKSTEP_ALGORITHM that cannot serve is said once" \
  eval 'status_is 0 && rows 2 && [ "$(wc -l <"$work/err")" = 1 ] && err_has "LOCKSTEP_ALGORITHM: .* uses direct instead of two_level: the group does not span hosts"'
LOCKSTEP_ALGORITHM=ring,tree run bench all_reduce --ranks 2 --sizes 4
check "a second name for all operations is refused" \
  eval 'status_is 1 && err_has "LOCKSTEP_ALGORITHM: .tree. names no operation"'
LOCKSTEP_ALGORITHM=ring,all_reduce=tree run bench all_reduce --ranks 2 --sizes 4
check "an operation of its own after it is taken" eval 'status_is 0 && out_has " tree "'

# --- tuning ---
# On a busy machine, small and large sizes may take equally long.
tune() { for _ in 1 2 3 4 5; do run "$@"; err_has "tuning needs a small and a larger size" || return; done; }
tune bench --tune --transport shm --ranks 2
check "--tune writes where it says" eval 'status_is 0 && out_has "^$work/cache/lockstep/tuning.json: shm latency .* us, .* GB/s; auto uses only those of tcp and mpi" && [ -s "$work/cache/lockstep/tuning.json" ]'
tune bench --tune "$work/tcp.json" --ranks 2
check "--tune measures tcp unless another transport is named" eval 'grep -q "^{\"tcp\":{\"latency_us\":" "$work/tcp.json" && out_has "; LOCKSTEP_TUNING=$work/tcp.json lets auto"'
tune bench send_recv --tune "$work/tuning.json" --threads --transport thread --ranks 2
check "--tune FILE" python3 -c 'import json, sys
entry = json.load(open(sys.argv[1]))["thread"]
sys.exit(sorted(entry) != ["gbytes_per_s", "latency_us"] or min(entry.values()) <= 0)' "$work/tuning.json"
tune bench --tune "$work/tuning.json" --transport shm --ranks 2
check "what it says of other transports stays" eval 'grep -q thread "$work/tuning.json" && grep -q shm "$work/tuning.json"'
printf '{"shm":{"latency_us":-1},"shm":{"latency_us":-2}}' >"$work/twice.json"
tune bench --tune "$work/twice.json" --transport shm --ranks 2
check "a repeated entry is replaced by one" eval 'status_is 0 && [ "$(grep -o latency_us "$work/twice.json" | wc -l)" = 1 ] && ! grep -q -e "-[12]" "$work/twice.json"'

# --- as ranks of a launcher ---
run bench all_reduce --sizes 4 --json "$work/json"
check "without a launcher: a world of one" eval 'succeeded 1 && json "row[\"ranks\"] == 1 and row[\"transport\"] == \"self\" and row[\"busbw\"] == 0"'
run bench all --sizes 1M
check "all operations in a world of one, beyond what a chunk holds" succeeded 14
run run -n 3 "$lockstep" bench all_reduce --sizes 4 --json "$work/json"
check "under lockstep run" eval 'succeeded 1 && json "row[\"ranks\"] == 3"'
run run -n 3 --threads "$lockstep" bench all_reduce --sizes 4 --json "$work/json"
check "under lockstep run --threads" eval 'succeeded 1 && json "row[\"transport\"] == \"thread\""'
RANK='' LOCKSTEP_THREADS='' LOCKSTEP_GRACE_MS='' run bench barrier --ranks 2
check "empty variables are those of no launcher" succeeded 1
LOCKSTEP_THREADS='' run bench barrier
check "also without --ranks" succeeded 1
# shellcheck disable=SC2016 # the ranks' variables
run run -n 2 sh -c '"$0" bench all_reduce --sizes 4 --json /dev/full; status=$?; echo $status >"$1.$RANK"; exit $status' \
  "$lockstep" "$work/status"
check "where rank 0 alone fails, it alone has a status that says so" \
  eval 'status_is 1 && [ "$(cat "$work/status.0") $(cat "$work/status.1")" = "1 0" ] && err_has "^lockstep run: rank 0 "'

# --- wrong calls ---
run help bench
check "help bench explains the options" eval 'status_is 0 && out_has "--algorithm NAME" && out_has "nccl-tests"'
run bench
check "a missing operation is refused" refused "no operation is given"
run bench frobnicate
check "an unknown operation is refused" refused "'frobnicate'"
run bench all_reduce broadcast
check "a second operation is refused" refused "'broadcast'"
run bench all_reduce --frobnicate
check "an unknown flag is refused" refused "'--frobnicate'"
run bench all_reduce --symmetric=yes
check "a value for a flag is refused" refused "--symmetric takes no value"
run bench all_reduce --ranks
check "a flag without its value is refused" refused "--ranks needs a value"
check "such a line is one write, because several ranks may write at once" python3 -c 'import socket, subprocess, sys
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) # which keeps writes apart
subprocess.run([sys.argv[1], "bench", "frobnicate"], stderr=theirs)
sys.exit(not ours.recv(4096).endswith(b"help bench\n"))' "$lockstep"
while read -r flag value; do
  run bench all_reduce --ranks 2 "$flag" "$value"
  check "$flag $value is refused" refused "$flag '$value'"
done <<'EOF2'
--algorithm frobnicate
--transport pigeon
--transport all
--transport shm,pigeon
--transport shm,shm
--transport shm,
--ranks 0
--ranks 2x
--sizes 4:
--sizes 64:4
--sizes 0
--sizes 4,,8
--sizes 4:8:1
--sizes 4:64X
--type f31
--plot picture.png
--plot .svg
--operator plus
--operator band
--root 2
--root -1
--repetitions 8
EOF2
run bench all_reduce --ranks 2 --json ''
check "--json '' is refused" refused "--json ''"
run bench all_reduce --ranks 2 --json "$work/a" --json "$work/b"
check "a second file for the same is refused, not written in place of the first" refused "--json '$work/b' is a second file: '$work/a' was given before"
run bench all_reduce --ranks 2 --plot ''
check "--plot '' is refused" refused "--plot ''"
run bench all_reduce --sizes 8,3
check "a size that is no whole number of elements is refused" refused "--sizes: 3 bytes .* --type f32, 4 bytes each"
run bench all_reduce --sizes 4 --type f64
check "which depends on the type" refused "--sizes: 4 bytes .* --type f64, 8 bytes each"
run bench all_reduce --threads
check "--threads without --ranks is refused" refused "--threads needs --ranks"
run bench all_reduce --ranks 2 --threads --processes
check "--threads with --processes is refused" refused "--threads and --processes"
run bench all_reduce --ranks 2 --threads --transport shm
check "--threads with shm is refused" refused "--transport 'shm'"
run bench all_reduce --ranks 2 --processes --transport thread
check "--processes with thread is refused" refused "--transport 'thread'"
run bench all_reduce --ranks 2 --threads --transport tcp
check "--threads with tcp is refused" refused "--transport 'tcp'"
run bench all_reduce --ranks 2 --transport tcp,thread
check "so is tcp in a list with thread" refused "--transport 'tcp': the ranks are threads, because of 'thread'"
run bench --tune --ranks 2 --transport shm,tcp
check "--tune of several transports is refused" refused "--tune measures one transport, not 2"
run bench --tune --ranks 2 --threads
check "so are threads with --tune" refused "--tune measures tcp"
run bench all_reduce --ranks 2 --transport tcp --symmetric
check "--symmetric over tcp is refused, before anything is printed" eval 'refused "--symmetric" && [ ! -s "$work/out" ]'
LOCKSTEP_TRANSPORT=tcp run run -n 2 "$lockstep" bench all_reduce --symmetric --sizes 4
check "by a launcher's ranks, too, once" eval 'status_is 2 && [ ! -s "$work/out" ] && [ "$(grep -c "^lockstep bench: --symmetric" "$work/err")" = 1 ]'
for operation in all_reduce barrier send_recv; do
  run bench $operation --ranks 2 --root 1
  check "--root of $operation is refused" refused "$operation takes no --root"
done
run bench broadcast --ranks 2 --operator max
check "--operator of broadcast is refused" refused "broadcast takes no --operator"
run bench barrier --ranks 2 --sizes 4
check "--sizes of a barrier is refused" refused "barrier takes no --sizes"
run bench all_reduce --tune
check "--tune with another operation is refused" refused "--tune measures send_recv, not all_reduce"
run bench all --plot "$work/all.svg" --ranks 2
check "a plot of all operations is refused" refused "--plot '.*/all.svg'"
run bench all --algorithm naive --ranks 2
check "one algorithm for all operations is refused" refused "--algorithm 'naive'"
run bench send_recv --ranks 1
check "send_recv of one rank is refused" refused "--ranks '1': send_recv needs 2"
run bench send_recv
check "also where nobody started a second one" refused "send_recv needs 2 ranks"
RANK=0 run bench all_reduce --ranks 2
check "--ranks within a launcher's job is refused" refused "--ranks '2': a launcher has started ranks already \(RANK"
while read -r name variables; do
  # shellcheck disable=SC2086 # words
  env $variables "$lockstep" bench all_reduce --ranks 2 --sizes 4 >"$work/out" 2>"$work/err"
  status=$?
  check "also where $name numbers the ranks" refused "--ranks '2': a launcher has started ranks already \($name"
done <<'EOF3'
OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2
PMI_RANK PMI_RANK=0 PMI_SIZE=2
SLURM_PROCID SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_NTASKS=3
EOF3
SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_NTASKS=1 run bench all_reduce --ranks 2 --sizes 4
check "a launcher of one process is none" succeeded 1
run run -n 2 "$lockstep" bench broadcast --sizes 4 --root 2
check "a root that the launcher's ranks lack is told once" eval 'status_is 2 && [ "$(grep -c "^lockstep bench:" "$work/err")" = 1 ]'
run bench all_reduce --ranks 2 --sizes 4 --json /proc/nowhere/json
check "a file that cannot be written is named" eval 'status_is 1 && err_has "^lockstep: rank 0: /proc/nowhere/json: No such file or directory"'
run bench all_reduce --ranks 2 --sizes 4 --plot /proc/nowhere/plot.svg
check "a plot that cannot be written is named, before anything is measured" \
  eval 'status_is 1 && err_has "/proc/nowhere/plot.svg" && [ ! -s "$work/out" ]'
run bench --ranks 2 --tune /proc/nowhere/tuning.json
check "so is a tuning file" eval 'status_is 1 && err_has "/proc/nowhere/tuning.json" && [ ! -s "$work/out" ]'
run bench all_reduce --ranks 2 --sizes 4 --json "$work/one.svg" --plot "$work/../${work##*/}/one.svg"
check "two outputs in one file are refused" eval 'status_is 1 && err_has "one.svg: is given by --json and by --plot" && [ ! -e "$work/one.svg" ]'
printf '{"mpi":{"latency_us":1' >"$work/torn.json"
run bench --ranks 2 --tune "$work/torn.json"
check "a damaged tuning file is not replaced" \
  eval 'status_is 1 && [ "$(grep -c "^lockstep:" "$work/err")" = 1 ] && err_has "torn.json: not a tuning file" && [ ! -s "$work/out" ] && [ "$(wc -c <"$work/torn.json")" = 22 ]'
mkfifo "$work/fifo"
for _ in 1 2 3 4 5; do
  timeout 60 cat "$work/fifo" >"$work/read" &
  sleep 0.5 # until it has started
  run bench all_reduce --ranks 2 --sizes 4 --json "$work/fifo"
  wait $!
  status_is 0 || break
done
check "the rows go to whoever reads a FIFO" eval 'status_is 0 && grep -q "^{\"op\"" "$work/read"'
XDG_CACHE_HOME=/proc/nowhere run bench --ranks 2 --tune
check "where the default file cannot be made is told before the measurement" \
  eval 'status_is 1 && err_has "^lockstep: rank 0: /proc/nowhere" && [ ! -s "$work/out" ]'
run bench all_reduce --ranks 2 --sizes 4,8 --json /dev/full
check "a full disk is told by one rank, after the first row" \
  eval 'status_is 1 && [ "$(grep -c "^lockstep:" "$work/err")" = 1 ] && err_has "/dev/full: No space left on device" && rows 1'
for mode in --processes --threads; do
  "$lockstep" bench all_reduce --ranks 2 $mode --sizes 8 >/dev/full 2>"$work/err"
  status=$?
  check "a full standard output is an error of bench $mode" \
    eval 'status_is 1 && [ "$(grep -c "^lockstep:" "$work/err")" = 1 ] && err_has "standard output: No space left on device"'
done

# --- descriptors ---
(ulimit -n 16; LOCKSTEP_TIMEOUT_MS=3000 "$lockstep" bench all_reduce --ranks 4 --transport tcp --sizes 8) \
  >"$work/out" 2>"$work/err"
status=$?
check "too few descriptors are said to be this process's, in no call" \
  eval '[ $status != 0 ] && err_has "oo many open files here: the limit is 16, and ulimit -n" && ! err_has 1844674'

check "nothing is left in /dev/shm" eventually nothing_new_in_shm
exit $((n_failed > 0))

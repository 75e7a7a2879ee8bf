#!/usr/bin/env bash
# lockstep run as a command: real processes, real signals, real leftovers.
# Usage: test_run.sh BUILD_DIR. Prints a line per behaviour; fails if one does.
set -u
# shellcheck source=tests/system/common.sh
. tests/system/common.sh
examples=$build/examples
marker=lockstep-test-$$ # in the arguments of every process that must end

# run ARGS...: lockstep with its output in $work/out and $work/err and its exit status in $status
run() {
  "$lockstep" "$@" >"$work/out" 2>"$work/err"
  status=$?
}

err_lines() { [ "$(wc -l <"$work/err")" = "$1" ]; }
out_lines() { [ "$(wc -l <"$work/out")" = "$1" ]; }
none_left() { ! pgrep -f "$marker" >/dev/null; }
all_started() { [ "$(ls "$work"/started.* 2>/dev/null | wc -l)" = "$1" ]; }
refused() { status_is 2 && err_lines 1 && err_has "$1"; }

# --- the command itself ---
run --version
check "--version says the version" out_has '^lockstep [0-9]+\.[0-9]+\.[0-9]+$'
run --help
check "--help lists the commands" out_has '^  run '
run help run
check "help run explains the options" out_has '--log-dir DIR'
for arguments in "run -n 2 --help" "run -h" "bench all_reduce -h" "data get mnist --help" "info --help"; do
  # shellcheck disable=SC2086 # words
  run $arguments
  check "lockstep $arguments explains the command" eval 'status_is 0 && err_lines 0 && out_has "^usage: lockstep ${arguments%% *}"'
done
run run -n 2 sh -c 'echo "$1"' sh --help
check "after the program --help is the program's" eval 'status_is 0 && out_lines 2 && out_has "^--help$"'
run help help
check "help help lists the commands" eval 'status_is 0 && out_has "^  run "'
run help nothing
check "help of an unknown command is refused" refused "unknown command 'nothing'"
run run -n2 "$examples/hello"
check "-n2 is -n 2" eval 'status_is 0 && out_lines 2'
run frobnicate
check "an unknown command is refused" refused "unknown command 'frobnicate'"
run info
check "info names devices and libraries" eval 'status_is 0 && out_has "^devices: .*reference" && out_has "^NCCL module: " && out_has "^zlib: " && out_has "^instruction set: "'
check "info lists the algorithms of each operation" eval 'out_has "^algorithms: +auto: direct on one host" && out_has "^  all_reduce .* ring"'
LOCKSTEP_ALGORITHM=frob run info
check "info shows an algorithm that there is not as the error it is" \
  eval 'status_is 1 && out_has "^algorithms: +auto: LOCKSTEP_ALGORITHM: no operation has an algorithm .frob. .there are: auto, "'
LOCKSTEP_TUNING=/nonexist run info
check "info shows a tuning file that is missing as the error it is" eval 'status_is 1 && out_has "^tuning: +LOCKSTEP_TUNING: /nonexist: No such file"'
echo '{"tcp": {"latency_us": 25, "gbytes_per_s": 1.25}}' >"$work/tuning.json"
LOCKSTEP_TUNING=$work/tuning.json run info
check "info shows what a tuning file leads to" eval \
  'status_is 0 && out_has "^tuning: +$work/tuning.json: tcp 25 us, 1.25 GB/s; " && out_has "^  all_reduce +butterfly to [0-9]+, "'
echo '{"shm": {"latency_us": 25, "gbytes_per_s": 1.25}}' >"$work/tuning.json"
LOCKSTEP_TUNING=$work/tuning.json run info
check "info shows that one says nothing of transports between hosts" \
  eval 'status_is 0 && out_has "^tuning: .*tuning.json says nothing of tcp and mpi, which are measured"'
LOCKSTEP_TRANSPORT=tcp LOCKSTEP_TUNING=$work/tuning.json run run -n 2 "$examples/hello"
check "and a job measures, and says so once" \
  eval 'status_is 0 && err_lines 1 && err_has "warning: rank 0: LOCKSTEP_TUNING: .*tuning.json says nothing of tcp, which is measured instead"'
echo '{"tcp": {"latency_us": 1e999, "gbytes_per_s": 1.25}}' >"$work/tuning.json"
LOCKSTEP_TUNING=$work/tuning.json run info
check "info refuses one with a figure that is none" eval 'status_is 1 && out_has "^tuning: .*tuning.json has no ..tcp.: "'
LOCKSTEP_ALGORITHM=ring run info
check "and what the environment chooses" out_has '^algorithms: +auto: ring$'
# Only cgroup v1 has a directory for each controller.
group=/sys/fs/cgroup/cpu/lockstep-test-$$
if [ -f /sys/fs/cgroup/cpu/cpu.cfs_quota_us ] && mkdir "$group" 2>/dev/null; then
  echo 150000 >"$group/cpu.cfs_quota_us"
  # shellcheck disable=SC2016 # for the inner shell
  bash -c 'echo $BASHPID >"$1/cgroup.procs" && exec "$0" info' "$lockstep" "$group" >"$work/out" 2>"$work/err"
  status=$?
  rmdir "$group"
  check "info shows a quota of cgroup v1" eval 'status_is 0 && out_has "^cgroup quota: +1.5 CPUs"'
else
  echo "note: no cgroup can be made in /sys/fs/cgroup/cpu; quotas of cgroup v1 are left out"
fi
run info --all
check "info refuses an unknown option" refused "'--all'"

for command in "help run" help info --version "data list"; do
  # shellcheck disable=SC2086 # words
  "$lockstep" $command >/dev/full 2>"$work/err"
  status=$?
  check "a full standard output is an error of $command" \
    eval 'status_is 1 && err_lines 1 && err_has "^lockstep: standard output: No space left on device$"'
done
"$lockstep" info >&- 2>"$work/err"
status=$?
check "so is one that is closed" eval 'status_is 1 && err_lines 1 && err_has "^lockstep: standard output: Bad file desc"'
"$lockstep" run -n 1 echo >&- 2>"$work/err"
status=$?
check "a rank finds it closed, too" eval 'status_is 1 && err_has "write error: Bad file desc"'
"$lockstep" run -n 2 --prefix echo >&- 2>"$work/err"
status=$?
check "where its lines go through the launcher it says so" \
  eval 'status_is 1 && err_lines 1 && err_has "^lockstep run: standard output cannot be written: Bad file desc"'
"$lockstep" bench barrier --ranks 1 --json "$work/closed.json" >&- 2>"$work/err"
status=$?
check "a file is not opened in its place" eval 'status_is 1 && err_has "Bad file desc" && ! grep -qv "^{" "$work/closed.json"'
"$build/examples/mlp" --steps 1 --quiet --summary "$work/closed.json" --run "$work/closed" >&- 2>"$work/err"
status=$?
check "nor by a trainer" eval '! grep -qv "^{" "$work/closed/metrics.jsonl"'
run run --hosts "$work/none" --heartbeat-timeout 0.1 true
check "a heartbeat faster than the launcher's is refused" refused "of at least 1"
env -u HOME -u LOCKSTEP_DATA -u XDG_CACHE_HOME "$lockstep" data list >"$work/out" 2>"$work/err"
status=$?
check "where data sets have no place it is said once" eval 'status_is 1 && err_lines 1'

# --- the environment ---
LOCKSTEP_LOG=loud run info
check "a LOCKSTEP_LOG that is none is said, with those there are" \
  eval 'status_is 0 && err_lines 1 && err_has "LOCKSTEP_LOG .loud. is not one of error, warning, info, debug"'
LOCKSTEP_LOG=loud "$examples/hello" >"$work/out" 2>"$work/err"
check "by programs, too" eval 'err_lines 1 && err_has "LOCKSTEP_LOG .loud. is not one of"'
if ! grep -q avx512vl /proc/cpuinfo; then
  LOCKSTEP_ISA=avx512 run info
  check "an instruction set that is not here is said to be none" \
    eval 'status_is 0 && err_lines 1 && err_has "LOCKSTEP_ISA is .avx512., which this machine does not support: it is (avx2|base)"'
fi
for variable in LISTEN ADVERTISE; do
  env LOCKSTEP_$variable=nonsense "$lockstep" run -n 1 "$examples/hello" >"$work/out" 2>"$work/err"
  status=$?
  check "LOCKSTEP_$variable is looked at where nobody needs it, too" \
    eval "status_is 1 && err_has '^lockstep: rank 0: LOCKSTEP_$variable is .nonsense.: host:port'"
done
LOCKSTEP_TIMEOUT_MS=abc run run -n 2 "$examples/hello"
check "each rank says its own number" eval 'status_is 1 && err_has "^lockstep: rank [01]: LOCKSTEP_TIMEOUT_MS is .abc."'

# --- wrong calls ---
run run -n 0 true
check "-n 0 is refused" refused "-n '0'"
run run -n abc true
check "-n abc is refused" refused "-n 'abc'"
run run -n 2x true
check "-n 2x is refused" refused "-n '2x'"
run run -n
check "-n without a value is refused" refused "-n needs a value"
run run true
check "a missing -n is refused" refused "-n N is missing"
run run -n 2
check "a missing program is refused" refused "no program is given"
run run -n 2 --frobnicate true
check "an unknown flag is refused" refused "'--frobnicate'; see lockstep help run"
run run -n 2 --hosst=file true
check "with the flag that may have been meant" refused "'--hosst=file'; did you mean --hosts\?"
run run --nnodes 2 --node_rnk 0 true
check "also where it has underscores" refused "'--node_rnk'; did you mean --node-rank\?"
run run -nn 2 true
check "but none is that close to a flag of a letter" refused "'-nn'; see lockstep help run"
run run --n 2 true
check "a hyphen too many is seen" refused "'--n'; did you mean -n\?"
run run --gpu true
check "a short word is not taken for another" refused "'--gpu'; see lockstep help run"
for flag in "-np 2" "--np 2" "--nproc-per-node 2" "--nproc_per_node=2"; do
  # shellcheck disable=SC2086 # words
  run run $flag "$examples/hello"
  check "$flag is -n 2" eval 'status_is 0 && out_lines 2'
done
run run --nproc_per_node=0 true
check "a flag is refused by the name that it was given" refused "--nproc-per-node '0'"
# shellcheck disable=SC2034 # `check` evaluates its use
n_cpus=$("$lockstep" info | sed -n 's/^cpus: *\([0-9]*\) usable.*/\1/p')
run run --nproc_per_node=cpu bash -c 'echo $WORLD_SIZE'
check "--nproc-per-node cpu is a rank per usable CPU" eval 'status_is 0 && out_lines $n_cpus && out_has "^$n_cpus$"'
export LOCKSTEP_CUDA_MODULE=/nowhere/module.so
run run --nproc-per-node auto bash -c 'echo $WORLD_SIZE'
check "auto is the same on a host without GPUs" eval 'status_is 0 && out_lines $n_cpus'
run run --nproc-per-node gpu true
check "gpu is refused there, with the reason" refused "--nproc-per-node gpu: .*/nowhere/module.so"
unset LOCKSTEP_CUDA_MODULE
run run --nproc-per-node all true
check "another word is refused" refused "--nproc-per-node 'all' is not a number from 1 to 1024, auto, cpu or gpu"
run run --hosts "$work/no-hosts" --nproc-per-node cpu true
check "and cpu, where it would count the CPUs of one host for all" refused "--nproc-per-node cpu counts on this host"
for flags in --standalone --nnodes=1 "--nnodes 1 --node-rank 0" "--standalone --nnodes=1" "--nnodes=1 --master_port=29500 -x HOME" \
  "--nnodes=1 --master_addr=127.0.0.1 --master_port=$((20000 + RANDOM % 10000))" "--standalone --master_addr=elsewhere"; do
  # shellcheck disable=SC2086 # words
  run run $flags -n 2 bash -c 'echo $WORLD_SIZE'
  check "$flags is this host" eval 'status_is 0 && out_lines 2 && out_has "^2$"'
done
for flags in --standalone "--nnodes=1 --master_addr=127.0.0.1 --master_port=29500"; do
  # shellcheck disable=SC2086 # words
  run run $flags -n 2 --threads "$examples/hello"
  check "$flags is where ranks may be threads" eval 'status_is 0 && out_lines 2'
done
run run --nnodes=1 --node_rank=1 -n 1 true
check "one host has no other index than 0" refused "--node-rank 1: --nnodes is 1"
run run --standalone --nnodes=2 -n 1 true
check "--standalone is not for several hosts" refused "--standalone is for one host, --nnodes for several"
run run --standalone --hosts "$work/no-hosts" true
check "also where a file names them" refused "--standalone is for one host, --hosts for several"
for option in --master_port=29500 --master_addr=a --node_rank=0 "-x HOME"; do
  # shellcheck disable=SC2086 # words
  run run -n 1 $option true
  name=${option%%[= ]*}
  check "$name alone is refused, and told how it means one host" \
    refused "${name//_/-} is for several hosts: --nnodes N or --hosts FILE is missing .--nnodes 1: one host."
done
for flags in "" --standalone --nnodes=1; do
  # shellcheck disable=SC2086 # words
  run run $flags --ssh false -n 1 true
  check "--ssh needs hosts to call (${flags:-no other flag})" refused "--ssh is for the hosts of --hosts FILE"
done
run run --nnodes=1:2 -n 1 true
check "a range of hosts is refused, with what to write" refused "for torchrun's MIN:MAX give MAX, and --min-ranks"
for flags in --rdzv-backend=c10d "--rdzv_endpoint localhost:0" --rdzv_id=7 --tee=3 --no_python "-m train" --monitor-interval; do
  # shellcheck disable=SC2086 # words
  run run --standalone -n 1 $flags true
  name=${flags%%[= ]*}
  check "$name is refused as torchrun's" refused "${name//_/-} is torchrun's: [a-z]"
done
run run --rdzv-id2=7 -n 1 true
check "and suggested for no other option" refused "unknown option '--rdzv-id2=7'; see lockstep help run"
run run --nnodes=2 -n 1 true
check "several hosts need the index" refused "--node-rank is missing: the index of this host among the 2"
for flag in --hosts --hostfile --machinefile; do
  run run $flag "$work/no-hosts" true
  check "$flag names the file of hosts" eval '! status_is 0 && err_lines 1 && err_has "$work/no-hosts: No such file"'
done
run run -n 1 --max_restarts=1 --log_dir "$work/logs_" bash -c 'exit $((1 - LOCKSTEP_GENERATION))'
check "underscores are hyphens" eval 'status_is 0 && [ -e "$work/logs_/rank-0.log" ] && err_has "generation 1 of 1 rank follows"'
run run --nnodes=2 --node_rank=2 --master_addr=localhost --master_port=1234 -n 1 true
check "also in the flags of several hosts" refused "--node-rank 2: --nnodes is 2"
run run -n 2 --timeout soon true
check "a timeout that is no number is refused" refused "--timeout 'soon'"
run run -n 2 --threads --prefix true
check "--prefix with --threads is refused" refused "--prefix needs ranks that are processes"
run run -n 3 ./no-such-program
check "a program that does not exist is one error, status 127" eval 'status_is 127 && err_lines 1 && err_has "^lockstep run: cannot start .\./no-such-program.: No such file or directory$"'
run run -n 3 --threads ./no-such-program
check "the same with --threads" eval 'status_is 127 && err_lines 1'
printf '#!/nowhere/python\n' >"$work/script"
chmod +x "$work/script"
run run -n 3 "$work/script"
check "one whose interpreter does not exist is said to be that" eval 'status_is 127 && err_lines 1 && err_has "cannot start .*script.: its interpreter .* does not exist"'
echo text >"$work/text"
run run -n 3 "$work/text"
check "a file that is not executable is status 126" eval 'status_is 126 && err_lines 1 && err_has "Permission denied"'
run run -n 2 --log-dir /proc/nowhere true
check "a log directory that cannot be made is named" eval '! status_is 0 && err_lines 1 && err_has "/proc/nowhere"'

run run -n 3 bash -c '[ $RANK = 1 ] || { sleep 0.4; exit 3; }'
check "a rank that ended early is named, others may have waited for it" eval 'status_is 3 && err_lines 1 && err_has "exited with status 3; before that rank 1 had ended with status 0$"'
run run -n 2 bash -c '[ $RANK = 1 ] || exit 3; trap "sleep 0.3; exit 0" TERM; while :; do sleep 0.05; done'
check "a rank that ended after the failure is not said to have ended before" eval 'status_is 3 && err_has "exited with status 3$"'

# --- the environment ---
run run -n 3 bash -c 'echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR ${#LOCKSTEP_JOB_KEY} $OMP_NUM_THREADS'
check "each rank finds who it is" eval 'status_is 0 && out_lines 3 && out_has "^0/3 0/3 127.0.0.1 64 1$" && out_has "^2/3 2/3 127.0.0.1 64 1$"'
run run -n 2 bash -c 'echo $MASTER_PORT $LOCKSTEP_JOB_KEY'
check "ranks share port and key" [ "$(sort -u "$work/out" | wc -l)" = 1 ]
cp "$work/out" "$work/first"
run run -n 2 bash -c 'echo $MASTER_PORT $LOCKSTEP_JOB_KEY'
check "another job has another key" eval '! grep -qF "$(head -1 "$work/first" | cut -d" " -f2)" "$work/out"'
run run -n 2 bash -c 'echo "$RANK ${LOCKSTEP_LISTENER_FD-unset} $(readlink /proc/self/fd/${LOCKSTEP_LISTENER_FD-none})"'
check "rank 0 alone is handed the socket of MASTER_PORT" eval 'out_has "^0 [0-9]+ socket:" && out_has "^1 unset $"'
OMP_NUM_THREADS=5 LOCKSTEP_JOB_KEY=abc RANK=9 LOCKSTEP_THREADS=4 TORCHELASTIC_USE_AGENT_STORE=True \
  run run -n 1 bash -c 'echo $OMP_NUM_THREADS $LOCKSTEP_JOB_KEY $RANK ${LOCKSTEP_THREADS-unset} ${TORCHELASTIC_USE_AGENT_STORE-unset}'
check "what the user set stays, what another launcher set goes" out_has '^5 abc 0 unset unset$'
OMP_NUM_THREADS='' LOCKSTEP_JOB_KEY='' run run -n 1 bash -c 'echo $OMP_NUM_THREADS ${#LOCKSTEP_JOB_KEY}'
check "what is empty counts as not set" out_has '^1 64$'
unset GLIBC_TUNABLES
run run -n $(($(nproc) + 1)) bash -c 'echo $GLIBC_TUNABLES'
check "ranks that share CPUs have no restartable sequences" eval 'status_is 0 && [ "$(sort -u "$work/out")" = glibc.pthread.rseq=0 ]'
GLIBC_TUNABLES=glibc.malloc.check=0 run run -n $(($(nproc) + 1)) bash -c 'echo $GLIBC_TUNABLES'
check "unless the user has set tunables" eval '[ "$(sort -u "$work/out")" = glibc.malloc.check=0 ]'
run run -n 1 bash -c 'echo ${GLIBC_TUNABLES-unset}'
check "a rank with a CPU of its own is left as it is" out_has '^unset$'
run run -n 4 --bind bash -c 'grep Cpus_allowed_list /proc/self/status'
check "--bind gives each rank one CPU" eval 'out_lines 4 && ! grep -qE "[-,]" "$work/out"'
echo input | "$lockstep" run -n 2 bash -c 'read -r line; echo "$RANK:$line"' >"$work/out" 2>"$work/err"
check "rank 0 reads standard input, the others do not" eval 'out_has "^0:input$" && out_has "^1:$"'
run run --nnodes=1 --master_addr=127.0.0.1 --master_port=$((20000 + RANDOM % 10000)) -n 1 readlink /proc/self/fd/0
check "over hosts rank 0 has none: its agent's holds the job's key" eval 'status_is 0 && out_has "^/dev/null$"'

echo 'far' >"$work/far"
run run --hosts "$work/far" --master-addr 127.0.0.1 --join-timeout 5 --ssh "false $(printf '%04096d' 0)" true
check "a remote shell that is too long is refused, not cut" eval '! status_is 0 && err_has "--ssh has over 4095 characters"'

# --- failures ---
run run -n 3 --grace 0.2 bash -c '[ $RANK = 1 ] && exit 3; sleep 60; : '"$marker"
check "a rank that exits with 3 is named, status 3" eval 'status_is 3 && err_lines 1 && err_has "^lockstep run: rank 1 \(pid [0-9]+ on .+\) exited with status 3$"'
check "and the others are gone" none_left
run run -n 3 "$build/tests/endings" slowly
check "so is one whose program has no lks_main, before those that then fail" eval 'status_is 5 && err_has "^lockstep run: rank 1 \(pid [0-9]+ on .+\) exited with status 5$"'
run run -n 3 --grace 0.2 bash -c '[ $RANK = 2 ] && kill -KILL $$; sleep 60; : '"$marker"
check "a killed rank is named with its signal, status 137" eval 'status_is 137 && err_lines 1 && err_has "^lockstep run: rank 2 \(pid [0-9]+ on .+\) was killed by SIGKILL$"'
check "and the others are gone, too" none_left
run run -n 2 --grace 3 bash -c '[ $RANK = 1 ] && exit 3; sleep 0.3; echo "rank 0 noticed"; exit 1'
check "survivors have time to report" eval 'status_is 3 && out_has "rank 0 noticed" && err_lines 1'
run run -n 2 --grace 0.1 bash -c 'trap "" TERM; [ $RANK = 1 ] && exit 3; for i in $(seq 600); do sleep 0.1; done; : '"$marker"
check "a survivor that ignores SIGTERM is killed" eval 'status_is 3 && none_left'

# One of four ranks ends before it meets the others. Rank LATE starts after the rest have given up. A rank that rank 0
# has met learns of it from rank 0.
ends_early() { # RANK TRANSPORT LATE: succeeds if all others named the rank in time
  local start=$EPOCHREALTIME
  LOCKSTEP_TRANSPORT=$2 run run -n 4 bash -c \
    "[ \$RANK = $1 ] && exit 3; [ \$RANK = $3 ] && sleep 0.4; exec $examples/sum_of_ranks"
  status_is 3 && err_has "^lockstep run: rank $1 \(pid [0-9]+ on .+\) exited with status 3$" &&
    [ "$(grep -cE "^lockstep: (rank 0 gave up: )?rank $1 \(.*pid [0-9]+.*\) (was lost|exited with status 3); lks_init" "$work/err")" = 3 ] &&
    below "$(awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { print b - a }')" 4.5
}
# Rank 0 is stopped. Rank 2 waits for it for a shorter time than the others, so they learn of its end first.
for transport in shm tcp; do
  LOCKSTEP_TRANSPORT=$transport run run -n 4 --grace 1 bash -c \
    "[ \$RANK = 0 ] && kill -STOP \$\$; [ \$RANK = 2 ] && export LOCKSTEP_TIMEOUT_MS=1000; exec $examples/sum_of_ranks"
  check "a rank that is stopped before it meets the others is named by all ($transport)" \
    eval 'status_is 1 && [ "$(grep -cE "^lockstep: .*rank 0 did not arrive" "$work/err")" = 3 ]'
  check "and by the launcher ($transport)" \
    eval 'err_has "^lockstep run: rank 2 .* exited with status 1; its error: lks_init: rank 0 did not arrive" && err_has "warning: rank 0 \(pid [0-9]+ on .+\), which is stopped, is killed"'
done
run run -n 3 bash -c "[ \$RANK = 1 ] || exec $examples/sum_of_ranks"
check "one that ends with status 0 is told, too" eval 'status_is 1 && [ "$(grep -cE "^lockstep: (rank 0 gave up: )?rank 1 \(pid [0-9]+ on .+\) has ended with status 0; lks_init" "$work/err")" = 2 ]'
for transport in shm tcp; do
  check "a rank that ends before it meets the others is named by all ($transport)" ends_early 1 $transport 3
  check "rank 0, too ($transport)" ends_early 0 $transport 3
  check "also where rank 0 is late ($transport)" ends_early 2 $transport 0
done
# shellcheck disable=SC2034 # read in the eval below
start=$SECONDS
run run -n 2 --timeout 0.5 bash -c 'sleep 60; : '"$marker"
check "the timeout ends all, status 124" eval 'status_is 124 && err_lines 1 && err_has "2 of 2 ranks had not ended after 0.5 s" && none_left && [ $((SECONDS - start)) -lt 10 ]'
run run -n 2 bash -c "(exec -a $marker sleep 60) & exit 0"
check "what a rank leaves running ends with it" eval 'status_is 0 && none_left'
run run -n 2 bash -c "setsid bash -c 'exec -a $marker sleep 60' & sleep 0.2; exit 0"
check "even in a session of its own" eval 'status_is 0 && none_left'

run run -n 2 --grace 0.2 python3 -c 'import os, sys, time
if os.environ["RANK"] == "0": os.setpgid(0, os.getpgid(os.getppid())); time.sleep(5); open(sys.argv[1], "w")
time.sleep(0.3); exit(3)' "$work/outlived"
check "a rank that has left its process group is ended, too" eval 'status_is 3 && [ ! -e "$work/outlived" ]'

# --- restarts ---
run run -n 3 --max-restarts 2 --grace 5 bash -c '[ $LOCKSTEP_GENERATION = 0 ] && { [ $RANK = 1 ] && kill -KILL $$; sleep 0.3; exit 1; }; echo "generation $LOCKSTEP_GENERATION $RANK/$WORLD_SIZE"'
check "after a killed rank the next generation runs" eval 'status_is 0 && out_lines 3 && out_has "^generation 1 2/3$"'
check "saying who was lost and what follows" eval 'err_lines 2 && err_has "rank 1 \(pid [0-9]+ on .+\) was killed by SIGKILL$" && err_has "^lockstep run: generation 1 of 3 ranks follows; restarts left: 1$"'
run run -n 2 --max-restarts 2 --grace 0.2 bash -c 'echo "$LOCKSTEP_GENERATION"; [ $RANK = 1 ] && exit 7; sleep 60; : '"$marker"
check "the last restart's failure is the run's" eval 'status_is 7 && [ "$(sort "$work/out" | uniq -c | tr -s " \n" " ")" = " 2 0 2 1 2 2 " ] && err_lines 5 && none_left'
run run -n 2 --max-restarts 3 --grace 0.2 bash -c 'exit 2'
check "a wrong command line is not tried again" eval 'status_is 2 && err_lines 1'
run run -n 2 --max-restarts 3 ./no-such-program
check "nor is a program that is not there" eval 'status_is 127 && err_lines 1'
run run -n 2 --max-restarts 3 --timeout 0.5 bash -c 'sleep 60; : '"$marker"
check "nor is one that ran out of time" eval 'status_is 124 && err_lines 1 && none_left'
run run -n 2 --max-restarts 1 bash -c 'echo $MASTER_PORT.$LOCKSTEP_GENERATION.$LOCKSTEP_GRAINS'
check "LOCKSTEP_GRAINS is not set unless asked for" eval 'status_is 0 && out_has "^[0-9]+[.]0[.]$"'
run run -n 2 --grains 4 bash -c 'echo $LOCKSTEP_GRAINS'
check "--grains is in the ranks' environment" eval 'status_is 0 && out_has "^4$"'
for grains in 0 6 2097152; do
  run run -n 2 --grains $grains true
  check "--grains $grains is refused" refused "--grains cannot be '$grains'; possible: powers of two, 1 to 1048576"
done
run run -n 2 --grains 1048576 true
check "--grains may be what the trainers take" status_is 0
run run -n 3 --grains 4 true
check "--grains that the ranks do not divide is refused" refused "--grains 4: -n 3 does not divide it"
run run -n 3 --min-ranks 4 true
check "more --min-ranks than ranks is refused" refused "--min-ranks 4: -n 3 is fewer"
run run -n 2 --max-restarts 1 --log-dir "$work/restarted" bash -c 'echo "in $LOCKSTEP_GENERATION"; exit $((RANK * (1 - LOCKSTEP_GENERATION)))'
check "logs go on in the next generation" eval 'status_is 0 && [ "$(cat "$work/restarted/rank-1.log")" = "$(printf "in 0\nin 1")" ]'
run run -n 1 --max-restarts 1 --log-dir "$work/torn" bash -c 'printf "in $LOCKSTEP_GENERATION"; exit $((1 - LOCKSTEP_GENERATION))'
check "after an incomplete line, too" eval 'status_is 0 && [ "$(cat "$work/torn/rank-0.log")" = "$(printf "in 0\nin 1")" ] && [ "$(wc -c <"$work/torn/rank-0.log")" = 9 ]'
run run -n 2 --max-restarts 1 bash -c 'kill -PIPE $$'
check "where nobody reads the output there is no next generation" eval 'status_is 141 && err_lines 1 && err_has "was killed by SIGPIPE"'
run run -n 2 --max-restarts 1 "$examples/sum_of_ranks"
check "ranks find each other in a run that may restart" eval 'status_is 0 && out_has "rank 1 has the sum 1"'

# --- signals ---
# start_job: starts two ranks, each with a child, which report that they have started and then wait
start_job() {
  rm -f "$work"/started.*
  set -m # background commands of a script ignore SIGINT, those of an interactive shell do not
  "$lockstep" run -n 2 "$@" bash -c "${handler:-} (exec -a $marker-child sleep 60) & : >$work/started.\$RANK; wait; : $marker" \
    >"$work/out" 2>"$work/err" &
  job=$!
  set +m
  eventually all_started 2
}
end_job() {
  wait "$job"
  status=$?
}
for signal in INT TERM HUP; do
  start_job
  kill -$signal "$job"
  end_job
  check "SIG$signal is forwarded" eval "status_is $((128 + $(kill -l $signal))) && err_lines 1 && err_has 'SIG$signal' && none_left"
done
start_job --max-restarts 5
kill -TERM "$job"
end_job
check "a run that is told to end is not started again" eval 'status_is 143 && err_lines 1 && none_left'
handler='trap "" TERM;'
start_job --grace 0.3
kill -TERM "$job"
end_job
check "ranks that do not end after a signal are killed when their time is over" eval 'status_is 137 && err_has "killed by SIGKILL, by this launcher, because it had not ended in time" && none_left'
handler=
states_are() { # STATE: of the launcher and its two ranks
  [ "$(ps -o stat= -p "$job,$(pgrep -d, -P "$job" bash)" | cut -c1 | tr -d '\n')" = "$1$1$1" ]
}
start_job --timeout 5
kill -TSTP "$job"
check "Ctrl-Z stops the ranks with the launcher" eventually states_are T
kill -CONT "$job"
check "and they go on with it" eventually states_are S
kill -TERM "$job"
end_job
check "to the end" eval 'status_is 143 && none_left'
# The job is stopped for as long as the timeout, before rank 1 fails.
# shellcheck disable=SC2016 # the ranks' shell expands it
handler='[ $LOCKSTEP_GENERATION = 0 ] || exec sleep 0.3; [ $RANK = 0 ] || { : >"'"$work"'/started.1"; until [ -e "'"$work"'/go" ]; do sleep 0.05; done; exit 1; };'
start_job --max-restarts 1 --grace 0.2 --timeout 3
kill -TSTP "$job"
eventually states_are T
sleep 3
: >"$work/go"
kill -CONT "$job"
end_job
check "the timeout of the next generation does not count the time either" eval 'status_is 0 && err_has "generation 1 of 2 ranks follows" && none_left'
handler=
echo 'localhost slots=2' >"$work/here"
forget_output
start_job --hosts "$work/here" --heartbeat-timeout 1
kill -TSTP "$job"
check "in a run over hosts Ctrl-Z is not obeyed, which a line says" eval 'eventually err_has "SIGTSTP .Ctrl-Z. does not stop a run over hosts" && sleep 2 && ! ps -o stat= -p "$job" | grep -q T'
kill -TERM "$job"
end_job
check "and the run goes on, until it is told to end" eval 'status_is 143 && err_lines 2 && err_has "ended by SIGTERM" && none_left'
handler='trap "exit 143" TERM;'
start_job
kill -TERM "$job"
end_job
check "ranks that end with the status of the signal have obeyed it" eval 'status_is 143 && err_has "ended by SIGTERM, which was forwarded" && none_left'
# shellcheck disable=SC2016 # the ranks' shell expands it
handler='trap "echo told" USR1; trap "echo told twice" USR2; : >"'"$work"'/started.$RANK"; until [ -e "'"$work"'/go" ]; do sleep 0.05; done; exit 0;'
for hosts in "" "--hosts $work/here"; do
  rm -f "$work/go"
  # shellcheck disable=SC2086 # words
  start_job $hosts
  kill -USR1 "$job"
  eventually eval '[ "$(grep -c told "$work/out")" = 2 ]'
  kill -USR2 "$job"
  eventually eval '[ "$(grep -c "told twice" "$work/out")" = 2 ]'
  : >"$work/go"
  end_job
  check "SIGUSR1 and SIGUSR2 are passed on, and the run goes on ${hosts:+(--hosts)}" eval 'status_is 0 && out_lines 4 && none_left'
done
handler='trap "echo caught; exit 0" INT;'
start_job
kill -INT "$job"
end_job
check "ranks that end in order after SIGINT are a success" eval 'status_is 0 && out_lines 2 && out_has caught && none_left'
handler='trap "" INT;'
start_job
kill -INT "$job"
sleep 0.7
kill -INT "$job"
end_job
check "a second SIGINT kills" eval 'status_is 137 && none_left'
handler='trap "sleep 0.3; echo saved; exit 143" TERM;'
start_job
kill -TERM "$job"
sleep 0.1
kill -TERM "$job"
end_job
check "one that follows at once is the same request" eval 'status_is 143 && [ "$(grep -c saved "$work/out")" = 2 ] && none_left'
timeout 1 "$lockstep" run -n 2 bash -c 'trap "sleep 0.3; echo saved; exit 143" TERM; sleep 60 & wait' >"$work/out" 2>"$work/err"
status=$?
check "timeout(1) signals twice and asks once" eval 'status_is 124 && [ "$(grep -c saved "$work/out")" = 2 ]'
run run -n 1 --timeout 1 --max-restarts 3 bash -c 'sleep 0.4; kill -KILL $$'
check "the timeout is that of all generations, and is named as such" eval 'status_is 124 && err_has "after 1 s, the timeout"'
handler=
start_job
disown "$job" # otherwise the shell reports its death
kill -KILL "$job"
check "ranks and their children die with a killed launcher" eventually none_left
handler="setsid bash -c 'exec -a $marker-child sleep 60' & "
start_job
disown "$job"
kill -KILL "$job"
check "even those in a session of their own" eventually none_left
handler=
for delay in 1 3 5 7 9 12 15 20 30 50; do # also while it starts
  "$lockstep" run -n 6 bash -c "(exec -a $marker-child sleep 60) & exec -a $marker sleep 60" &
  job=$!
  disown "$job"
  sleep "$(printf 0.%03d $delay)"
  kill -KILL "$job"
done
check "whenever it is killed" eventually none_left

# --- output ---
run run -n 2 --prefix bash -c 'echo "line $RANK"; echo "error $RANK" >&2; printf "no newline"'
check "--prefix tags each line" eval 'out_has "^\[0\] line 0$" && out_has "^\[1\] line 1$" && out_has "^\[1\] no newline$" && err_has "^\[0\] error 0$"'
run run -n 4 --prefix bash -c 'for i in $(seq 300); do printf "aaaa"; printf "bbbb\n"; done'
check "--prefix keeps lines whole" eval 'out_lines 1200 && [ "$(grep -cxE "\[[0-3]\] aaaabbbb" "$work/out")" = 1200 ]'
say_alike() { status_is 1 && [ "$(grep -cE "^$1LOCKSTEP_ALGORITHM: no operation" "$work/err")" = 2 ]; } # two ranks
for mode in "" --threads; do
  LOCKSTEP_ALGORITHM=frob run run -n 2 $mode "$examples/sum_of_ranks"
  check "ranks that fail alike say which they are ${mode:-as processes}" eval 'say_alike "lockstep: rank [01]: " &&
    err_has "^lockstep: rank 0: LOCKSTEP" && err_has "^lockstep: rank 1: LOCKSTEP"'
done
LOCKSTEP_ALGORITHM=frob run run -n 2 --prefix "$examples/sum_of_ranks"
check "where --prefix says it they do not" say_alike "\[[01]\] lockstep: "
LOCKSTEP_ALGORITHM=frob run run -n 1 "$examples/sum_of_ranks"
check "nor does the one rank of a world" err_has "^lockstep: LOCKSTEP_ALGORITHM"
run run -n 2 --log-dir "$work/deep/logs" bash -c 'echo "out $RANK"; echo "err $RANK" >&2'
check "--log-dir writes a file per rank, into directories that were not there" eval 'status_is 0 && out_lines 0 && [ "$(cat "$work/deep/logs/rank-1.log")" = "$(printf "out 1\nerr 1")" ]'
run run -n 2 --grace 0.2 --log-dir "$work/logs" bash -c '[ $RANK = 1 ] || sleep 60; seq 100; echo "no such data" >&2; exit 3'
check "a failure shows the last lines of a captured rank" eval 'status_is 3 && err_has "rank 1 .* exited with status 3; its last lines:" && err_has "^  \| no such data$" && err_lines 6'
run run -n 1 --log-dir "$work/logs" bash -c 'printf "a\0b\nfatal: "; (exec -a '$marker' sleep 60) & exit 3'
check "also if one is incomplete, kept open by a child, or has a NUL" eval 'err_lines 3 && err_has "^  \| a b$" && err_has "^  \| fatal: $" && none_left'
run run -n 1 --log-dir "$work/logs" bash -c 'head -c 3000000 /dev/zero | tr "\0" x'
check "a line without end is in the log as the rank wrote it" [ "$(wc -c <"$work/logs/rank-0.log")" = 3000000 ]
echo localhost >"$work/here"
run run --hosts "$work/here" bash -c 'head -c 3000000 /dev/zero | tr "\0" x'
check "with --hosts it comes out so, too, and is ended" eval 'status_is 0 && [ "$(wc -c <"$work/out")" = 3000001 ] && [ "$(wc -l <"$work/out")" = 1 ]'
run run -n 1 --prefix bash -c 'head -c 3000000 /dev/zero | tr "\0" x'
check "with --prefix its parts are lines" eval 'status_is 0 && [ "$(grep -cv "^\[0\] x*$" "$work/out")" = 0 ] && [ "$(tr -cd x <"$work/out" | wc -c)" = 3000000 ]'

"$lockstep" run -n 2 --prefix echo line >/dev/full 2>"$work/err"
status=$?
check "output that standard output does not take is lost, which is said once, status 1" \
  eval 'status_is 1 && err_lines 1 && err_has "^lockstep run: standard output cannot be written: No space left on device"'
"$lockstep" run -n 2 --prefix bash -c 'echo line; exit 3' >/dev/full 2>"$work/err"
status=$?
check "a failed rank's status goes first" status_is 3
ln -sf /dev/full "$work/logs/rank-1.log"
run run -n 2 --log-dir "$work/logs" echo line
check "so it is with a log" eval 'status_is 1 && err_lines 1 && err_has "the log of rank 1 cannot be written: No space" && [ "$(cat "$work/logs/rank-0.log")" = line ]'
port=$((20000 + RANDOM % 10000))
# shellcheck disable=SC2034 # `check` evaluates its use
statuses=$(for node in 0 1; do
  { "$lockstep" run -n 1 --nnodes 2 --node-rank $node --master-addr 127.0.0.1 --master-port $port --log-dir "$work/logs" echo line; echo $?; } &
done 2>"$work/err" | xargs)
check "and on all hosts of a run" eval '[ "$statuses" = "1 1" ] && err_has "the log of rank 1 cannot be written: No space"'
(trap "" PIPE; "$lockstep" run -n 2 --prefix seq 50000 2>"$work/err"; echo $? >"$work/status") | head -n 1 >"$work/out"
check "a reader that has had enough is no loss" eval '[ "$(cat "$work/status")" = 0 ] && out_lines 1 && ! grep -q lockstep "$work/err"'

# --- real ranks ---
for mode in "" --threads; do
  run run -n 4 $mode "$examples/hello"
  check "hello ${mode:-as processes}" eval 'status_is 0 && out_lines 4 && out_has "rank 3 of 4"'
  run run -n 2 $mode "$examples/send_recv"
  check "send_recv ${mode:-as processes}" eval 'status_is 0 && out_has "^rank 1 received 42 from rank 0"'
  run run -n 1 $mode "$examples/send_recv"
  check "send_recv of one rank says what it needs ${mode:-as processes}" eval 'status_is 1 && err_has "needs at least 2 ranks"'
  for n in 1 2 3 5 8; do
    run run -n $n $mode "$examples/sum_of_ranks"
    check "sum_of_ranks of $n ${mode:-as processes}" eval 'status_is 0 && out_lines $((n + 1)) && [ "$(grep -c " $((n * (n - 1) / 2))\$" "$work/out")" = $((n + 1)) ]'
  done
  run run -n 2 $mode "$examples/hello" --loud
  check "an example names an unknown argument, status 2 ${mode:-as processes}" eval "status_is 2 && err_has \"'--loud'\" && err_has 'rank [01] .* exited with status 2'"
done
"$lockstep" run -n 2 "$examples/hello" >/dev/full 2>"$work/err"
status=$?
check "a program whose output is lost fails" eval 'status_is 1 && err_has "^lockstep: rank [01]: standard output: "'
"$examples/hello" >"$work/out" 2>"$work/err"
check "a program without a launcher is a world of one" out_has 'rank 0 of 1 '

# --- rank threads: the end of one is the end of all ---
run run -n 3 --threads "$build/tests/endings" exit
check "a rank thread that calls exit(0) is named" eval 'status_is 1 && err_lines 1 && err_has "rank 1 called exit"'
run run -n 3 --threads "$build/tests/endings" _exit
check "one that calls _exit(0) is no success" eval 'status_is 1 && err_lines 1 && err_has "the process of 3 rank threads .* exited with status 0: one of them ended it before all had returned"'
run run -n 2 --threads "$build/tests/endings" handled
check "its own handler runs for a fault" eval 'status_is 77 && out_has "^the program.s handler ran$"'
run run -n 2 --threads "$build/tests/endings" raised
check "a fault without one ends the process, or is a sanitizer's" eval '(status_is 139 && err_has "was killed by SIGSEGV") || err_has "SUMMARY: .*Sanitizer: SEGV"'
run run -n 3 --threads "$build/tests/endings"
check "ranks that return are a success" eval 'status_is 0 && err_lines 0'
for when in now later; do # the work of the later one leaks, which LeakSanitizer finds
  run run -n 2 "$build/tests/endings" wrong $when
  check "an error that the program ignores is told when it destroys the group ($when)" \
    eval '{ status_is 0 || err_has LeakSanitizer; } && [ "$(grep -c "a group is destroyed after an error that the program has not looked at.*rank 0 called all_reduce(count 1, .* rank 1 called all_reduce(count 2, " "$work/err")" = 2 ]'
done

# --- what would wait forever, or die of a signal ---
mkdir "$work/fifos"
mkfifo "$work/fifos/rank-0.log"
run run -n 2 --log-dir "$work/fifos" true
check "a log that is a FIFO nobody reads is refused" eval 'err_lines 1 && err_has "rank-0.log: a FIFO that nobody reads" && ! status_is 0'
(ulimit -f 100; "$lockstep" run -n 2 --log-dir "$work/small" head -c 400000 /dev/zero) >"$work/out" 2>"$work/err"
status=$?
check "a log beyond the limit on files is an error" eval 'status_is 1 && err_lines 2 && err_has "the log of rank 1 cannot be written: File too large"'
# Descriptors run out at the start: first for connections that rank 0 accepts there, then for those that it makes and
# accepts afterwards. Rank 0's own line names whom it waits for. The ranks that it had let in know the reason.
for limit in 12 20 30 36 44 60; do
  start=$SECONDS
  (ulimit -n $limit; LOCKSTEP_TRANSPORT=tcp exec "$lockstep" run -n 24 "$examples/hello") >"$work/out" 2>"$work/err"
  status=$?
  check "ranks over TCP with $limit descriptors each end at once, and say so" \
    eval 'status_is 1 && err_has "rank.*: the limit is $limit, and ulimit -n raises it" && [ $((SECONDS - start)) -lt 15 ]'
done
printf 'a slots=1\nb slots=1\n' >"$work/hosts"
printf '#!/bin/bash\n[ $1 = b ] && exec -a %s sleep 77 | cat\nexec bash -c "${*:2}"\n' "$marker" >"$work/wrapper"
chmod +x "$work/wrapper"
run run --hosts "$work/hosts" --join-timeout 1 --master-addr 127.0.0.1 --ssh "$work/wrapper" true
check "a remote shell that hangs is named, and ended with what it has started" eval 'status_is 1 && err_lines 1 && err_has "host b did not join the run .* within 1 s" && none_left'

# --- by hand, as under torchrun ---
port=$((20000 + RANDOM % 20000))
by_hand() { env RANK=$1 WORLD_SIZE=2 LOCAL_RANK=$1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port "$examples/sum_of_ranks"; }
rm "$work/out" "$work/err"
by_hand 0 >>"$work/out" 2>>"$work/err" &
by_hand 1 >>"$work/out" 2>>"$work/err" || true
wait $!
status=$?
check "ranks can be started by hand with the environment variables" eval 'status_is 0 && out_has "rank 0 has the sum 1" && out_has "rank 1 has the sum 1"'

inner='[ $RANK = 0 ] || exit 0; sleep 1; export MASTER_PORT=$0
RANK=1 "$1" & RANK=0 "$1" && wait $!'
run run -n 2 bash -c "$inner" $port "$examples/sum_of_ranks"
check "also by a rank, whose own world has lost one" eval 'status_is 0 && out_has "rank 0 has the sum 1" && out_has "rank 1 has the sum 1"'

# --- leftovers ---
check "no process is left" none_left
check "nothing is left in /dev/shm" eventually nothing_new_in_shm
exit $((n_failed > 0))

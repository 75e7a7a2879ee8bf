#!/usr/bin/env bash
# labels: no-asan
# A training run that loses a rank, an agent or a host's link at a random moment ends with the bits of an undisturbed
# run. Usage: test_survive.sh BUILD_DIR. LOCKSTEP_SOAK=N: number of losses (5). LOCKSTEP_SOAK_SEED=N: seed of the
# moments. Needs root, iproute2 and openssh-server, and is skipped without them.
set -u
. tests/system/common.sh
# shellcheck source=tools/hosts.sh
. tools/hosts.sh
n_losses=${LOCKSTEP_SOAK:-5}
RANDOM=${LOCKSTEP_SOAK_SEED:-1}
touch "$work/out" "$work/err"
clean_up() {
  hosts_remove
  rm -rf "$work"
}
trap clean_up EXIT
cifar=${LOCKSTEP_DATA:-${XDG_CACHE_HOME:-$HOME/.cache}/lockstep/data}/cifar-10-batches-bin
{ hosts_make 10gbit 3 && hosts_ssh; } >"$work/why" 2>&1 || {
  echo "skipped: $(cat "$work/why")"
  exit 77
}
printf 'host-a slots=2\nhost-b slots=2\n' >"$work/hosts"

# Without CIFAR-10, noise of its shape is used: the test compares bits, not accuracy.
[ -d "$cifar" ] || {
  cifar=$work/cifar
  mkdir "$cifar"
  python3 -c '
import random, sys
random.seed(1)
for name in ["test_batch"] + ["data_batch_%d" % i for i in range(1, 6)]:
    images = bytearray(random.randbytes(10000 * 3073))
    images[::3073] = bytes(i % 10 for i in range(10000))
    open("%s/%s.bin" % (sys.argv[1], name), "wb").write(images)' "$cifar"
}

now_ms() { date +%s%3N; }
start_run() { # four ranks on host-a and host-b, two if one host is lost; the head is on host-c
  rm -rf "$work/run" "$work/summary"
  begun_ms=$(now_ms)
  (host_run 2 "$lockstep" run --hosts "$work/hosts" --ssh "$hosts_ssh" --grains 4 --min-ranks 2 --max-restarts 3 --heartbeat-timeout 2 \
    --grace 2 "$build/examples/resnet9" --data "$cifar" --steps 200 --batch 32 --run "$work/run" --checkpoint-every 10 --quiet \
    --summary "$work/summary") >"$work/out" 2>"$work/err" </dev/null &
  job=$!
}
end_run() {
  wait "$job"
  status=$?
  wall_ms=$(($(now_ms) - begun_ms))
  host_plug 0
  host_plug 1
}

pids_on() { # HOST TEXT: its processes with TEXT in their command line, oldest first
  ip netns pids "$1" | xargs -r ps -o pid=,args= -p | awk -v wanted="$2" 'index($0, wanted) { print $1 }' | sort -n
}
# PATTERN N: kills one of the first N processes (1 or 2) that match PATTERN, on a random host.
kill_one_of() {
  local pids
  mapfile -t pids < <(pids_on "${hosts[RANDOM % 2]}" "$1")
  [ ${#pids[@]} = 0 ] || kill -KILL "${pids[RANDOM % $2 % ${#pids[@]}]}" 2>/dev/null
}
# A host that is unreachable from the start is an error of the command. Once a rank runs, all hosts have joined.
unplug_one() {
  local ranks
  ranks=$(pids_on "${hosts[0]}" "$build/examples/resnet9")
  [ -z "$ranks" ] || host_unplug $((RANDOM % 2))
}
lose() { # KIND
  case $1 in
    rank) kill_one_of "$build/examples/resnet9" 2 ;;
    agent) kill_one_of "$lockstep run --agent" 1 ;; # the second is its guard
    link) unplug_one ;;
  esac
}

start_run
end_run
undisturbed=$(value "$work/summary" params_sha256)
undisturbed_ms=$wall_ms
check "a run that is left alone ends" [ "$status/${#undisturbed}" = 0/64 ]

n_restarted=0
declare -A n_of=([rank]=0 [agent]=0 [link]=0) lost_ms_of=([rank]=0 [agent]=0 [link]=0) most_ms_of=([rank]=0 [agent]=0 [link]=0)
kinds=(rank agent rank agent link)
for ((i = 0; i < n_losses; i++)); do
  kind=${kinds[i % 5]}
  delay_ms=$((undisturbed_ms * (10 + RANDOM % 80) / 100))
  start_run
  sleep "$(printf '%d.%03d' $((delay_ms / 1000)) $((delay_ms % 1000)))"
  lose $kind
  end_run
  check "$((i + 1)) $kind lost after $delay_ms ms: the run ends, with the bits of the one that was left alone" \
    eval '[ "$status" = 0 ] && same "$(value "$work/summary" params_sha256)" "$undisturbed"'
  if grep -q "generation 1 of . ranks follows" "$work/err"; then
    n_restarted=$((n_restarted + 1))
  elif [ $wall_ms -lt $undisturbed_ms ]; then
    undisturbed_ms=$wall_ms # the loss came too late: the machine is now faster than in the undisturbed run
  fi
  lost_ms=$((wall_ms - undisturbed_ms))
  n_of[$kind]=$((n_of[$kind] + 1))
  lost_ms_of[$kind]=$((lost_ms_of[$kind] + lost_ms))
  [ $lost_ms -le "${most_ms_of[$kind]}" ] || most_ms_of[$kind]=$lost_ms
done
printf '%-6s %6s %14s %14s   (an undisturbed run: %d ms)\n' lost times 'mean cost/ms' 'most/ms' "$undisturbed_ms"
for kind in rank agent link; do
  [ "${n_of[$kind]}" = 0 ] ||
    printf '%-6s %6d %14d %14d\n' $kind "${n_of[$kind]}" $((lost_ms_of[$kind] / n_of[$kind])) "${most_ms_of[$kind]}"
done
echo "$n_restarted of $n_losses runs had to start again"
check "most losses cost a restart" [ $((2 * n_restarted)) -gt "$n_losses" ]
exit $((n_failed > 0))

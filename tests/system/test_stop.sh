#!/usr/bin/env bash
# Requests to end a run over hosts that arrive from several sides: together they count as one. A second request of the
# same user ends the run at once. The hosts are two agents on this host. Usage: test_stop.sh BUILD_DIR
set -u
. tests/system/common.sh
port=29617
export LOCKSTEP_JOB_KEY=test-stop
# Ends in order within 1.2 s and ignores further signals meanwhile.
# shellcheck disable=SC2016 # the ranks' shell expands it
saver='trap "trap : TERM INT; for i in 1 2 3 4 5 6; do sleep 0.2; done; echo saved; exit 143" TERM INT; : >"$0.$RANK"; while :; do sleep 0.05; done'

# start_hosts OPTIONS...: starts nodes 0 and 1 as $jobs, and waits until both have a running rank
start_hosts() {
  rm -f "$work"/rank.*
  jobs=()
  for node in 0 1; do
    set -m # otherwise SIGINT is ignored
    "$lockstep" run --nnodes 2 --node-rank $node --master-addr 127.0.0.1 --master-port $port -n 1 "$@" bash -c "$saver" "$work/rank" \
      >"$work/out.$node" 2>"$work/err.$node" &
    jobs+=($!)
    set +m
  done
  for _ in $(seq 200); do
    [ -e "$work/rank.0" ] && [ -e "$work/rank.1" ] && return
    sleep 0.05
  done
}
end_hosts() {
  begun=$(date +%s%3N)
  statuses=()
  for job in "${jobs[@]}"; do
    wait "$job"
    statuses+=($?)
  done
  took_ms=$(($(date +%s%3N) - begun))
  cat "$work"/out.? >"$work/out"
  cat "$work"/err.? >"$work/err"
}
was_quick() { [ "$took_ms" -lt 5000 ]; }
n_saved_is() { [ "$(grep -c saved "$work/out")" = "$1" ]; }

start_hosts
kill -TERM "${jobs[@]}"
end_hosts
check "SIGTERM to all hosts at once is one request" eval '[ "${statuses[*]}" = "143 143" ] && n_saved_is 2'
start_hosts
kill -TERM "${jobs[0]}"
sleep 0.8
kill -TERM "${jobs[1]}"
end_hosts
check "and so it is where they get it one after the other" eval '[ "${statuses[*]}" = "143 143" ] && n_saved_is 2'
for asked in 0 1; do
  start_hosts
  kill -INT "${jobs[asked]}"
  sleep 0.7
  kill -INT "${jobs[asked]}"
  end_hosts
  check "a second SIGINT to host $asked ends the ranks everywhere" eval 'n_saved_is 0 && was_quick'
done

# A remote shell that hangs.
printf '#!/bin/sh\nexec sleep 60\n' >"$work/ssh"
chmod +x "$work/ssh"
echo far >"$work/hosts"
set -m
"$lockstep" run --hosts "$work/hosts" --master-addr 127.0.0.1 --ssh "$work/ssh" true >"$work/out.0" 2>"$work/err.0" &
jobs=($!)
set +m
sleep 1
kill -INT "${jobs[0]}"
sleep 0.7
kill -INT "${jobs[0]}"
end_hosts
check "a second SIGINT does not wait for a host that does not answer" eval '[ ${statuses[0]} = 130 ] && was_quick && grep -q "ended by SIGINT" "$work/err"'
exit $((n_failed > 0))

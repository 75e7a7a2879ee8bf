#!/usr/bin/env bash
# labels: no-asan
# lockstep run over hosts: three network namespaces, each with an sshd. With --nnodes, like torchrun, and with --hosts
# over ssh.
# Usage: test_launch_hosts.sh BUILD_DIR. Needs root, iproute2 and openssh-server, and is skipped without them.
set -u
. tests/system/common.sh
# shellcheck source=tools/hosts.sh
. tools/hosts.sh
marker=lockstep-hosts-$$ # in the arguments of every process that must end
touch "$work/out" "$work/err"

clean_up() {
  pkill -KILL -f "$marker"
  hosts_remove
  rm -rf "$work"
}
trap clean_up EXIT
{ hosts_make 1gbit 3 && hosts_ssh; } >"$work/why" 2>&1 || {
  echo "skipped: $(cat "$work/why")"
  exit 77
}
cat "$work/why"

none_left() {
  local host
  for host in "${hosts[@]}"; do
    ip netns pids "$host" | xargs -r ps -o comm= -p | grep -vq "^sshd" && return 1
  done
  ! pgrep -f "$marker" >/dev/null
}
port=29417

# Runs in the background during the other tests, because it is slow.
printf 'a slots=1\nb slots=1\n' >"$work/slow_hosts"
printf '#!/bin/bash\n[ $1 = b ] && sleep 33\nexec bash -c "${*:2}"\n' >"$work/slow_ssh"
chmod +x "$work/slow_ssh"
"$lockstep" run --hosts "$work/slow_hosts" --join-timeout 60 --master-addr 127.0.0.1 --ssh "$work/slow_ssh" \
  bash -c 'echo "rank $RANK of $WORLD_SIZE"' >"$work/slow_out" 2>&1 </dev/null &
slow_job=$!

# node INDEX OPTIONS...: `lockstep run` as node INDEX of --nnodes 2, with two ranks each; output in out.INDEX and
# err.INDEX
node() {
  local index=$1
  shift
  : >"$work/out.$index" && : >"$work/err.$index" # as forget_output
  (host_run "$index" "$lockstep" run -n 2 --nnodes 2 --node-rank "$index" --master-addr 10.77.0.1 --master-port $port "$@") \
    >"$work/out.$index" 2>"$work/err.$index" </dev/null &
  node_pids[index]=$!
}
end_nodes() { # exit statuses in $status0 and $status1; all output in $work/out and $work/err
  wait "${node_pids[0]}"
  status0=$?
  wait "${node_pids[1]}"
  status1=$?
  cat "$work"/out.[01] >"$work/out"
  cat "$work"/err.[01] >"$work/err"
}
statuses_are() { [ "$status0/$status1" = "$1" ]; }
on_both_says() { grep -qE -- "$1" "$work/err.0" && grep -qE -- "$1" "$work/err.1"; }
from_c() { # OPTIONS...: `lockstep run --hosts` on the third host, which has no ranks
  (host_run 2 "$lockstep" run --ssh "$hosts_ssh" "$@") >"$work/out" 2>"$work/err" </dev/null
  status=$?
}
both_nodes() {
  node 0 "$@"
  node 1 "$@"
  end_nodes
}

# --- the same bits wherever it runs ---
train=("$build/examples/mnist" --grains 4 --steps 30 --quiet)
run "$lockstep" run -n 4 "${train[@]}" --summary "$work/one"
node 0 "${train[@]}"
LOCKSTEP_JOB_KEY='' node 1 --join-timeout 3 "${train[@]}"
end_nodes
check "without a job key a run across hosts is refused" eval 'statuses_are 1/1 && on_both_says "needs LOCKSTEP_JOB_KEY"'
export LOCKSTEP_JOB_KEY=the-secret-of-this-test
node 0 "${train[@]}" --summary "$work/nodes"
node 1 "${train[@]}" --summary "$work/nodes"
end_nodes
check "--nnodes 2: mnist trains" statuses_are 0/0
check "to the bits of one host" same "$(value "$work/one" params_sha256)" "$(value "$work/nodes" params_sha256)"
check "over tcp" same "$(value "$work/nodes" transport)" tcp
unset LOCKSTEP_JOB_KEY
printf '# two of three\nhost-a slots=2\n10.77.0.2   slots = 2  # and no more\n' >"$work/hosts"
from_c --hosts "$work/hosts" "${train[@]}" --summary "$work/ssh"
check "--hosts over ssh, with a new key: mnist trains" status_is 0
check "to the bits of one host, too" same "$(value "$work/one" params_sha256)" "$(value "$work/ssh" params_sha256)"

# --- the ranks' environment and output ---
show='echo "$RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $(hostname) $MASTER_ADDR $MY_OWN"; echo to-stderr >&2'
MY_OWN=mine from_c --hosts "$work/hosts" --prefix -x MY_OWN --log-dir "$work/logs" bash -c "$show"
check "output of ranks elsewhere comes here, with the rank before it" \
  eval 'status_is 0 && out_has "^\[0\] 0/4 0/2 host-a 10.77.0.1 mine$" && out_has "^\[3\] 3/4 1/2 host-b 10.77.0.1 mine$" && err_has "^\[2\] to-stderr$"'
check "and into a log per rank" grep -q "^3/4 " "$work/logs/rank-3.log"
printf 'root@127.0.1.1\n10.77.0.1\n' >"$work/first_here"
from_c --hosts "$work/first_here" --join-timeout 10 bash -c 'echo "$RANK/$WORLD_SIZE $(hostname) $MASTER_ADDR"'
check "this machine under another name comes first: the head listens where the others reach it" \
  eval 'status_is 0 && out_has "^0/2 host-c 10.77.0.3$" && out_has "^1/2 host-a 10.77.0.3$"'
printf '10.77.0.1\n10.77.0.2\n' >"$work/one_each"
from_c --hosts "$work/one_each" bash -c 'for i in $(seq 3000); do printf "aaaa"; printf "bbbb\n"; done'
check "lines of several hosts stay whole" eval '[ "$(grep -cx aaaabbbb "$work/out")" = 6000 ]'
# shellcheck disable=SC2016
from_c --hosts "$work/one_each" bash -c 'printf "result $RANK"'
check "an incomplete one is not continued by another host" eval '[ "$(sort "$work/out")" = "$(printf "result 0\nresult 1")" ]'
# shellcheck disable=SC2016
from_c --hosts "$work/hosts" bash -c '! tr "\0" "\n" </proc/$PPID/environ | grep -q ^LOCKSTEP_JOB_KEY= && ! ps -eo args | grep -q "[r]un.*$LOCKSTEP_JOB_KEY"'
check "the key is in no command line, and not in the environment that an agent was started with" status_is 0

# --- failures ---
export LOCKSTEP_JOB_KEY=the-secret-of-this-test
both_nodes --grace 1 bash -c '[ $RANK = 3 ] && exit 7; exec -a '"$marker"' sleep 60'
check "a rank that fails is named on both hosts, and its status is that of both" \
  eval 'statuses_are 7/7 && on_both_says "rank 3 \(pid [0-9]+ on host-b\) exited with status 7"'
named_by_all() { # RANK HOST
  [ "$(grep -cE "^lockstep: rank $1 \(.*(pid [0-9]+ on $2\) exited with status 7|host $2, pid [0-9]+\) was lost); lks_init" "$work/err")" = 3 ]
}
for lost in "3 host-b 1" "0 host-a 3"; do
  read -r rank host late <<<"$lost"
  both_nodes bash -c "[ \$RANK = $rank ] && exit 7; [ \$RANK = $late ] && sleep 0.5; exec $build/examples/sum_of_ranks"
  check "rank $rank, which ends before it meets the others, is named by all, on both" eval 'statuses_are 7/7 && named_by_all "$rank" "$host"'
done
both_nodes --grace 1 bash -c \
  "[ \$RANK = 0 ] && kill -STOP \$\$; [ \$RANK = 2 ] && export LOCKSTEP_TIMEOUT_MS=2000; exec $build/examples/sum_of_ranks"
check "a rank that is stopped before it meets the others is named by all, on both" eval 'statuses_are 1/1 &&
  [ "$(grep -cE "^lockstep: .*rank 0 did not arrive" "$work/err")" = 3 ] &&
  on_both_says "^lockstep run: rank 2 \(pid [0-9]+ on host-b\) exited with status 1; its error: .*rank 0 did not arrive" &&
  grep -qE "warning: rank 0 \(pid [0-9]+ on host-a\), which is stopped, is killed" "$work/err.0"'
from_c --hosts "$work/hosts" --grace 1 --log-dir "$work/logs" bash -c '[ $RANK = 2 ] && { echo "no such data" >&2; kill -KILL $$; }; exec -a '"$marker"' sleep 60'
check "over ssh, too, with its last lines" eval 'status_is 137 && err_has "rank 2 .* on host-b. was killed by SIGKILL; its last lines:" && err_has "  . no such data"'
check "and nothing is left on either" eventually none_left
printf '10.77.0.1\nno-such-host\n' >"$work/unknown"
from_c --hosts "$work/unknown" bash -c "exec -a $marker sleep 60"
check "an unknown host is named with ssh's words" eval 'status_is 1 && err_has "host no-such-host cannot take part: .*Could not resolve" && eventually none_left'
(host_run 2 "$lockstep" run --hosts "$work/hosts" --ssh "ssh -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null" true) >"$work/out" 2>"$work/err"
status=$?
check "so is one whose sshd refuses us" eval 'status_is 1 && err_has "host (host-a|10.77.0.2) cannot take part: .*Permission denied" && eventually none_left'
printf '10.77.0.1 slots=2\n10.77.0.2 slots=many\n' >"$work/bad"
from_c --hosts "$work/bad" true
check "a bad line of the hosts file is named" eval 'status_is 1 && err_has "/bad:2: slots=N was expected"'
host_run 0 python3 -c 'import socket, time; s = socket.create_server(("10.77.0.1", 29417)); time.sleep(60)' "$marker" &
disown
port_is_taken() { ip netns exec "${hosts[0]}" ss -ltn | grep -q :29417; }
eventually port_is_taken
node 0 --join-timeout 5 true
wait "${node_pids[0]}"
check "a port in use is named" grep -q "10.77.0.1:29417.*in use.*--master-port" "$work/err.0"
pkill -KILL -f "$marker"
node 0 --join-timeout 1 true
wait "${node_pids[0]}"
check "of two hosts the one that is missing is named" grep -q "node 1 did not join the run at 10.77.0.1:29417 within 1 s" "$work/err.0"
node 0 --join-timeout 2 true
LOCKSTEP_JOB_KEY=another node 1 --join-timeout 2 true
end_nodes
check "a wrong key is said on both" eval 'statuses_are 1/1 && on_both_says "knows another LOCKSTEP_JOB_KEY"'
node 0 --join-timeout 5 true
node 1 --nnodes 3 --join-timeout 5 true
end_nodes
check "another --nnodes is said on both" eval 'statuses_are 1/1 && on_both_says "node 1 .host host-b. has --nnodes 3, node 0 has 2"'

# --- restarts ---
both_nodes --max-restarts 1 bash -c '[ $LOCKSTEP_GENERATION = 1 ] || { [ $RANK = 2 ] && kill -KILL $$; sleep 60; }; echo "$LOCKSTEP_GENERATION $RANK/$WORLD_SIZE"'
check "after a killed rank all hosts go on" eval 'statuses_are 0/0 && [ "$(grep -c "^1 ./4$" "$work/out")" = 4 ] && on_both_says "generation 1 of 4 ranks follows; restarts left: 0"'
# The ranks end in order on request. Those of the third generation end by themselves.
stay='trap "exit 143" TERM; echo "$LOCKSTEP_GENERATION $RANK/$WORLD_SIZE"; [ $LOCKSTEP_GENERATION = 2 ] || while :; do sleep 0.1; done; : '"$marker"
generation_is() { [ "$(cat "$work"/out.* | grep -c "^$1 ./$2$")" = "$2" ]; }
elastic=(--max-restarts 1 --min-ranks 2 --grains 4 --heartbeat-timeout 2)
node 0 "${elastic[@]}" bash -c "$stay"
node 1 "${elastic[@]}" bash -c "$stay"
eventually generation_is 0 4
host_unplug 1
check "a host that is cut off is lost, the others go on with fewer" eventually generation_is 1 2
wait "${node_pids[1]}"
check "and it ends by itself" eval 'grep -q "head of the run at 10.77.0.1 port 29417 was lost: it has been silent for 2 s" "$work/err.1"'
check "the loss is named" grep -q "node 1 .host host-b. was lost: it has been silent for 2 s .ranks 2 to 3." "$work/err.0"
host_plug 1
node 1 "${elastic[@]}" bash -c "$stay"
check "when it comes back all its ranks take part again" eventually generation_is 2 4
end_nodes
check "which is no restart" statuses_are 0/0

# shellcheck disable=SC2016
last_words='[ $LOCKSTEP_GENERATION = 1 ] || { [ $RANK = 3 ] && { seq 200000; echo "last words"; kill -KILL $PPID; }; sleep 60; }'
from_c --hosts "$work/hosts" --grace 1 --max-restarts 1 bash -c "$last_words"
check "what ranks wrote before their agent died arrives" \
  eval 'status_is 0 && [ "$(wc -l <"$work/out")" = 200001 ] && out_has "^last words$" && err_has "host 10.77.0.2 was lost: it ended the connection"'

# A lost host comes back after the others have started without it.
cat >"$work/late_ssh" <<END
[ "\$1" != host-a ] || { [ ! -e "$work/was_called" ] || sleep 11; touch "$work/was_called"; }
exec $hosts_ssh "\$@"
END
printf 'host-a slots=2\nhost-b slots=2\n' >"$work/hosts"
where='trap "exit 143" TERM; echo "$LOCKSTEP_GENERATION $RANK $(hostname)"; [ $LOCKSTEP_GENERATION = 2 ] || while :; do sleep 0.1; done; : '"$marker"
forget_output
(host_run 2 "$lockstep" run --ssh "sh $work/late_ssh" --hosts "$work/hosts" "${elastic[@]}" --grace 1 bash -c "$where") >"$work/out" 2>"$work/err" </dev/null &
job=$!
all_have_begun() { [ "$(grep -c "^0 . host-" "$work/out")" = 4 ]; }
eventually all_have_begun
host_unplug 0
eventually grep -q "host-a was lost" "$work/err"
host_plug 0
wait $job
status=$?
check "output that a host cut off still had is said to be lost" err_has "output of host host-a that has not arrived is lost"
check "rank 0 moves with the loss of its host" eval 'status_is 0 && out_has "^0 0 host-a$" && out_has "^1 0 host-b$"'
check "and does not go back to it, where older checkpoints are" eval 'out_has "^2 0 host-b$" && out_has "^2 2 host-a$"'

# The host with all ranks is cut off, and its ranks end slowly. No other host has ranks to wait for.
cat >"$work/failing_ssh" <<END
[ "\$1" != host-a ] || { [ ! -e "$work/was_called_once" ] || exit 255; touch "$work/was_called_once"; }
exec $hosts_ssh "\$@"
END
hold='trap "" TERM; exec 9>"'$work'/held"; [ $RANK = 1 ] || flock -n 9 || exit 1; echo "$LOCKSTEP_GENERATION $RANK $(hostname)"
[ $LOCKSTEP_GENERATION = 1 ] || while :; do sleep 0.1; done; : '"$marker"
forget_output
(host_run 2 "$lockstep" run --ssh "sh $work/failing_ssh" --hosts "$work/hosts" -n 2 "${elastic[@]}" bash -c "$hold") >"$work/out" 2>"$work/err" </dev/null &
job=$!
both_have_begun() { [ "$(grep -c "^0 . host-a" "$work/out")" = 2 ]; }
eventually both_have_begun
host_unplug 0
wait $job
status=$?
host_plug 0
check "the next generation waits for the end of ranks that are cut off" eval 'status_is 0 && out_has "^1 0 host-b$" && out_has "^1 1 host-b$" && eventually none_left'

# --- leftovers ---
node 0 bash -c "exec -a $marker sleep 60"
node 1 bash -c "exec -a $marker sleep 60"
all_sleep() { [ "$(pgrep -cf "^$marker")" = 4 ]; }
eventually all_sleep
kill -TERM "${node_pids[1]}"
end_nodes
check "a signal to one host ends all" eval 'statuses_are 143/143 && on_both_says "ended by SIGTERM" && none_left'
node 0 bash -c "exec -a $marker sleep 60"
node 1 bash -c "exec -a $marker sleep 60"
eventually all_sleep
disown "${node_pids[0]}"
kill -KILL "${node_pids[0]}"
wait "${node_pids[1]}"
check "without a head its hosts end and say so" grep -q "the head of the run at 10.77.0.1 port 29417 was lost: it ended the connection" "$work/err.1"
check "nothing is left then" eventually none_left
(host_run 2 "$lockstep" run --ssh "$hosts_ssh" --hosts "$work/hosts" bash -c "exec -a $marker sleep 60") >"$work/out" 2>"$work/err" </dev/null &
job=$!
disown
eventually all_sleep
kill -KILL $job
check "nor after the death of a launcher whose hosts are reached by ssh" eventually none_left
wait $slow_job
status=$?
check "a host that is slow to log in to is waited for" eval 'status_is 0 && grep -q "^rank 0 of 2$" "$work/slow_out" && grep -q "^rank 1 of 2$" "$work/slow_out"'
exit $((n_failed > 0))

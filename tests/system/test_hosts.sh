#!/usr/bin/env bash
# labels: busy no-asan
# Ranks on several hosts: two network namespaces, joined by a link of 1 Gbit/s, with two ranks each.
# Usage: test_hosts.sh BUILD_DIR. Needs root and iproute2, and is skipped without them.
set -u
build=$1
work=$(mktemp -d)
n_failed=0
# shellcheck source=tools/hosts.sh
. tools/hosts.sh

clean_up() {
  hosts_remove
  rm -rf "$work"
}
trap clean_up EXIT
hosts_make 1gbit >"$work/why" || {
  echo "skipped: $(cat "$work/why")"
  exit 77
}
cat "$work/why"

check() { # NAME COMMAND...
  local name=$1
  shift
  if "$@"; then echo "ok   $name"; else
    echo "FAIL $name"
    tail -n 5 "$work"/rank.* 2>/dev/null | sed 's/^/     | /'
    n_failed=$((n_failed + 1))
  fi
}

# on_hosts SIZE PER_HOST COMMAND...: runs rank r on host r / PER_HOST. Output is in $work/rank.R, $status is the sum of
# the exit statuses.
on_hosts() {
  local size=$1 per_host=$2 pids=() rank
  shift 2
  rm -f "$work"/rank.*
  for ((rank = 0; rank < size; rank++)); do
    RANK=$rank WORLD_SIZE=$size LOCAL_RANK=$((rank % per_host)) LOCAL_WORLD_SIZE=$per_host MASTER_ADDR=10.77.0.1 \
      MASTER_PORT=29511 OMP_NUM_THREADS=1 \
      timeout 120 ip netns exec "${hosts[rank / per_host]}" "$@" >"$work/rank.$rank" 2>&1 &
    pids+=($!)
  done
  status=0
  for pid in "${pids[@]}"; do
    wait "$pid" || status=$((status + 1))
  done
}
all_ok() { [ "$status" = 0 ]; }
rank_says() { grep -qE -- "$2" "$work/rank.$1"; }
summary() { grep -oE "\"$2\":[^,}]*" "$work/$1.json"; }

on_hosts 4 2 "$build/examples/hello"
check "without a job key a job across hosts is refused" eval '[ $status = 4 ] && rank_says 3 LOCKSTEP_JOB_KEY'

export LOCKSTEP_JOB_KEY=the-secret-of-this-test
on_hosts 4 2 "$build/examples/hello"
check "four ranks on two hosts find each other" eval 'all_ok && rank_says 0 "rank 0 of 4.*local rank 0 of 2, transport tcp"'
check "local ranks are counted per host" rank_says 3 "rank 3 of 4.*local rank 1 of 2"
# shellcheck disable=SC2016 # the ranks' variables
on_hosts 4 2 bash -c '[ $RANK != 0 ] || export LOCKSTEP_TUNING=/nonexist; exec "$0"' "$build/examples/hello"
check "a wrong tuning file of rank 0 is its own error" eval '[ $status = 4 ] && rank_says 0 "rank 0: LOCKSTEP_TUNING: /nonexist: No such file"'
check "and the others are told whose it is" \
  eval 'for rank in 1 2 3; do rank_says $rank "rank 0 gave up: LOCKSTEP_TUNING: /nonexist: No such file" || break; done'
on_hosts 4 2 env -u LOCAL_RANK -u LOCAL_WORLD_SIZE "$build/examples/hello"
check "without local numbers, too" eval 'all_ok && rank_says 3 "rank 3 of 4.*local rank 1 of 2"'
on_hosts 2 2 env -u LOCAL_RANK -u LOCAL_WORLD_SIZE "$build/examples/hello"
check "and they share memory where they turn out to be on one host" eval 'all_ok && rank_says 1 "local rank 1 of 2, transport shm"'

# shellcheck disable=SC2016 # the ranks' shell expands it
on_hosts 4 2 sh -c 'LOCKSTEP_LISTEN=0.0.0.0:$((29520 + LOCAL_RANK)) exec "$0"' "$build/examples/sum_of_ranks"
check "ranks that listen at all addresses reach each other" all_ok
on_hosts 4 2 env MASTER_ADDR=0.0.0.0 "$build/examples/hello"
check "an address that every host takes for itself is refused" eval '[ $status = 4 ] && rank_says 0 "MASTER_ADDR is 0.0.0.0:29511, which every" && rank_says 3 "MASTER_ADDR is 0.0.0.0:29511, which every"'

for operation in all_reduce broadcast reduce all_gather reduce_scatter all_to_all gather scatter; do
  on_hosts 4 2 "$build/lockstep" bench $operation --algorithm all --sizes 4K:8K --repetitions 9 --json "$work/$operation.json"
  check "$operation: every algorithm is right across hosts" all_ok
done

on_hosts 4 2 "$build/examples/collectives_by_hand"
check "the collectives by hand work across hosts" all_ok

mlp=("$build/examples/mlp" --device reference --samples 2000 --features 256 --steps 20 --quiet)
train() { "$build/lockstep" run -n 4 "${mlp[@]}" --summary "$work/one.json"; }
check "a model trains on one host" eval 'train >"$work/rank.0" 2>&1'
on_hosts 4 2 "${mlp[@]}" --summary "$work/two.json"
check "the same model trains on two hosts" all_ok
check "to the same bits" eval '[ -n "$(summary one params_sha256)" ] && [ "$(summary one params_sha256)" = "$(summary two params_sha256)" ]'
for strategy in bucketed sharded; do
  on_hosts 4 2 "${mlp[@]}" --strategy $strategy --bucket 65536 --summary "$work/$strategy.json"
  check "$strategy in small buckets: it trains" all_ok
  check "$strategy in small buckets: to the same bits" \
    eval '[ -n "$(summary one params_sha256)" ] && [ "$(summary one params_sha256)" = "$(summary $strategy params_sha256)" ]'
done

[ $n_failed = 0 ]

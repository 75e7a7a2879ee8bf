#!/usr/bin/env bash
# The examples that need no data: collectives_by_hand, race, own_data_parallel, the two matrix products, ping_pong, replicas
# and fake_world.
# Usage: test_examples.sh BUILD_DIR. Prints a line per behaviour; fails if one does.
set -u
# shellcheck source=tests/system/common.sh
. tests/system/common.sh
examples=$build/examples

# run COMMAND...: with its output in $work/out and $work/err and its exit status in $status
run() {
  timeout 120 "$@" >"$work/out" 2>"$work/err"
  status=$?
}

# --- collectives_by_hand: 12 algorithms at two sizes ---
worlds="1 2 3 4 5 7"
if is_slow_build; then worlds="1 2 3"; fi
for mode in "" --threads; do
  for n in $worlds; do
    run "$lockstep" run -n $n $mode "$examples/collectives_by_hand"
    check "collectives_by_hand of $n ${mode:-as processes}" eval 'status_is 0 && [ "$(grep -c " right$" "$work/out")" = 24 ]'
  done
done
run "$examples/collectives_by_hand" --loud
check "collectives_by_hand names an unknown argument" eval "status_is 2 && err_has \"'--loud'\""

# --- race ---
run "$examples/race" --count 100000
check "a mutex and an atomic lose nothing" eval 'status_is 0 && out_has "^with a mutex +0$" && out_has "^with an atomic +0$"'
lost_some() {
  for _ in $(seq 10); do
    run "$examples/race"
    status_is 0 || return
    out_has '^without care +-?[0-9]+   updates were lost$' && return
  done
  return 1
}
if [ "$(nproc)" -gt 1 ]; then check "without care, updates are lost" lost_some; fi
for example in race fake_world; do
  "$examples/$example" >/dev/full 2>"$work/err"
  status=$?
  check "a full standard output is an error of $example" eval 'status_is 1 && err_has "$example: standard output: No space left"'
done
run "$examples/race" --count many
check "race refuses a count that is no number" eval "status_is 2 && err_has \"--count 'many'\""
run "$examples/race" --loud
check "race names an unknown argument" eval "status_is 2 && err_has \"'--loud'\""

# --- data parallelism by hand ---
for mode in "" --threads; do
  for n in 1 2 3 4 7; do
    run "$lockstep" run -n $n $mode "$examples/own_data_parallel"
    check "own_data_parallel on $n ${mode:-as processes}: every rank ends with the library's bits" \
      eval 'status_is 0 && [ "$(grep -c ": equal to the bit$" "$work/out")" = $n ] && [ "$(sort -u "$work/out" | wc -l)" = 1 ]'
  done
done
check "own_data_parallel has fewer than 80 lines" [ "$(wc -l <examples/own_data_parallel.c)" -lt 80 ]

# --- a pipeline by hand ---
worlds=("2" "3 3 --threads" "4 2")
if is_slow_build; then worlds=("3 3 --threads"); fi
for ranks in "${worlds[@]}"; do
  read -r n stages mode <<<"$ranks"
  run "$lockstep" run -n "$n" $mode "$examples/pipeline" $stages
  check "pipeline: ${stages:-$n} stages on $n ranks ${mode:-as processes} end with the whole model's bits" \
    eval "status_is 0 && out_has '^${stages:-$n} stages, ' && out_has \"^all stages: the whole model's bits\""
done
if ! is_slow_build; then
  run env LOCKSTEP_TRANSPORT=tcp "$lockstep" run -n 2 "$examples/pipeline"
  check "pipeline over tcp" eval "status_is 0 && out_has \"^all stages: the whole model's bits\""
fi
for stages in 0 3 9 two; do
  run "$lockstep" run -n 4 --threads "$examples/pipeline" "$stages"
  check "pipeline refuses $stages stages of 4 ranks" eval "status_is 2 && err_has 'a number of stages, 1 to 8, that divides the ranks \(4\) into rows'"
done

# --- matrix products: sizes that the ranks divide and others, and fewer rows than ranks ---
for program in matmul_rows matmul_reduction; do
  for n in 1 2 3 5 8; do
    for size in "64 64 64" "37 53 29" "3 2 1"; do
      read -r rows terms columns <<<"$size"
      run "$lockstep" run -n $n --threads "$examples/$program" --m "$rows" --k "$terms" --n "$columns"
      check "$program of $rows x $terms x $columns on $n ranks" \
        eval "status_is 0 && out_has '^$program: ($n ranks|1 rank) \| .* \| right$' && out_has ' compute [0-9.]+ ms '"
    done
  done
  run "$lockstep" run -n 3 "$examples/$program"
  check "$program as processes" eval "status_is 0 && out_has '\| right$'"
  run "$lockstep" run -n 2 "$examples/$program" --k none
  check "$program refuses a size that is no number" eval "status_is 2 && err_has \"'none'\""
done

# --- ping-pong, replicas that differ, a world inside one program ---
for mode in "" --threads; do
  run "$lockstep" run -n 3 $mode "$examples/ping_pong"
  check "ping_pong times seven sizes ${mode:-as processes}" \
    eval 'status_is 0 && [ "$(grep -cE "^ *[0-9]+ +[0-9.]+$" "$work/out")" = 7 ] && out_has "^latency [0-9.]+ us, bandwidth [0-9.]+ GB/s$"'
  run "$lockstep" run -n 3 $mode "$examples/replicas"
  check "replicas that differ are named, those that do not are equal ${mode:-as processes}" \
    eval 'status_is 0 && out_has "drew its own: replicas differ: .* of rank 1 " && out_has "broadcast: all replicas are equal" &&
          out_has "last rank: replicas differ: .*fc2.bias. of rank 2 "'
done
for program in ping_pong replicas; do
  run "$examples/$program"
  check "$program says that one rank is too few" eval "status_is 1 && err_has 'lockstep run -n'"
done
run "$examples/fake_world"
check "fake_world: processes have memory of their own, threads share theirs" \
  eval 'status_is 0 && out_has "^4 processes .* what 0 of them" && out_has "^4 threads .* what 4 of them"'
for program in ping_pong fake_world own_loop own_operator own_data_parallel regression replicas; do
  run "$examples/$program" --loud
  check "$program names an unknown argument" eval "status_is 2 && err_has \"'--loud'\""
done
run "$examples/loader_speed" --loud
check "loader_speed wants a directory" eval "status_is 2 && err_has '^usage: '"
exit $((n_failed > 0))

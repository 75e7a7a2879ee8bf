#!/usr/bin/env bash
# labels: no-asan
# --grains: the same bits on any number of ranks and with any transport, with the trainers from the command line.
# Usage: test_grains.sh BUILD_DIR. Prints a line per behaviour; fails if one does.
set -u
# shellcheck source=tests/system/common.sh
. "$(dirname "$0")/common.sh"
grains=8
figures="params_sha256 train_loss train_accuracy valid_loss test_loss test_accuracy perplexity"

# A simple text, so that evaluation is fast.
text=$work/text
mkdir "$text"
for split in train valid test; do
  awk -v seed="${#split}" 'BEGIN { for (i = 0; i < 500; i++) print " w" (i * i + seed) % 23 " of w" (i * 7) % 11 " " }' \
    >"$text/ptb.$split.txt"
done

# ENVIRONMENT LAUNCH, with ENVIRONMENT for env(1): ranks as processes and as threads, in shared memory and over TCP
worlds=(
  "-u OMP_NUM_THREADS|-n 1"
  "OMP_NUM_THREADS=1|-n 2"
  "-u OMP_NUM_THREADS|-n 4 --threads"
  "-u OMP_NUM_THREADS|-n 8"
  "OMP_NUM_THREADS=3|-n 2 --threads"
)

train() { # FILE "ENVIRONMENT|LAUNCH" PROGRAM ARGS...
  local file=$work/$1 environment=${2%|*} launch=${2#*|}
  shift 2
  rm -f "$file"
  # shellcheck disable=SC2086 # the launch is several words
  run env $environment "$lockstep" run $launch "$@" --quiet --summary "$file"
  [ "$status" = 0 ] || rm -f "$file" # the file of a failed run must not be used
}

equal_figures() { # FILE FILE: all figures that one of them has are equal; params_sha256 and test_loss must exist
  local key
  value "$work/$1" params_sha256 >"$work/seen" && value "$work/$1" test_loss >>"$work/seen" || return 1
  for key in $figures; do
    [ "$(value "$work/$1" "$key")" = "$(value "$work/$2" "$key")" ] || return 1
  done
}

promise() { # NAME STEPS PROGRAM ARGS...
  local name=$1 steps=$2
  shift 2
  train first "${worlds[0]}" "$@" --grains $grains --steps "$steps"
  check "$name on 1 rank trains in $grains grains" same "$(value "$work/first" grains)" $grains
  for world in "${worlds[@]:1}"; do
    train other "$world" "$@" --grains $grains --steps "$steps"
    check "$name gives the same bits and figures with ${world#*|} (${world%|*})" equal_figures first other
  done
  train other "OMP_NUM_THREADS=1|-n 4" "$@" --transport tcp --grains $grains --steps "$steps"
  check "$name gives them over tcp, too" \
    eval 'equal_figures first other && same "$(value "$work/other" transport)" tcp'
  train other "OMP_NUM_THREADS=1|-n 2" "$@" --grains $grains --steps $((steps + 1))
  check "$name has other bits after one more step" \
    differ "$(value "$work/first" params_sha256)" "$(value "$work/other" params_sha256)"
}

# 900 samples: the last batch has 4, fewer than the number of grains.
mlp=(--samples 1000 --features 40 --hidden 24 --batch 64)
promise mlp 31 "$build/examples/mlp" "${mlp[@]}"
train batches "-u OMP_NUM_THREADS|-n 2" "$build/examples/mlp" "${mlp[@]}" --grains $grains --steps 31 --shard batches
check "mlp gives the same bits in either shard mode" equal_figures first batches
promise "language_model with dropout" 30 "$build/examples/language_model" --data "$text" --hidden 16 --bptt 9 --batch 13
promise transformer 10 "$build/examples/transformer" --data "$text" --level word --hidden 16 --heads 2 --layers 1 \
  --context 9 --batch 12

if found=$(tools/find-data); then
  promise "mnist on ${found%% *}" 40 "$build/examples/mnist" --data "${found#* }" --batch 50
else
  echo "skipped: mnist (no data set in its format is on this machine)"
fi

cifar=${LOCKSTEP_DATA:-${XDG_CACHE_HOME:-$HOME/.cache}/lockstep/data}/cifar-10-batches-bin
if [ -r "$cifar/test_batch.bin" ]; then
  # Every rank reads the whole set, so this uses fewer worlds.
  worlds=("-u OMP_NUM_THREADS|-n 1" "-u OMP_NUM_THREADS|-n 8 --threads")
  promise "resnet9 with batch norm and augmentation" 3 "$build/examples/resnet9" --data "$cifar" --recipe fast --batch 37
else
  echo "skipped: resnet9 (CIFAR-10 is not on this machine)"
fi

# --- errors ---
run "$lockstep" run -n 2 "$build/examples/mlp" --grains 6
check "grains that are no power of two are refused" refused 2 "--grains cannot be '6'; possible: powers of two, 1 to 1048576"
run "$lockstep" run -n 2 "$build/examples/mlp" --grains 0
check "so are none, where some are asked for" refused 2 "--grains cannot be '0'; possible: powers of two, 1 to 1048576"
run "$lockstep" run -n 2 "$build/examples/mlp" --grains 2097152
check "and more than there can be" refused 2 "--grains cannot be '2097152'; possible: powers of two, 1 to 1048576"
LOCKSTEP_GRAINS=6 run "$lockstep" run -n 2 "$build/examples/mlp"
check "the environment's are named by the variable" refused 2 "LOCKSTEP_GRAINS cannot be '6'; possible: powers of two"
run "$lockstep" run -n 8 "$build/examples/mlp" --grains 4
check "grains that the ranks cannot share are refused with both numbers" \
  refused 2 'grains 4 cannot be divided equally among 8 ranks'
run "$lockstep" run -n 2 "$build/examples/language_model" --data "$text" --grains 1
check "of columns, too" refused 2 'grains 1 cannot be divided equally among 2 ranks'
run "$lockstep" run -n 2 "$build/examples/mlp" --grains 8 --accumulate 2
check "grains and micro-batches exclude each other" refused 2 '--grains and --accumulate exclude each other'
[ "$n_failed" = 0 ]

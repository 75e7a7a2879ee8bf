#!/usr/bin/env bash
# labels: no-asan
# Compressed gradients from the command line: processes over tcp, real data, and the accuracy of exact gradients.
# Usage: test_compression.sh BUILD_DIR. Prints a line per behaviour; fails if one does.
set -u
# shellcheck source=tests/system/common.sh
. "$(dirname "$0")/common.sh"
mnist=$build/examples/mnist
mlp=$build/examples/mlp
if ! found=$(tools/find-data); then
  echo "no data set in MNIST's format on this machine"
  echo "skipped: everything that trains on it"
  exit 77
fi
read -r _ directory <<<"$found"

train() { # FILE ARGS...
  local file=$1
  shift
  run "$lockstep" run -n 2 "$mnist" --transport tcp --strategy bucketed --data "$directory" --epochs 2 \
    --summary "$work/$file" "$@"
}
within() { # A B DISTANCE
  is_number "$1" && is_number "$2" && awk -v a="$1" -v b="$2" -v d="$3" 'BEGIN { e = a - b; exit !(e * e <= d * d) }'
}

train none
exact=$(value "$work/none" test_accuracy)
# The accuracy after 2 epochs varies by 0.003 between seeds.
for kind in bf16 f16 powersgd; do
  train "$kind" --compress "$kind"
  accuracy=$(value "$work/$kind" test_accuracy)
  check "$kind reaches $exact but for 0.01 ($accuracy)" within "$accuracy" "$exact" 0.01
  check "$kind's bits are others than those of exact gradients" \
    differ "$(value "$work/$kind" params_sha256)" "$(value "$work/none" params_sha256)"
  check "the summary says $kind" same "$(value "$work/$kind" compress)" "$kind"
  train again --compress "$kind"
  check "$kind gives the same bits again" \
    same "$(value "$work/again" params_sha256)" "$(value "$work/$kind" params_sha256)"
done
train rank1 --compress powersgd --compress-rank 1
check "--compress-rank is heard" differ "$(value "$work/rank1" params_sha256)" "$(value "$work/powersgd" params_sha256)"

for ranks in 2 3; do
  run "$lockstep" run -n "$ranks" "$mlp" --transport tcp --steps 300 --bucket 200000 --compress bf16 \
    --summary "$work/mlp$ranks"
  check "mlp learns on $ranks ranks in several buckets" below "$(value "$work/mlp$ranks" train_loss)" 1.2
done

for strategy in shared sharded; do
  run "$lockstep" run -n 2 "$mlp" --strategy "$strategy" --compress bf16
  check "compression is refused with strategy $strategy" refused 2 \
    "only bucketed gradients are compressed; strategy '$strategy' was asked for"
done
run "$lockstep" run -n 2 "$mlp" --grains 4 --compress bf16
check "compression is refused with grains" refused 2 "--grains and --compress exclude each other"
run "$lockstep" run -n 2 "$mlp" --compress zip
check "an unknown kind is named, with those there are" refused 2 \
  "--compress cannot be 'zip'; possible: none, bf16, f16, powersgd"
run "$lockstep" run -n 2 "$mlp" --compress powersgd --compress-rank 0
check "a rank below 1 is refused" refused 2 "--compress-rank cannot be '0'"
run "$lockstep" run -n 2 "$mlp" --compress bf16 --compress-rank 2
check "a rank of anything but powersgd is refused" refused 2 "--compress-rank needs --compress powersgd"

# The hook in the documentation must be the one that a test runs.
hook() { # FILE: without whitespace, which clang-format changes
  sed -n '/static lks_status sum_signs/,/return status;/p' "$1" | tr -d ' \n'
}
check "the documentation's hook is the tested one" same "$(hook docs/compression.md)" "$(hook tests/parallel/test_compress.c)"
[ "$n_failed" = 0 ]

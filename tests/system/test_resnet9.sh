#!/usr/bin/env bash
# labels: busy no-asan
# resnet9 from the command line: first invalid files, which need no data set, then CIFAR-10 if it is on this machine.
# Usage: test_resnet9.sh BUILD_DIR. Prints a line per behaviour; fails if one does.
set -u
# shellcheck source=tests/system/common.sh
. "$(dirname "$0")/common.sh"
resnet9=$build/examples/resnet9

# --- errors; files of zeros are black images of class 0 ---
whole=30730000
lay_out() { # the binary version in $work/set
  rm -rf "$work/set"
  mkdir "$work/set"
  for name in data_batch_1 data_batch_2 data_batch_3 data_batch_4 data_batch_5 test_batch; do
    truncate -s $whole "$work/set/$name.bin"
  done
}
attempt() { run "$lockstep" run -n 2 "$resnet9" --data "$work/set" --steps 1; }

run "$lockstep" run -n 2 "$resnet9" --data "$work/nowhere" --steps 1
check "a missing directory is named" refused 1 "$work/nowhere: no such directory"
mkdir "$work/set"
attempt
check "a directory without batches is named" refused 1 "$work/set: neither data_batch_1.bin nor data_batch_1 is there"
lay_out
rm "$work/set/data_batch_4.bin"
attempt
check "a missing file is named" refused 1 'data_batch_4.bin: No such file'
lay_out
truncate -s $((whole - 1)) "$work/set/data_batch_2.bin"
attempt
check "a truncated file is named" refused 1 'data_batch_2.bin: truncated: 30729999 bytes'
truncate -s $((whole + 3073)) "$work/set/data_batch_2.bin"
attempt
check "a file with a record too much is named" refused 1 'data_batch_2.bin: holds more than the 30730000 bytes'
lay_out
printf '\012' | dd of="$work/set/test_batch.bin" bs=1 seek=$((77 * 3073)) conv=notrunc 2>/dev/null
attempt
check "a label over 9 is named with its record" refused 1 'test_batch.bin: record 77: label 10, over 9'
lay_out
attempt
check "images without any contrast are refused" refused 2 'features cannot be normalised by mean 0 and deviation 0'
rm "$work"/set/*
printf '\200\002cos\nsystem\n(U\004truetR.' >"$work/set/data_batch_1"
attempt
check "a pickle that calls something is refused" refused 1 'data_batch_1: pickle opcode 0x63 at byte 2: a name that CIFAR-10'
printf '\200\004\225' >"$work/set/data_batch_1"
attempt
check "a pickle of another protocol is refused" refused 1 'data_batch_1: pickle opcode 0x80 at byte 0: protocol 2'
run "$resnet9" --recipe slow
check "an unknown recipe is refused" eval '[ $status = 2 ] && grep -q -- "--recipe cannot be .slow." "$work/err"'
run "$build/examples/mlp" --sync-batch-norm
check "a model without batch norm has none to synchronise" refused 2 '--sync-batch-norm: the model has no batch norm'
run "$build/examples/mlp" --share-data
check "samples that are made are not shared" refused 2 '--share-data: only sets of images are shared'
run "$lockstep" run -n 3 "$resnet9" --share-data --data "$work/nowhere" --steps 1
check "shared data that cannot be read are an error, said once" \
  eval 'refused 1 "^lockstep: $work/nowhere: no such directory" && [ "$(grep -c nowhere "$work/err")" = 1 ]'
run "$resnet9" --sync-batch-norm --grains 2
check "grains and synchronised batch norms are refused together" refused 2 '--grains and --sync-batch-norm exclude each other'

# --- real data ---
directory=
for candidate in "${LOCKSTEP_DATA:-/nonexistent}" "${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/lockstep/data"; do
  [ -n "$directory" ] || [ ! -f "$candidate/cifar-10-batches-bin/test_batch.bin" ] || directory=$candidate/cifar-10-batches-bin
done
if [ -z "$directory" ]; then
  echo "skipped: training on CIFAR-10, which is not on this machine"
  [ $n_failed = 0 ] && exit 77
  exit 1
fi
for ranks in 1 2 4; do
  run "$lockstep" run -n $ranks "$resnet9" --data "$directory" --epochs 1 --summary "$work/summary$ranks"
  accuracy=$(value "$work/summary$ranks" test_accuracy)
  check "one epoch on $ranks ranks reaches 0.44 ($accuracy)" at_least "$accuracy" 0.44
  check "the partitions of $ranks ranks add up" \
    [ "$(awk '/^partition lengths:/ { for (i = 3; i <= NF; i++) n += $i; print n, NF - 2 }' "$work/out")" = "50000 $ranks" ]
done
run "$lockstep" run -n 2 "$resnet9" --data "$directory" --recipe fast --epochs 1 --summary "$work/fast"
check "the fast recipe learns, too ($(value "$work/fast" test_accuracy))" at_least "$(value "$work/fast" test_accuracy)" 0.44
run "$lockstep" run -n 2 "$resnet9" --data "$directory" --recipe fast --steps 40 --summary "$work/first"
run "$lockstep" run -n 2 --threads "$resnet9" --data "$directory" --recipe fast --steps 40 --summary "$work/second" --share-data
check "augmented runs repeat to the bit, on shared data, too" same "$(value "$work/first" params_sha256)" "$(value "$work/second" params_sha256)"

# The loss of the first step precedes any update, so it depends only on the statistics of the batch.
losses=
for ranks in 1 2 3; do
  for sync in "" --sync-batch-norm; do
    run "$lockstep" run -n $ranks "$resnet9" --data "$directory" --steps 1 --summary "$work/sync" $sync
    losses="$losses $(value "$work/sync" train_loss)"
  done
done
read -r one one_sync two two_sync three three_sync <<<"$losses"
check "synchronised, one rank is as without ($one $one_sync)" near "$one_sync" "$one" 1e-5
check "synchronised, two ranks' first loss is one's ($two_sync)" near "$two_sync" "$one" 1e-5
check "synchronised, three ranks' first loss is one's ($three_sync)" near "$three_sync" "$one" 1e-5
check "not synchronised, it is not ($two $three)" eval '! near "$two" "$one" 1e-4 && ! near "$three" "$one" 1e-4'
run "$lockstep" run -n 2 "$resnet9" --data "$directory" --sync-batch-norm --steps 40 --summary "$work/first" --share-data
run "$lockstep" run -n 2 --threads "$resnet9" --data "$directory" --sync-batch-norm --steps 40 --summary "$work/second"
check "synchronised runs repeat to the bit" same "$(value "$work/first" params_sha256)" "$(value "$work/second" params_sha256)"

[ $n_failed = 0 ] || echo "$n_failed behaviours failed"
[ $n_failed = 0 ]

#!/usr/bin/env bash
# labels: no-asan
# The trainers from the command line: real data, real processes, real mistakes.
# Usage: test_trainers.sh BUILD_DIR. Prints a line per behaviour; fails if one does.
set -u
# shellcheck source=tests/system/common.sh
. "$(dirname "$0")/common.sh"
mnist=$build/examples/mnist
mlp=$build/examples/mlp

# --- real data ---
if ! found=$(tools/find-data); then
  echo "no data set in MNIST's format on this machine"
  echo "skipped: everything that trains on it"
  exit 77
fi
read -r name directory <<<"$found"
# The bounds: MNIST must reach what PyTorch reaches with this model over seeds (0.964 to 0.968), Fashion-MNIST 0.85
# (PyTorch: 0.86 to 0.88).
case $name in mnist) least=0.962 mean=0.965 ;; *) least=0.85 mean=0.85 ;; esac
echo "trains on $name in $directory"

train() { # FILE RANKS ARGS...
  local file=$1 ranks=$2
  shift 2
  run "$lockstep" run -n "$ranks" "$@" --data "$directory" --epochs 5 --summary "$work/$file"
}

sum=0
for seed in 1 2 3; do
  train "seed$seed" 2 "$mnist" --seed "$seed"
  accuracy=$(value "$work/seed$seed" test_accuracy)
  check "mnist on 2 ranks reaches $least with seed $seed ($accuracy)" at_least "$accuracy" "$least"
  sum=$(awk -v a="$sum" -v b="$accuracy" 'BEGIN { print a + b }')
done
average=$(awk -v a="$sum" 'BEGIN { print a / 3 }')
check "the mean of the seeds reaches $mean ($average)" at_least "$average" "$mean"
for ranks in 1 3 4; do
  train "ranks$ranks" "$ranks" "$mnist" --seed 1
  check "mnist on $ranks ranks reaches $least ($(value "$work/ranks$ranks" test_accuracy))" \
    at_least "$(value "$work/ranks$ranks" test_accuracy)" "$least"
done
train again 2 "$mnist" --seed 1
check "a second run gives the same bits" same "$(value "$work/again" params_sha256)" "$(value "$work/seed1" params_sha256)"
train threads 2 --threads "$mnist" --seed 1
check "ranks that are threads give the same bits as processes" \
  same "$(value "$work/threads" params_sha256)" "$(value "$work/seed1" params_sha256)"
check "another seed gives other bits" differ "$(value "$work/seed2" params_sha256)" "$(value "$work/seed1" params_sha256)"
missing=
for key in example world_size transport device precision epochs steps global_batch train_loss train_accuracy test_loss \
  test_accuracy step_us_median step_us_p99 epoch_s wall_s samples_per_s params_sha256 peak_rss_bytes grains; do
  grep -q "\"$key\":" "$work/seed1" || missing="$missing $key"
done
check "the summary has every key that applies (missing:$missing)" [ -z "$missing" ]
check "a summary is one line of JSON" [ "$(wc -l <"$work/seed1")" = 1 ]

for ranks in 1 2; do
  run "$lockstep" run -n "$ranks" "$mlp" --summary "$work/mlp$ranks"
  check "mlp on $ranks ranks: the first line is the configuration" \
    eval "head -n 1 '$work/out' | grep -q '^mlp: ranks $ranks .* layers 4 .* batch 64 .* steps 1000'"
  check "mlp on $ranks ranks: the last line counts them" out_has '^mlp: (1 rank|2 ranks) \([a-z]+\) \| 1000 steps'
  check "mlp on $ranks ranks: a line every 100 steps" [ "$(grep -cE \
    '^step [0-9]+ \| train_loss [0-9.]+ \| test_loss [0-9.]+ \| step time [0-9.]+ms$' "$work/out")" = 11 ]
  first=$(sed -nE 's/^step 0 \| train_loss ([0-9.]+) .*/\1/p' "$work/out")
  check "mlp on $ranks ranks: begins near ln 32 ($first)" eval "at_least $first 3 && below $first 4.5"
  for loss in train_loss test_loss; do
    check "mlp on $ranks ranks: $loss falls below 0.35 ($(value "$work/mlp$ranks" $loss))" \
      below "$(value "$work/mlp$ranks" $loss)" 0.35
  done
done
run "$lockstep" run -n 2 "$mlp" --steps 150 --summary "$work/odd"
check "mlp reports the step it ended with" eval 'grep -q "^step 150 " "$work/out" && below "$(value "$work/odd" train_loss)" 2'
run "$lockstep" run -n 2 "$mlp" --epochs 2 --summary "$work/epochs"
check "mlp trains whole epochs when asked for them" [ "$(value "$work/epochs" steps)" = 282 ]
run "$lockstep" run -n 2 "$mlp" --steps 200 --shard batches --summary "$work/batches"
check "mlp learns where rank i mod n gets batch i" below "$(value "$work/batches" train_loss)" 1
# 13 steps of 99 samples. Each step takes 8, the largest part of 14 that 8 ranks share evenly.
run "$lockstep" run -n 8 "$mlp" --samples 110 --features 16 --hidden 8 --classes 4 --batch 14 --epochs 2 --shard batches \
  --summary "$work/uneven"
check "mlp says what its steps take where batches are shared unevenly" \
  eval 'out_has "^mlp: .* batch 8 \| steps 26 " && out_has " 26 steps in " && [ "$(value "$work/uneven" global_batch)" = 8 ]'
first_samples() { # COUNT FILE HEADER_NBYTES SAMPLE_NBYTES: writes the first samples of an IDX file to the directory "few"
  local whole=$work/whole
  if [ -e "$directory/$2" ]; then cp "$directory/$2" "$whole"; else gzip -dc "$directory/$2.gz" >"$whole"; fi
  {
    head -c 4 "$whole"
    # shellcheck disable=SC2059 # the count as four bytes
    printf "$(printf '\\x%02x' $(($1 >> 24)) $(($1 >> 16 & 255)) $(($1 >> 8 & 255)) $(($1 & 255)))"
    tail -c +9 "$whole" | head -c $(($3 - 8 + $1 * $4))
  } >"$work/few/$2"
}
mkdir "$work/few"
for part in "train 2080" "t10k 1000"; do
  first_samples "${part#* }" "${part% *}-images-idx3-ubyte" 16 784
  first_samples "${part#* }" "${part% *}-labels-idx1-ubyte" 8 1
done
# Ranks have unequal parts. The last batch has 32 samples: of 40 ranks, 8 get none of it.
own_loop() { # RANKS DIRECTORY: sets `accuracy`
  run "$lockstep" run -n "$1" "$build/examples/own_loop" "$2"
  check "own_loop trains on $1 ranks" status_is 0
  accuracy=$(sed -nE 's/^epoch 2: .* test accuracy ([0-9.]+)$/\1/p' "$work/out")
}
own_loop 1 "$directory"
alone=$accuracy
check "own_loop learns ($alone)" at_least "$alone" 0.8
own_loop 1 "$work/few"
few=$accuracy
for case in "3 $directory $alone" "40 $work/few $few"; do
  read -r ranks data expected <<<"$case"
  own_loop "$ranks" "$data"
  check "own_loop on $ranks ranks ends with equal replicas" out_has "^all $ranks replicas are equal$"
  check "own_loop on $ranks ranks learns what one does ($accuracy, $expected)" near "$accuracy" "$expected" 0.01
done
run "$lockstep" run -n 1 "$build/examples/own_loop" "$work/nowhere"
check "own_loop names a directory that is missing" refused 1 "$work/nowhere: no such directory .*lockstep data get"

run "$lockstep" run -n 2 "$build/examples/regression"
check "regression learns a function of real numbers" \
  below "$(sed -n 's/^epoch 10: off by \([0-9.]*\) (rms)$/\1/p' "$work/out")" 0.05

run "$lockstep" run -n 2 "$build/examples/own_operator"
line() { sed -nE "s/^$1: y = ([0-9.]+) x .*/\\1/p" "$work/out"; }
check "own_operator: outliers move the line of the squared errors" at_least "$(line 'mean squared error')" 4
check "own_operator: and not that of the Huber loss, a custom operator" near "$(line 'huber loss')" 3 0.05

# --- errors ---
run "$lockstep" run -n 2 "$mnist" --data "$work/nowhere"
check "a missing directory is named" refused 1 "$work/nowhere"
mkdir "$work/bad"
for file in train-images-idx3-ubyte train-labels-idx1-ubyte t10k-images-idx3-ubyte t10k-labels-idx1-ubyte; do
  cp "$directory/$file"* "$work/bad/"
done
gz=$(ls "$work"/bad/train-images-idx3-ubyte.gz 2>/dev/null)
cp "$work"/bad/train-labels-idx1-ubyte* "$work/"
echo "this is not a data set" >"$work/bad/train-labels-idx1-ubyte"
rm -f "$work/bad/train-labels-idx1-ubyte.gz"
run "$lockstep" run -n 2 "$mnist" --data "$work/bad"
check "a file that is not IDX is named" refused 1 'train-labels-idx1-ubyte: .*IDX'
rm "$work/bad/train-labels-idx1-ubyte"
case $(ls "$work"/train-labels*) in
*.gz) gzip -dc "$work"/train-labels-idx1-ubyte.gz >"$work/bad/train-labels-idx1-ubyte" ;;
*) cp "$work/train-labels-idx1-ubyte" "$work/bad/" ;;
esac
printf '\013' | dd of="$work/bad/train-labels-idx1-ubyte" bs=1 seek=1008 conv=notrunc 2>/dev/null
run "$lockstep" run -n 2 "$mnist" --data "$work/bad"
check "a label out of range is named with its index" refused 1 'train-labels-idx1-ubyte: .*1000.* 11'
if [ -n "$gz" ]; then
  head -c 100000 "$gz" >"$gz.cut" && mv "$gz.cut" "$gz"
  run "$lockstep" run -n 2 "$mnist" --data "$work/bad"
  check "a truncated .gz is named" refused 1 'train-images-idx3-ubyte.gz: .*truncated'
else
  echo "skipped: a truncated .gz (this data set is not compressed)"
fi
run "$lockstep" run -n 4 "$mnist" --data "$directory" --batch 3
check "a batch smaller than the world is refused with both numbers" refused 2 'batch 3 .*4 ranks'
for flags in "--batch 2" "--grains 2" "--transport pigeon" "--device abacus" "--transport tcp --strategy shared"; do
  # shellcheck disable=SC2086 # a flag and its value
  run "$lockstep" run -n 3 --max-restarts 2 "$mlp" --steps 2 $flags
  check "what cannot begin by its flags is not tried again: $flags" eval 'status_is 2 && ! err_has "generation"'
done
mkdir "$work/narrow"
for file in train-images-idx3-ubyte train-labels-idx1-ubyte; do cp "$directory/$file"* "$work/narrow/"; done
python3 - "$work/narrow" <<'EOF'
import struct, sys
with open(sys.argv[1] + "/t10k-images-idx3-ubyte", "wb") as file:
    file.write(struct.pack(">4i", 2051, 10, 14, 14) + bytes(10 * 196))
with open(sys.argv[1] + "/t10k-labels-idx1-ubyte", "wb") as file:
    file.write(struct.pack(">2i", 2049, 10) + bytes(range(10)))
EOF
run "$lockstep" run -n 2 "$mnist" --data "$work/narrow" --epochs 1
check "a test set of other images is told before the training" \
  eval 'refused 1 "test set.s samples have 196 features, those of the training set 784" && ! out_has epoch'
run "$lockstep" run -n 2 "$mnist" --frobnicate 3
check "an unknown flag is named" refused 2 "unknown flag '--frobnicate'"
run "$mlp" --frobnicate=1
check "with its value, too" refused 2 "unknown flag '--frobnicate'"
run "$mlp" --steps=3 --batch=8 --summary="$work/equals" --quiet
check "a value may follow a =" eval '[ "$(value "$work/equals" steps)" = 3 ] && [ "$(value "$work/equals" global_batch)" = 8 ]'
run "$mlp" --steps=
check "an empty one is none" refused 2 "\-\-steps needs a value"
run "$lockstep" run -n 2 "$mnist" --epochs many
check "a bad value is named with its flag" refused 2 "--epochs cannot be 'many'; possible: 1 to 1000000"
for flag in "--data $directory" --download; do
  # shellcheck disable=SC2086 # a flag and its value
  run "$lockstep" run -n 2 "$mlp" $flag
  check "${flag%% *} is refused where samples are made" refused 2 "${flag%% *}: samples are made from the seed"
done
run "$mlp" --help
check "and not listed there" eval '! out_has "--data|--download" && out_has "--epochs"'
run "$mnist" --help
check "as it is where data are read" eval 'out_has "--data" && out_has "--download"'
run "$lockstep" run -n 2 "$mlp" --bucket 0
check "buckets of nothing are refused" refused 2 "--bucket cannot be '0'; possible: 1 to 9223372036854775807"
run "$lockstep" run -n 2 "$mlp" --seed 9223372036854775808
check "a seed that is too large is told the largest" refused 2 \
  "--seed cannot be '9223372036854775808'; possible: 0 to 9223372036854775807"
run "$lockstep" run -n 2 "$mlp" --strategy ring
check "a strategy that there is not is named, with those there are" refused 2 \
  "--strategy cannot be 'ring'; possible: auto, shared, bucketed, sharded"
run "$lockstep" run -n 2 "$mlp" --transport tcp --strategy shared
check "a shared replica over tcp is refused with the reason" refused 2 "'shared' needs ranks that share memory; .* over tcp"
run "$lockstep" run -n 2 "$mnist" --data "$directory" --device abacus
check "an unknown device is named" refused 2 "no device 'abacus'"
run "$lockstep" run -n 2 "$mnist" --data "$directory" --steps 1 --summary "$work/nowhere/s.json"
check "a summary that cannot be written is named" refused 1 "$work/nowhere/s.json"
mkfifo "$work/fifo"
run "$lockstep" run -n 2 "$mnist" --data "$directory" --steps 1 --summary "$work/fifo"
check "so is one that nobody would read" refused 1 "$work/fifo: .* a FIFO that nobody reads"
timeout 60 cat "$work/fifo" >"$work/read" &
reader=$!
sleep 0.5 # until it has started
run timeout 60 "$mnist" --data "$directory" --steps 1 --quiet --summary "$work/fifo"
wait $reader
check "one that is read gets the summary" eval '[ "$status" = 0 ] && grep -q "^{.*params_sha256" "$work/read"'
run "$mnist" --data "$directory" --steps 1 --quiet --run "$work/run" --save "$work/begun" --summary "$work/run/summary"
cp "$work/begun" "$work/begun.before"
run "$mnist" --data "$directory" --steps 1 --quiet --resume "$work/begun" --summary "$work/../${work##*/}/begun"
check "one that would replace the checkpoint to resume from" \
  eval 'refused 1 "begun: .* --resume names the same file" && cmp -s "$work/begun" "$work/begun.before"'
for flag in --summary --save; do
  run "$mnist" --data "$directory" --steps 1 --quiet --run "$work/run" $flag "$work/run/metrics.jsonl"
  check "$flag does not replace the metrics" refused 1 "metrics.jsonl: .* the metrics of --run go to the same file"
done
run "$mnist" --data "$directory" --steps 1 --quiet --resume "$work/run" --summary "$work/run/checkpoint"
check "nor one among checkpoints" refused 1 "run/checkpoint: .* --resume names its directory"
"$mnist" --data "$directory" --steps 1 --quiet --summary /dev/stdout >>"$work/run/summary"
check "standard output that is a file is gone on with" [ "$(grep -c params "$work/run/summary")" = 3 ]
run "$mnist" --data "$directory" --steps 1 --run "$(printf 'd/%.0s' $(seq 2000))"
check "a path to which none can be added is refused" refused 1 "d/: the run cannot be written: File name too long"
run "$lockstep" run -n 2 "$mnist" --data "$directory" --steps 1 --save "$work/both" --summary "$work/both"
check "and one that would replace the checkpoint" refused 1 "$work/both: .* --save names the same file"
run "$lockstep" run -n 2 "$mnist" --data "$directory" --steps 1 --save "$work/both" --summary "$work/../${work##*/}/both"
check "by another way to it, too, and nothing is made" eval 'refused 1 "--save names the same file" && [ ! -e "$work/both" ]'
mkdir "$work/untouched"
touch -d 2001-01-01T00:00:00Z "$work/untouched"
run "$lockstep" run -n 2 "$mnist" --data "$directory" --steps 1 --save "$work/untouched/save" --summary "$work/untouched/sum" --init "$work/none"
check "to see whether outputs can be written makes no file, which could by then be another run's" \
  eval 'refused 2 "none: No such file" && [ "$(stat -c %Y "$work/untouched")" = 978307200 ]'
ln -s there "$work/link"
run "$lockstep" run -n 2 "$mnist" --data "$directory" --steps 1 --save "$work/link" --init "$work/none"
check "a link that leads nowhere stays where nothing is saved" eval 'refused 2 "none: No such file" && [ -L "$work/link" ] && [ ! -e "$work/there" ]'
run "$lockstep" run -n 2 "$mnist" --data "$directory" --steps 1 --save "$work/link"
check "and leads to the checkpoint that is" eval '[ "$status" = 0 ] && [ -L "$work/link" ] && [ -s "$work/there" ]'
run "$lockstep" run -n 2 "$mnist" --print-program=yes
check "a switch is told to take no value" refused 2 "--print-program takes no value"
long=$work/$(printf 'x%.0s' $(seq 252))
run "$lockstep" run -n 2 "$mnist" --data "$directory" --steps 1 --save "$long"
check "a checkpoint's name that is too long is refused before training" refused 1 "xxx.tmp: .* File name too long"
run bash -c "ulimit -f 100; '$mnist' --data '$directory' --steps 1 --save '$work/limited'"
check "a checkpoint beyond the limit on files is an error, and leaves nothing" eval 'grep -q "limited: File too large" "$work/err" && [ "$status" = 1 ] && [ -z "$(ls "$work"/limited* 2>/dev/null)" ]'
# Skipped if a program needs that much address space before it starts, as with a sanitizer.
if (ulimit -v 4000000; "$mlp" --help >"$work/out" 2>&1); then
  (ulimit -v 4000000; exec "$mlp" --steps 2147483647) >"$work/out" 2>"$work/err" &
  eventually out_has '^step 0 '
  kill -TERM $!
  wait $!
  status=$?
  check "a run without an end takes no memory for all of its steps" eval 'status_is 143 && out_has "^mlp: stopped by SIGTERM at step"'
fi
run "$mnist" --help
check "--help explains the flags" eval '[ "$status" = 0 ] && grep -q -- "--summary FILE" "$work/out"'

check "nothing is left in /dev/shm" eventually nothing_new_in_shm
check "no process is left" eval '! pgrep -f "$work" >/dev/null'
[ "$n_failed" = 0 ]

#!/usr/bin/env bash
# labels: no-asan
# The trainers of texts from the command line, on a small text with a known entropy.
# Usage: test_language_models.sh BUILD_DIR. Prints a line per behaviour; fails if one does.
set -u
# shellcheck source=tests/system/common.sh
. "$(dirname "$0")/common.sh"
lstm=$build/examples/language_model
gpt=$build/examples/transformer
# Every rank builds the model and reports the error, so there is more than one line.
refused() { [ "$status" = "$1" ] && err_has "$2"; }


# The checks below rely on this: missing values never pass.
echo '{"perplexity":1.5,"params_sha256":"ab"}' >"$work/a_summary"
check "a value is found" same "$(value "$work/a_summary" perplexity)-$(value "$work/a_summary" params_sha256)" 1.5-ab
check "a key or a file that is missing has no value" \
  eval '! value "$work/a_summary" loss && ! value "$work/no_summary" perplexity'
check "nothing is neither below, near nor the same" eval '! below "" 2 && ! near "" "" 1 && ! same "" ""'

# "the <animal> sees the <animal>": an ideal model guesses one of 5 animals twice in 6 words, a perplexity of 5^(2/6) =
# 1.71. A model that knows only the frequencies of words is at 5.0.
text=$work/text
mkdir "$text"
lines() { # SPLIT COUNT SEED
  awk -v n="$2" -v seed="$3" 'BEGIN {
    split("cat dog cow hen fox", animal)
    for (i = 0; i < n; i++) {
      seed = (seed * 1103515245 + 12345) % 2147483648; a = int(seed / 65536) % 5 + 1
      seed = (seed * 1103515245 + 12345) % 2147483648; b = int(seed / 65536) % 5 + 1
      print " the " animal[a] " sees the " animal[b] " "
    }
  }' >"$text/ptb.$1.txt"
}
lines train 1500 1
lines valid 100 2
lines test 100 3

train() { # FILE RANKS PROGRAM ARGS...
  local file=$1 ranks=$2
  shift 2
  rm -f "$work/$file"
  run "$lockstep" run -n "$ranks" "$@" --data "$text" --summary "$work/$file"
  [ "$status" = 0 ] && return
  rm -f "$work/$file" # the file of a failed run must not be used
  check "training '$file' exits with 0, not $status" false
}

small_lstm=(--hidden 24 --bptt 7 --epochs 12 --optimizer adam --lr 0.01)
small_gpt=(--level word --hidden 24 --heads 4 --layers 2 --context 11 --epochs 8 --batch 20 --lr 0.01)
for ranks in 1 2 3; do
  train "lstm$ranks" "$ranks" "$lstm" "${small_lstm[@]}"
  check "language_model on $ranks ranks learns the text ($(value "$work/lstm$ranks" perplexity))" \
    below "$(value "$work/lstm$ranks" perplexity)" 1.9
  train "gpt$ranks" "$ranks" "$gpt" "${small_gpt[@]}"
  check "transformer on $ranks ranks learns the text ($(value "$work/gpt$ranks" perplexity))" \
    below "$(value "$work/gpt$ranks" perplexity)" 1.95
done
for model in lstm gpt; do
  check "$model: 2 ranks end near 1" near "$(value "$work/${model}2" perplexity)" "$(value "$work/${model}1" perplexity)" 0.03
done
check "a line per epoch with perplexities" [ "$(grep -cE \
  '^epoch [0-9]+/8 \| train_loss [0-9.]+ \| train_perplexity [0-9.]+ \| valid_loss [0-9.]+ \| valid_perplexity [0-9.]+ \| [0-9.]+ s$' \
  "$work/out")" = 8 ]
check "the last line tells the test perplexity" grep -qE '^transformer: 3 ranks .* test_perplexity [0-9.]+ ' "$work/out"
run "$lockstep" run -n 1 "$gpt" "${small_gpt[@]}" --steps 40 --data "$text" --run "$work/run"
below_a_fiftieth() { awk -v lr="$(sed -n 's/.*"lr":\([^,]*\).*/\1/p' "$work/run/metrics.jsonl" | tail -n 1)" 'BEGIN { exit !(lr > 0 && lr < 0.01 / 50) }'; }
check "a learning rate that has been warmed up has decayed at the end of the run" below_a_fiftieth
train again 2 "$lstm" "${small_lstm[@]}"
check "a second run gives the same bits" same "$(value "$work/again" params_sha256)" "$(value "$work/lstm2" params_sha256)"
train threads 2 --threads "$lstm" "${small_lstm[@]}"
check "ranks that are threads give the same bits as processes" \
  same "$(value "$work/threads" params_sha256)" "$(value "$work/lstm2" params_sha256)"
train rnn 2 "$lstm" --cell rnn "${small_lstm[@]}"
check "an RNN learns, too ($(value "$work/rnn" perplexity))" below "$(value "$work/rnn" perplexity)" 2
train sgd 1 "$lstm" --hidden 24 --bptt 7 --epochs 6 --batch 10
check "SGD with its defaults learns, too ($(value "$work/sgd" perplexity))" below "$(value "$work/sgd" perplexity)" 2.5
train characters 1 "$gpt" --hidden 16 --heads 2 --layers 1 --context 32 --batch 8 --steps 60
check "characters are tokens by default ($(value "$work/characters" perplexity))" \
  below "$(value "$work/characters" perplexity)" 12

run "$lockstep" run -n 2 "$lstm" --data "$work/nowhere"
check "a missing directory is named" refused 1 "$work/nowhere"
run "$lockstep" run -n 4 "$lstm" --data "$text" --batch 3
check "fewer columns than ranks are refused" refused 2 'batch of 3 columns .*4 ranks'
run "$lockstep" run -n 2 "$lstm" --data "$text" --dropout 1
check "to drop everything is refused" refused 2 "--dropout cannot be '1'; possible: 0 to below 1"
run "$lockstep" run -n 2 "$gpt" --data "$text" --heads 5
check "heads that do not divide the features are refused" refused 2 "--heads 5 does not divide --hidden 128"
run "$lockstep" run -n 2 "$lstm" --data "$text" --cell gru
check "an unknown cell is named, with those there are" refused 2 "--cell cannot be 'gru'; possible: lstm, rnn"
run "$lockstep" run -n 2 "$gpt" --data "$text" --context 0
check "a number out of its range is named with the range" refused 2 "--context cannot be '0'; possible: 1 to 65536"
run "$lockstep" run -n 2 "$lstm" --data "$text" --lr 0
check "so is a learning rate" refused 2 "--lr cannot be '0'; possible: above 0"
cp -r "$text" "$work/short"
echo >"$work/short/ptb.valid.txt"
run "$lockstep" run -n 2 "$lstm" --data "$work/short"
check "a split without labels is named" refused 1 "short/ptb.valid.txt: a text of 1 token, where at least 2"
check "before training" eval '[ "$status" = 1 ] && ! grep -q "^epoch" "$work/out"'
run "$gpt" --help
check "--help explains the flags" grep -q -- '--context' "$work/out"
run "$lstm" --help --batch 7 --optimizer adam
check "and their defaults" eval 'grep -q -- "--epochs N .* (13)$" "$work/out" && grep -q -- "--batch N .* (20)$" "$work/out" &&
  grep -q -- "--lr X .* (0.002)$" "$work/out" && grep -q -- "--seed N .* (1)$" "$work/out"'
run "$build/examples/resnet9" --help
check "and what there is to choose from" grep -q -- '--recipe .*plain .*fast .*(plain)$' "$work/out"
[ "$n_failed" = 0 ]

#!/usr/bin/env bash
# labels: no-asan
# --device cuda from the command line, on emulated GPUs (tests/cuda/emulation): messages if there is no GPU or it cannot
# be used, runs of several ranks over NCCL and over the hosts, checkpoints, and a lost rank.
# Usage: test_cuda.sh BUILD_DIR. Prints a line per behaviour; fails if one does. Needs no data.
set -u
# shellcheck source=tests/system/common.sh
. "$(dirname "$0")/common.sh"
if [ ! -r "$build/tests/lockstep-nccl-emulated.so" ]; then
  echo "skipped: this build has no CUDA toolkit with NCCL, whose headers the emulated GPU needs"
  exit 77
fi
export LOCKSTEP_CUDA_MODULE=$build/tests/lockstep-cuda-emulated.so
export LOCKSTEP_NCCL_MODULE=$build/tests/lockstep-nccl-emulated.so
export LOCKSTEP_EMULATED_GPU=gpus=4
model=("$build/examples/mlp" --layers 3 --features 48 --hidden 32 --classes 8 --samples 1540)

# train RANKS ARGS...: an epoch has 22 steps
train() {
  local ranks=$1
  shift
  case " $* " in *" --steps "*) ;; *) set -- --steps 30 "$@" ;; esac
  rm -f "$work/summary"
  run "$lockstep" run -n "$ranks" "${model[@]}" --summary "$work/summary" "$@"
}
loss() { [ "$status" = 0 ] && value "$work/summary" train_loss; }
hash_of() { [ "$status" = 0 ] && value "$work/summary" params_sha256; }

# --- messages ---

with() { env "$1" "${model[@]}" --steps 3 --device "${@:2}"; } # VARIABLE=VALUE DEVICE ARGS...
run with LOCKSTEP_EMULATED_GPU=no-driver cuda
check "no driver" refused 2 'no NVIDIA driver on this machine.*--device cpu'
run with LOCKSTEP_EMULATED_GPU=old-driver cuda
check "a driver that is too old, with both versions" refused 2 'too old: it knows CUDA 11.4, this build needs'
run with LOCKSTEP_EMULATED_GPU=no-gpu cuda
check "no GPU" refused 2 'CUDA_VISIBLE_DEVICES'
run with LOCKSTEP_EMULATED_GPU=memory=67120000 cuda
check "no memory: how much is free, and what to do" refused 1 'no memory left.*GiB are free.*smaller batch'
run with LOCKSTEP_EMULATED_GPU=gpus=2 cuda:2
check "a GPU that there is not" refused 2 'no GPU 2: this process sees 2'
run with LOCKSTEP_CUDA_MODULE=/nowhere/module.so cuda
check "no module: where it was looked for" refused 2 'lockstep-cuda.so was not found in: LOCKSTEP_CUDA_MODULE \(/nowhere/module.so\)'
run with LOCKSTEP_NCCL_MODULE= cuda --strategy shared
check "a strategy that GPUs do not have" refused 2 "strategy 'shared'"
echo 'int absent(void) { return 0; }' >"$work/absent.c"
cc -shared -fPIC -o "$work/libcudnn_absent.so" "$work/absent.c"
cc -shared -fPIC -o "$work/module.so" "$work/absent.c" -Wl,--no-as-needed -L"$work" -lcudnn_absent
rm "$work/libcudnn_absent.so"
run with LOCKSTEP_CUDA_MODULE="$work/module.so" cuda
check "a library that is missing, by its name" refused 2 'cannot be loaded: libcudnn_absent.so'
LOCKSTEP_EMULATED_GPU=gpus=1 train 2 --device cuda
check "more ranks than GPUs" err_has 'local rank 1 has no GPU of its own: this process sees 1; .* cuda:0 if each rank sees only its own'
LOCKSTEP_NCCL_MODULE=/nowhere/nccl.so train 2 --device cuda
check "no NCCL module" err_has 'lockstep-nccl.so was not found'
run "$lockstep" info
check "info lists the GPUs" grep -q 'cuda:3 .*emulated GPU 3' "$work/out"
check "and their device" grep -q '^devices: .*, cuda$' "$work/out"
LOCKSTEP_EMULATED_GPU=no-gpu run "$lockstep" info
check "which is not there without one" grep -q '^devices: .*reference$' "$work/out"

for word in gpu auto; do
  LOCKSTEP_EMULATED_GPU=gpus=3 run "$lockstep" run --nproc-per-node $word bash -c 'echo "$RANK of $WORLD_SIZE"'
  check "--nproc-per-node $word: a rank per GPU" eval '[ "$status" = 0 ] && [ "$(sort "$work/out" | tail -n 1)" = "2 of 3" ]'
done
LOCKSTEP_EMULATED_GPU=no-gpu run "$lockstep" run --nproc-per-node gpu true
check "which is refused without one" refused 2 '--nproc-per-node gpu: .*CUDA_VISIBLE_DEVICES'

# --- runs ---

train 1 --device cpu
cpu=$(loss)
train 1 --device cuda
one=$(loss)
hash=$(hash_of)
check "the losses of the cpu device" near "$one" "$cpu" 1e-4
train 1 --device cuda
check "the same bits again" same "$(hash_of)" "$hash"
train 2 --device cuda
check "two ranks, a GPU each" near "$(loss)" "$one" 1e-4
hash=$(hash_of)
train 2 --device cuda:0
check "two ranks on one GPU, over the hosts: the same bits" same "$(hash_of)" "$hash"
train 2 --device cuda --transport tcp
check "and where ranks share no memory" same "$(hash_of)" "$hash"
train 2 --device cuda --strategy sharded
check "sharded: the same bits" same "$(hash_of)" "$hash"
run "$lockstep" run -n 2 --threads "${model[@]}" --steps 30 --summary "$work/summary" --device cuda
check "threads: the same bits" same "$(hash_of)" "$hash"
for ranks in 1 2 4; do
  train "$ranks" --device cuda --grains 4
  [ "$ranks" = 1 ] && hash=$(hash_of)
  check "grains: the same bits on $ranks ranks" same "$(hash_of)" "$hash"
done

# --- checkpoints ---

train 2 --device cuda --run "$work/run" --checkpoint-every 20
hash=$(hash_of)
mv "$work/run/checkpoints/step-000000000020.safetensors" "$work/checkpoint"
train 2 --device cuda --resume "$work/checkpoint"
check "a run that is resumed ends with the bits of one that was not interrupted" same "$(hash_of)" "$hash"
train 1 --device cpu --resume "$work/checkpoint"
check "and goes on on the cpu device" near "$(loss)" "$cpu" 0.1

# --- a lost rank ---

"$lockstep" run -n 2 "${model[@]}" --steps 100000 --device cuda >"$work/out" 2>"$work/err" &
launcher=$!
sleep 3
began_ms=$(($(date +%s%N) / 1000000))
kill -9 "$(pgrep -P $launcher -f examples/mlp | tail -n 1)"
wait $launcher
status=$? took_ms=$(($(date +%s%N) / 1000000 - began_ms))
check "a rank that is killed is named by the other" err_has 'rank [01] \(host .*pid'
check "at once ($took_ms ms), and the run fails" [ "$status" != 0 -a "$took_ms" -lt 5000 ]

[ $n_failed = 0 ]

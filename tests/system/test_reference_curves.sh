#!/usr/bin/env bash
# labels: no-asan
# The stored loss curves are what PyTorch computes. Skipped if PyTorch is not installed.
set -eu
if ! python=$(tools/torch-python); then
  echo "skipped: no Python here has PyTorch (Debian: python3-torch)"
  exit 77
fi
for model in mnist mlp; do
  "$python" tests/reference/make_curves.py --check "tests/reference/${model}_curve.txt"
done
for model in lstm transformer; do
  "$python" tests/reference/make_text_curves.py --check "tests/reference/${model}_curve.txt"
done
"$python" tests/reference/make_resnet9_curve.py --check tests/reference/resnet9_curve.txt

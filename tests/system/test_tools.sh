#!/usr/bin/env bash
# Scripts of tools/ that users call: their errors.
# Usage: test_tools.sh BUILD_DIR. Prints a line per behaviour; fails if one does.
set -u
# shellcheck source=tests/system/common.sh
. tests/system/common.sh

run tools/gpu-check --help
check "gpu-check --help is its usage" eval '[ $status = 0 ] && grep -q "^usage: tools/gpu-check" "$work/out"'
run tools/gpu-check --frobnicate
check "gpu-check refuses an unknown option" eval '[ $status = 2 ] && err_has "^usage: tools/gpu-check"'

# A machine without apt-get and CMake.
mkdir "$work/path"
for program in bash cat dirname env grep sed tr; do ln -s "$(type -P $program)" "$work/path/"; done
run env PATH="$work/path" tools/install-packages build
check "without CMake, and without apt-get, the build stops at what is missing" \
  eval '[ $status = 1 ] && err_has "please install the packages that provide: .*cmake ninja" && [ "$(wc -l <"$work/err")" = 1 ]'
for program in cmake ninja; do ln -s "$(type -P true)" "$work/path/$program"; done
run env PATH="$work/path" tools/install-packages build
check "without the rest it goes on" eval '[ $status = 0 ] && err_has "please install the packages that provide: "'
rm "$work/path/cmake"
printf '#!/bin/sh\necho cmake version 3.20.6\n' >"$work/path/cmake"
chmod +x "$work/path/cmake"
run env PATH="$work/path:/bin" tools/install-packages build
check "a CMake that cannot read the presets is named" \
  eval '[ $status = 1 ] && err_has "^make needs CMake 3.21 or newer, and this is 3.20.6\."'
[ $n_failed = 0 ]

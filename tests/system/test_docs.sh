#!/usr/bin/env bash
# labels: busy no-asan no-tsan
# The documentation is correct: every command in a ```sh block of the pages below runs, every ```c block compiles,
# complete programs run, and everything named exists. A line before a block says where the block runs:
#   <!-- run: hosts N -->      its parts "# on nodeI" run at once, each on its host (a network namespace)
#   <!-- run: ssh N -->        the same, with an sshd on each host
#   <!-- run: slurm N -->      a Slurm of N nodes
#   <!-- run: openmpi -->      mpirun is Open MPI's; likewise mpich
#   <!-- run: as it is -->     here, on all of the data, without shortening it
#   <!-- run: no, because WHY -->
# Without such a line it runs here. nodeI becomes its address, sizes become 1 KB, and the data are only the first
# images, so that an epoch has 30 steps. A ```hosts block is the file of that name. All runs of an epoch with --grains 4
# must end with the same bits.
# Usage: test_docs.sh BUILD_DIR. Prints a line per behaviour; fails if one does; names what it skipped.
set -u
# shellcheck source=tests/system/common.sh
. "$(dirname "$0")/common.sh"
# shellcheck source=tools/hosts.sh
. tools/hosts.sh
# shellcheck source=tests/system/slurm.sh
. tests/system/slurm.sh
pages="docs/launching.md docs/exercises.md docs/from-pytorch.md README.md"
root=$PWD
mkdir "$work/blocks" "$work/tree"
for entry in examples docs tools tests include; do ln -s "$root/$entry" "$work/tree/$entry"; done
ln -s "$build" "$work/tree/build"
export PATH=$build:$PATH LOCKSTEP_JOB_KEY=the-secret-of-this-test
hosts_made=0

clean_up() {
  slurm_stop
  [ $hosts_made = 0 ] || hosts_remove
  rm -rf "$work"
}
trap clean_up EXIT

if ! found=$(tools/find-data); then
  echo "skipped: no data set in MNIST's format on this machine"
  exit 77
fi
mkdir -p "$work/all" "$work/first/mnist"
ln -s "${found#* }" "$work/all/mnist"
python3 - "$work/all/mnist" "$work/first/mnist" <<'END'
import gzip, os, struct, sys
for part, n in (("train", 30 * 64), ("t10k", 640)):
    for kind, n_header, n_item in (("images-idx3", 16, 784), ("labels-idx1", 8, 1)):
        name = f"{part}-{kind}-ubyte"
        path = os.path.join(sys.argv[1], name)
        with open(path, "rb") if os.path.exists(path) else gzip.open(path + ".gz") as file:
            data = file.read(n_header + n * n_item)
        with open(os.path.join(sys.argv[2], name), "wb") as file:
            file.write(data[:4] + struct.pack(">I", n) + data[8:])
END
export LOCKSTEP_DATA=$work/first XDG_CACHE_HOME=$work/cache # nothing below reads or writes this machine's

# --- the blocks of a page: BLOCKS/page-LINE.LANGUAGE, and in .where the place where it runs ---

extract() { # PAGE
  awk -v stem="$work/blocks/$(basename "$1" .md)" '
    !inside && /^<!-- run: .* -->$/ { where = substr($0, 11, length($0) - 14); next }
    !inside && /^```/ {
      inside = 1
      file = length($0) > 3 ? sprintf("%s-%03d.%s", stem, NR, substr($0, 4)) : ""
      if (file != "") { printf "" >file; print where == "" ? "here" : where >(file ".where") }
      next
    }
    inside && /^```$/ { if (file != "") { close(file); close(file ".where") } inside = 0; where = ""; next }
    inside && file != "" { print >file }
    !inside && NF { where = "" }' "$1"
}
for page in $pages; do extract "$page"; done

# --- commands ---

shorten() { # FILE
  perl -pe 's/--sizes \S+/--sizes 1K/g; s/--checkpoint-every \d+/--checkpoint-every 10/g;
    s/\bnode(\d)\b/"10.77.0." . ($1 + 1)/ge unless /^# on /; s/--hosts /--ssh "\$hosts_ssh" --hosts /' "$1"
}
params=$work/params # of every run of an epoch in 4 grains: hash and block
: >"$params"
# BLOCK FILE: each command's world must report its result once. A rank that took itself for a world would report, too.
note_params() {
  local wanted
  wanted=$(grep -c -- '--grains 4 --epochs 1' "$2")
  sed -nE "s/^mnist: .* 30 steps .* params ([0-9a-f]+).*/\1 $1/p" "$work/out" >"$work/noted"
  check "$1: every run has told its result once" [ "$(wc -l <"$work/noted")" = "$wanted" ]
  cat "$work/noted" >>"$params"
}
run_block() { # NAME FILE: runs in the tree, with output in $work/out and $work/err
  (cd "$work/tree" && timeout 60 bash -eu -o pipefail "$2") >"$work/out" 2>"$work/err" </dev/null
  status=$?
  check "$1" [ "$status" = 0 ]
  note_params "$1" "$2"
}
all_same() { [ "$(grep -c ' params ' "$work/out")" -gt 1 ] && [ "$(sed -n 's/.* params //p' "$work/out" | sort -u | wc -l)" = 1 ]; }
skip() { # NAME WHY
  echo "skipped: $1: $2"
}

# NAME FILE N: runs the parts of a block, each starting with "# on nodeI", at the same time
run_on_hosts() {
  local name=$1 file=$2 host pids=() pid
  awk -v stem="$file" '/^# on / { part = stem "." $3 } { print >part }' "$file"
  status=0
  for host in "$file".node*; do
    (cd "$work/tree" && host_run "${host##*.node}" timeout 60 bash -eu -o pipefail "$host") \
      >"$host.out" 2>"$host.err" </dev/null &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || status=1; done
  cat "$file".node*.out >"$work/out"
  cat "$file".node*.err >"$work/err"
  check "$name" [ "$status" = 0 ]
  note_params "$name" "$file.node0"
}

run_commands() { # FILE
  local file=$1 name where why
  name=$(basename "$file" .sh)
  where=$(cat "$file.where")
  [ "$where" = "as it is" ] || { shorten "$file" >"$file.short" && mv "$file.short" "$file"; }
  case $where in
    here) run_block "$name" "$file" ;;
    "as it is")
      LOCKSTEP_DATA=$work/all run_block "$name" "$file"
      check "$name: all of its runs ended with the same bits" all_same ;;
    no,*) skip "$name" "${where#no, because }" ;;
    hosts*) if [ -z "$no_hosts" ]; then run_on_hosts "$name" "$file"; else skip "$name" "$no_hosts"; fi ;;
    ssh*) if [ -z "$no_ssh" ]; then run_on_hosts "$name" "$file"; else skip "$name" "$no_ssh"; fi ;;
    slurm*) if [ -z "$no_slurm" ]; then run_block "$name" "$file"; else skip "$name" "$no_slurm"; fi ;;
    openmpi | mpich)
      why=$(mpi_can "$where") || { skip "$name" "$why"; return; }
      printf '#!/bin/sh\nexec mpirun.%s "$@"\n' "$where" >"$work/mpi/mpirun" && chmod +x "$work/mpi/mpirun"
      PATH=$work/mpi:$PATH run_block "$name" "$file" ;;
    *) check "$name: '<!-- run: $where -->' is none of the places" false ;;
  esac
}

mkdir "$work/mpi"
mpi_can() { command -v "mpirun.$1" >/dev/null || { echo "there is no mpirun.$1"; return 1; }; }

no_hosts='' no_ssh='' no_slurm=''
hosts_made=1
hosts_make 1gbit >"$work/why" 2>&1 || no_hosts=$(tail -n 1 "$work/why")
no_ssh=$no_hosts
[ -n "$no_hosts" ] || hosts_ssh >"$work/why" 2>&1 || no_ssh=$(tail -n 1 "$work/why")
export hosts_ssh
for file in "$work"/blocks/*.hosts; do shorten "$file" >"$work/tree/hosts"; done
slurm_start 3 >"$work/why" 2>&1 || no_slurm=$(tail -n 1 "$work/why")
for file in "$work"/blocks/*.sh; do run_commands "$file"; done
check "every training in 4 grains ended with the same bits, $(wc -l <"$params") of them" \
  [ "$(cut -d ' ' -f 1 "$params" | sort -u | wc -l)" = 1 ]
[ "$(cut -d ' ' -f 1 "$params" | sort -u | wc -l)" = 1 ] || sort "$params"

# --- C: programs are built and run; fragments are compiled in a function that declares what they use ---

compile() { # FILE.c PROGRAM
  cc -std=c11 -Wall -Wextra -Werror -I "$root/include" "$1" -o "$2" -L "$build" -llockstep "-Wl,-rpath,$build" -lm
}
fragment() { # FILE
  cat <<'END'
#include <lockstep/lockstep.h>
int fragment(lks_group *world, float *gradient, size_t count, lks_program *program, lks_distributed_optimizer *optimizer,
             lks_trainer *trainer, lks_loader *loader, lks_node *x, lks_node *y, double n_samples);
int fragment(lks_group *world, float *gradient, size_t count, lks_program *program, lks_distributed_optimizer *optimizer,
             lks_trainer *trainer, lks_loader *loader, lks_node *x, lks_node *y, double n_samples) {
    (void)world, (void)gradient, (void)count, (void)program, (void)optimizer, (void)trainer, (void)loader, (void)x, (void)y;
    (void)n_samples;
END
  cat "$1"
  echo "    return 0; } int main(void) { return 0; }"
}
for file in "$work"/blocks/*.c; do
  name=$(basename "$file" .c)
  if grep -q '^int main(' "$file"; then
    run compile "$file" "$work/$name"
    check "$name compiles" [ "$status" = 0 ]
    run lockstep run -n 2 "$work/$name" "$LOCKSTEP_DATA/mnist" "$work/$name.safetensors"
    check "$name runs" [ "$status" = 0 ]
  else
    fragment "$file" >"$work/fragment.c"
    run compile "$work/fragment.c" "$work/fragment"
    check "$name compiles, within a function" [ "$status" = 0 ]
  fi
done

# --- PyTorch's side ---

if python=$(tools/torch-python); then
  for file in "$work"/blocks/*.python; do
    run timeout 120 "$lockstep" run -n 2 "$python" "$file" "$LOCKSTEP_DATA/mnist" "$work/model.pt"
    check "$(basename "$file" .python) runs under lockstep run" eval '[ "$status" = 0 ] && grep -q "^test accuracy 0\." "$work/out"'
  done
  run "$python" tests/system/check_docs.py --torch
  check "PyTorch has all that from-pytorch.md names" [ "$status" = 0 ]
else
  skip "PyTorch's side of from-pytorch.md" "no Python here has PyTorch"
fi

# --- names, and the script of the exercises ---

{
  for command in run bench info data; do lockstep help $command; done
  for trainer in mnist mlp resnet9 language_model transformer; do "$build/examples/$trainer" --help; done
} >"$work/help" 2>/dev/null
run python3 tests/system/check_docs.py "$work/help"
check "all that the pages name is there" [ "$status" = 0 ]
run docs/exercises.sh --build "$build" --quick hello fake_world by_hand
check "docs/exercises.sh prints its tables" eval '[ "$status" = 0 ] && [ "$(grep -cE "^\| (all_)?reduce " "$work/out")" = 10 ]'
run docs/exercises.sh --build "$build" nonsense
check "docs/exercises.sh names an exercise that is not there" eval "[ $status = 2 ] && err_has \"no exercise 'nonsense'\""

[ $n_failed = 0 ]

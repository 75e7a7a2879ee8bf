# What system tests share. Sourced by them with the build directory as $1; makes $work, which is gone at the end.
# shellcheck shell=bash
# shellcheck disable=SC2034 # what is set here is read there
build=$1
lockstep=$build/lockstep
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
n_failed=0
shm_before=$(ls /dev/shm)
# Open MPI refuses root, and takes 2 cores here for 2 slots and binds ranks to them: version 4 by OMPI_, 5 by PRTE_.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe PRTE_MCA_hwloc_default_binding_policy=none

check() { # NAME COMMAND...: the behaviour holds if the command succeeds
  local name=$1
  shift
  if "$@"; then echo "ok   $name"; else
    echo "FAIL $name"
    tail -n 20 "$work/out" "$work/err" | sed 's/^/     | /'
    n_failed=$((n_failed + 1))
  fi
}

run() { # COMMAND...: output in $work/out and $work/err, exit status in $status
  "$@" >"$work/out" 2>"$work/err" </dev/null
  status=$?
}

# Whether the build's sanitizers make it many times slower.
is_slow_build() { grep -q '^LOCKSTEP_SANITIZE:.*=.' "$build/CMakeCache.txt" 2>/dev/null; }

# Before a command in the background whose output is waited for: it begins its files itself, but may do so when they have
# been looked at already, and what was found there was the last command's.
forget_output() { : >"$work/out" && : >"$work/err"; }

value() { # FILE KEY: of a summary; fails, and prints nothing, without the file or the key
  [ -r "$1" ] && sed -nE "s/.*\"$2\":\"?([^\",}]+).*/\1/p" "$1" | grep .
}

# Comparisons are of numbers and texts that are there: what is empty passes none.
is_number() { [[ $1 =~ ^-?[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]+)?$ ]]; }
at_least() { is_number "$1" && is_number "$2" && awk -v a="$1" -v b="$2" 'BEGIN { exit !(a >= b) }'; }
below() { is_number "$1" && is_number "$2" && awk -v a="$1" -v b="$2" 'BEGIN { exit !(a < b) }'; }
near() { # A B PART: within that part of B
  is_number "$1" && is_number "$2" &&
    awk -v a="$1" -v b="$2" -v part="$3" 'BEGIN { d = a - b; exit !(d * d <= part * part * b * b) }'
}
same() { [ -n "$1" ] && [ "$1" = "$2" ]; }
differ() { [ -n "$1" ] && [ -n "$2" ] && [ "$1" != "$2" ]; }
status_is() { [ "$status" = "$1" ]; }
err_has() { grep -qE -- "$1" "$work/err"; }
out_has() { grep -qE -- "$1" "$work/out"; }
eventually() { # COMMAND...: within 20 s
  local i
  for ((i = 0; i < 200; i++)); do "$@" && return; sleep 0.1; done
  return 1
}
# Eventually: other tests may run at the same time, and what they have there is gone soon.
nothing_new_in_shm() { [ -z "$(comm -13 <(echo "$shm_before") <(ls /dev/shm))" ]; }

# STATUS TEXT: one line that says what is wrong, beside the launcher's of which rank ended first (and, in a build without
# oneDNN, the warning that it is slow)
refused() {
  [ "$status" = "$1" ] && err_has "$2" && [ "$(grep -cvE '^lockstep run: rank|built without oneDNN' "$work/err")" = 1 ]
}

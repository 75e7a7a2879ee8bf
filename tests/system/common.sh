# Shared functions of the system tests. The tests source this file with the build directory as $1. It creates $work,
# which is removed at the end.
# shellcheck shell=bash
# shellcheck disable=SC2034 # what is set here is read there
build=$1
lockstep=$build/lockstep
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
n_failed=0
shm_before=$(ls /dev/shm)
# Open MPI refuses to run as root. It also treats 2 cores as 2 slots and binds ranks to them. Version 4 reads OMPI_*,
# version 5 reads PRTE_*.
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

# Whether the build has sanitizers, which make it many times slower.
is_slow_build() { grep -q '^LOCKSTEP_SANITIZE:.*=.' "$build/CMakeCache.txt" 2>/dev/null; }

# Call this before a background command whose output is awaited. The command truncates these files itself, but perhaps
# only after they were read: they would then show the output of the previous command.
forget_output() { : >"$work/out" && : >"$work/err"; }

value() { # FILE KEY: of a summary; fails and prints nothing without the file or the key
  [ -r "$1" ] && sed -nE "s/.*\"$2\":\"?([^\",}]+).*/\1/p" "$1" | grep .
}

# Comparisons fail if an operand is empty.
is_number() { [[ $1 =~ ^-?[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]+)?$ ]]; }
at_least() { is_number "$1" && is_number "$2" && awk -v a="$1" -v b="$2" 'BEGIN { exit !(a >= b) }'; }
below() { is_number "$1" && is_number "$2" && awk -v a="$1" -v b="$2" 'BEGIN { exit !(a < b) }'; }
near() { # A B PART: A differs from B by at most PART of B
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
# Use it with `eventually`: other tests may run at the same time, and their segments disappear soon. Killed ranks of
# Open MPI 5 leave its own.
nothing_new_in_shm() { ! comm -13 <(echo "$shm_before") <(ls /dev/shm) | grep -qv '^sm_segment\.'; }

# STATUS TEXT: one line says what is wrong. Further lines may only be the launcher's, which names the rank that ended
# first, and the warning of a build without oneDNN.
refused() {
  [ "$status" = "$1" ] && err_has "$2" && [ "$(grep -cvE '^lockstep run: rank|built without oneDNN' "$work/err")" = 1 ]
}

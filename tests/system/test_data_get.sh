#!/usr/bin/env bash
# labels: no-asan
# lockstep data get, and --download of the trainers, with a local server that serves correctly or badly.
# Usage: test_data_get.sh BUILD_DIR. Prints a line per behaviour; fails if one does.
set -u
# shellcheck source=tests/system/common.sh
. tests/system/common.sh
mnist=$build/examples/mnist
if ! "$lockstep" data get mnist --dir "$work/none" >/dev/null 2>"$work/err" && grep -q libcurl "$work/err"; then
  echo "skipped: $(cat "$work/err")"
  exit 77
fi
command -v python3 >/dev/null || { echo "skipped: there is no python3"; exit 77; }
found=$(tools/find-data) || { echo "skipped: no data set is here that could be served"; exit 77; }
read -r set source <<<"$found"

unset LOCKSTEP_DATA XDG_CACHE_HOME
export HOME=$work/home
export no_proxy=127.0.0.1
mkdir "$work/root"
ln -s "$source" "$work/root/$set"
coproc server { exec python3 tests/system/bad_server.py "$work/root" "$work/log"; }
read -r port <&"${server[0]}"
serve() { export LOCKSTEP_DATA_MIRROR=http://127.0.0.1:$port/$1; } # MODE

n_asked() { grep -cE -- "$1" "$work/log"; }
asked() { [ "$(n_asked "$1")" = "$2" ]; } # PATTERN COUNT
forget() { : >"$work/log"; }
is_right() { "$lockstep" data verify "$set" --dir "$1" --quiet; }
only() { [ "$(ls -A "$1")" = "$2" ]; } # DIRECTORY NAMES: it contains nothing else
data() { run timeout 100 "$lockstep" data "$@"; }
got() { [ "$status" = 0 ] && is_right "$1" && only "$1" "$set"; }
failed() { [ "$status" = "$1" ] && err_has "$2" && [ "$(wc -l <"$work/err")" = 1 ]; }
forget

# --- one process ---
serve good
data get "$set" --dir "$work/a"
check "a set is downloaded" eval 'got "$work/a" && asked "^good" 4 && out_has "^$set: $work/a/$set$"'
serve 404
data get "$set" --dir "$work/a"
check "what is there is not downloaded again" eval 'got "$work/a" && asked "^404" 0 && out_has "was there already"'
rm "$work/a/$set"/t10k-labels*
printf 'x' | dd of="$(ls "$work/a/$set"/train-images*)" bs=1 seek=5000 conv=notrunc 2>"$work/dd"
data verify "$set" --dir "$work/a"
check "verify names the file that is not right" failed 1 "$work/a/$set/train-images-idx3-ubyte"
data get "$set" --dir "$work/a"
check "a file that differs is not replaced unasked" failed 1 "train-images-idx3-ubyte.*--force"
serve good
forget
data get "$set" --dir "$work/a" --force
check "--force replaces it, and gets what is missing" eval 'got "$work/a" && asked "^good" 2'

serve 404
data get "$set" --dir "$work/b"
check "a file that no mirror has is named" failed 1 "train-images-idx3-ubyte.gz cannot be downloaded: .*HTTP status 404"
check "nothing is left of a failed download" only "$work/b" ""
serve 503-twice
data get "$set" --dir "$work/b"
check "a server that recovers is waited for" got "$work/b"
data get imagenet --dir "$work/b"
check "an unknown set is refused with the known ones" failed 2 "no data set 'imagenet'; there are mnist, fashion-mnist, cifar-10, ptb"
data get
check "get without a name is refused" failed 2 "no data set is given"
data fetch "$set"
check "an unknown verb is refused" failed 2 "'fetch' is not one of get, verify, list"
data list --dir "$work/b"
check "list tells what there is" eval '[ $status = 0 ] && [ "$(wc -l <"$work/out")" = 8 ] && out_has "^ +$work/b/$set$"'

# --- interrupted ---
n_bytes_here() { stat -c %s "$1/.$set.lockstep-download-$(id -u)/train-images-idx3-ubyte.gz" 2>/dev/null || echo 0; }
wait_for_bytes() { # DIRECTORY
  for _ in $(seq 400); do
    [ "$(n_bytes_here "$1")" -gt 2000000 ] && return
    sleep 0.05
  done
}
serve stall
"$lockstep" data get "$set" --dir "$work/c" >"$work/out" 2>"$work/err" &
victim=$!
wait_for_bytes "$work/c"
kill -9 $victim
wait $victim 2>/dev/null
check "a killed download leaves no half of a set" eval '[ ! -e "$work/c/$set" ]'
n_bytes=$(n_bytes_here "$work/c")
serve page
data get "$set" --dir "$work/c"
check "a login page costs nothing of it" eval "failed 1 'another file: 27 bytes' && [ \$(n_bytes_here $work/c) = $n_bytes ]"
forget
serve good
data get "$set" --dir "$work/c"
check "it goes on where it was killed" eval 'got "$work/c" && asked "^good .*train-images.* bytes=[0-9]{7,}-$" 1 && asked "^good" 4'

as_nobody=(setpriv --reuid 65534 --clear-groups)
if [ "$(id -u)" = 0 ] && "${as_nobody[@]}" test -x "$lockstep" 2>/dev/null; then
  chmod 755 "$work"
  for mode in 777 1777; do
    mkdir -m $mode "$work/shared$mode"
    serve stall
    (umask 022 && exec "$lockstep" data get "$set" --dir "$work/shared$mode" --quiet) >"$work/out" 2>"$work/err" &
    victim=$!
    wait_for_bytes "$work/shared$mode"
    kill -9 $victim
    wait $victim 2>/dev/null
    lock=$work/shared$mode/.$set.lockstep-lock
    "${as_nobody[@]}" "$lockstep" data get "$set" --dir "$work/shared$mode" --quiet >"$work/out" 2>"$work/err" &
    victim=$!
    for _ in $(seq 400); do
      read -r _ holder _ 2>/dev/null <"$lock"
      [ "$holder" = $victim ] && break
      sleep 0.05
    done
    before=$(stat -c %y "$lock")
    sleep 2.5
    check "in a directory of mode $mode the lock names the user who took it over, and shows that it lives" eval \
      "[ '$holder' = $victim ] && [ '$(stat -c %y "$lock")' != '$before' ]"
    kill -9 $victim
    wait $victim 2>/dev/null
    serve good
    run timeout 100 "${as_nobody[@]}" "$lockstep" data get "$set" --dir "$work/shared$mode"
    check "what another user's killed download left in a directory of mode $mode stops nobody" eval \
      '[ "$status" = 0 ] && [ -e "$work/shared$mode/.$set.lockstep-download-0" ] && is_right "$work/shared$mode"'
  done
  mkdir -m 1777 "$work/sticky"
  forget
  for kind in new download; do
    mkdir -m 777 "$work/sticky/.$set.lockstep-$kind-65534"
    run timeout 100 "${as_nobody[@]}" "$lockstep" data get "$set" --dir "$work/sticky"
    check "another user's directory '$kind' is refused before the download" eval \
      'failed 1 "$work/sticky/.$set.lockstep-$kind-65534: (Operation not permitted|belongs to another user)" && asked "^good" 0'
    rmdir "$work/sticky/.$set.lockstep-$kind-65534"
  done
  mkdir -m 700 "$work/secret"
  ln -s "$source" "$work/secret/$set"
  for verb in get verify; do
    run timeout 100 "${as_nobody[@]}" "$lockstep" data $verb "$set" --dir "$work/secret"
    check "$verb says that a directory may not be searched" failed 1 "$work/secret/$set: Permission denied"
  done
else
  echo "skipped: what another user's killed download left (needs root, and a build that another user may run)"
fi

# --- two at the same time ---
forget
serve slow
"$lockstep" data get "$set" --dir "$work/d" >"$work/first" 2>&1 &
first=$!
data get "$set" --dir "$work/d"
wait $first || status=1
check "two at once download once" eval 'got "$work/d" && asked "^slow" 4'

# --- ranks ---
forget
serve good
export LOCKSTEP_DATA=$work/e
run timeout 100 "$lockstep" run -n 4 "$mnist" --dataset "$set" --download --steps 3
check "of four ranks one downloads" eval '[ $status = 0 ] && asked "^good" 4 && is_right "$work/e" && only "$work/e" "$set"'
run timeout 100 "$lockstep" run -n 4 --threads "$mnist" --dataset "$set" --download --steps 3
check "the next run finds it there" eval '[ $status = 0 ] && asked "^good" 4'

cat >"$work/two_hosts" <<'END'
export LOCKSTEP_HOST_ID=host-$((RANK / 2)) LOCAL_RANK=$((RANK % 2)) LOCAL_WORLD_SIZE=2
[ "$1" = shared ] || export LOCKSTEP_DATA=$LOCKSTEP_DATA/$LOCKSTEP_HOST_ID
shift
exec "$@"
END
forget
export LOCKSTEP_DATA=$work/f
run timeout 100 "$lockstep" run -n 4 sh "$work/two_hosts" shared "$mnist" --dataset "$set" --download --steps 3
check "of two hosts that share a directory one downloads" eval '[ $status = 0 ] && asked "^good" 4 && is_right "$work/f"'
forget
export LOCKSTEP_DATA=$work/g
run timeout 100 "$lockstep" run -n 4 sh "$work/two_hosts" own "$mnist" --dataset "$set" --download --steps 3
check "of two hosts with their own each does" eval \
  '[ $status = 0 ] && asked "^good" 8 && is_right "$work/g/host-0" && is_right "$work/g/host-1"'

export LOCKSTEP_DATA=$work/h
serve 404
run timeout 100 "$lockstep" run -n 4 "$mnist" --dataset "$set" --download --steps 3
check "a download that fails is an error of all, told once" refused 1 "HTTP status 404"
serve stall
"$lockstep" run -n 4 "$mnist" --dataset "$set" --download --steps 3 --quiet >"$work/out" 2>"$work/err" &
job=$!
wait_for_bytes "$work/h"
read -r _ victim _ <"$work/h/.$set.lockstep-lock"
kill -9 "$victim"
wait $job
status=$?
check "a rank that is killed meanwhile is named, and the others end" eval '[ $status = 137 ] && err_has "pid $victim"'
serve good
run timeout 100 "$lockstep" run -n 4 "$mnist" --dataset "$set" --download --steps 3
check "and the next run goes on from there" eval '[ $status = 0 ] && is_right "$work/h" && only "$work/h" "$set"'

# --- missing permissions, a full disk: file systems in a mount namespace, which ends with its process ---
on_tmpfs() { # OPTIONS: downloads the set into a tmpfs
  mkdir -p "$work/tmpfs"
  run timeout 100 unshare -m sh -c "mount -t tmpfs -o $1 none $work/tmpfs && exec $lockstep data get $set --quiet --dir $work/tmpfs"
}
if unshare -m true 2>/dev/null; then
  on_tmpfs size=300k
  check "no space left is said" failed 1 "$work/tmpfs/.*: No space left on device"
  on_tmpfs ro
  check "a directory that cannot be written to is named" failed 1 "$work/tmpfs/.*: Read-only file system"
else
  echo "skipped: no space and read-only file systems: unshare -m is not permitted"
fi

eval "exec ${server[1]}>&-" # which ends it
[ $n_failed = 0 ]

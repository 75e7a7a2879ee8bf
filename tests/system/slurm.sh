# A real Slurm on this machine with any number of nodes. To be sourced:
#
#     . tests/system/slurm.sh
#     slurm_start 3                 # nodes n1, n2, n3 with 4 CPUs each; on failure prints one line with the reason
#     srun -N 3 -n 3 hostname       # srun, sbatch, salloc, scancel, squeue, sinfo, scontrol are now this Slurm's
#     slurm_stop                    # also at exit; if this shell is killed, the kernel does it
#
# Needs root and Debian's slurm-wlm and munge. Everything, including jobs, runs in its own namespaces: processes end
# with their init, and nobody else sees the addresses (10.78.0.1 is n1's) and /etc/hosts. Each node is a slurmd with its
# own name and address. The nodes share kernel, memory and loopback.
# shellcheck shell=bash
slurm_dir=
slurm_namespaces=

slurm_can() { # prints the reason if not
  local program
  for program in munged slurmctld slurmd srun unshare nsenter setpriv ip; do
    PATH=$PATH:/usr/sbin:/sbin command -v $program >/dev/null ||
      { echo "a Slurm needs $program (Debian: slurm-wlm munge util-linux iproute2)"; return 1; }
  done
  [ "$(id -u)" = 0 ] || { echo "a Slurm needs root"; return 1; }
  unshare --mount --net --pid --uts --fork --mount-proc true 2>/dev/null ||
    { echo "a Slurm needs the right to make namespaces"; return 1; }
}

slurm_configure() { # NODES CPUS
  cat >"$slurm_dir/slurm.conf" <<EOF
ClusterName=lockstep
SlurmctldHost=localhost
SlurmUser=root
SlurmdUser=root
AuthInfo=socket=$slurm_dir/munge.socket
StateSaveLocation=$slurm_dir/state
SlurmdSpoolDir=$slurm_dir/spool-%n
SlurmctldPidFile=$slurm_dir/slurmctld.pid
SlurmdPidFile=$slurm_dir/slurmd-%n.pid
SlurmctldLogFile=$slurm_dir/slurmctld.log
SlurmdLogFile=$slurm_dir/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
KillWait=10
SchedulerParameters=batch_sched_delay=0
NodeName=n[1-$1] NodeHostname=localhost NodeAddr=10.78.0.[1-$1] Port=[7001-$((7000 + $1))] CPUs=$2
PartitionName=all Nodes=ALL Default=YES State=UP OverSubscribe=FORCE:4
EOF
}

# The init of the namespaces: starts the daemons and waits. Its arguments are $slurm_dir and NODES.
slurm_init='
set -eu
dir=$1
ip link set lo up
{ echo 127.0.0.1 localhost; for i in $(seq "$2"); do echo "10.78.0.$i n$i"; done; } >"$dir/hosts"
mount --bind "$dir/hosts" /etc/hosts
(umask 077; head -c 1024 /dev/urandom >"$dir/munge.key")
munged --key-file="$dir/munge.key" --socket="$dir/munge.socket" --pid-file="$dir/munge.pid" --log-file="$dir/munge.log" \
  --seed-file="$dir/munge.seed" --num-threads=2
slurmctld -f "$dir/slurm.conf"
for i in $(seq "$2"); do
  ip addr add "10.78.0.$i/32" dev lo
  unshare --uts sh -c "hostname n$i; exec slurmd -N n$i -f $dir/slurm.conf"
done
sleep infinity &
wait
'

slurm_wrap() { # PROGRAM: makes the name a command of the sourcing shell and its children
  local program
  program=$(command -v "$1")
  cat >"$slurm_dir/bin/$1" <<EOF
#!/bin/sh
[ "\${SLURM_CONF:-}" != $slurm_dir/slurm.conf ] || exec $program "\$@" # inside, in a job's script
exec nsenter --target $slurm_namespaces --mount --net --pid --uts --ipc \\
  env SLURM_CONF=$slurm_dir/slurm.conf sh -c 'cd "\$0" && exec "\$@"' "\$PWD" $program "\$@"
EOF
  chmod +x "$slurm_dir/bin/$1"
}

slurm_start() { # NODES [CPUS]: not in a subshell
  local n_nodes=$1 why name i
  why=$(slurm_can) || { echo "$why"; return 1; }
  slurm_dir=$(mktemp -d /tmp/lockstep-slurm-XXXXXX)
  chmod 755 "$slurm_dir"
  mkdir "$slurm_dir/state" "$slurm_dir/bin"
  slurm_configure "$n_nodes" "${2:-4}"
  PATH=$PATH:/usr/sbin:/sbin setpriv --pdeathsig KILL \
    unshare --mount --net --pid --uts --ipc --fork --kill-child --mount-proc \
    bash -c "$slurm_init" slurm-init "$slurm_dir" "$n_nodes" </dev/null >"$slurm_dir/init.log" 2>&1 &
  slurm_unshare=$!
  for ((i = 0; i < 300; i++)); do
    slurm_namespaces=$(cat /proc/$slurm_unshare/task/$slurm_unshare/children 2>/dev/null) || break
    slurm_namespaces=${slurm_namespaces// /}
    if [ $i = 0 ] || [ -z "$slurm_namespaces" ] || [ ! -S "$slurm_dir/munge.socket" ]; then sleep 0.1; continue; fi
    for name in srun sbatch salloc scancel squeue sinfo scontrol; do slurm_wrap $name; done
    [ "$("$slurm_dir/bin/sinfo" -h -t idle -o %D 2>/dev/null)" = "$n_nodes" ] && break
    sleep 0.1
  done
  if [ $i = 300 ] || [ -z "$slurm_namespaces" ]; then
    echo "Slurm did not start: $(tail -qn 1 "$slurm_dir"/*.log | tail -n 1)"
    slurm_stop
    return 1
  fi
  PATH=$slurm_dir/bin:$PATH
}

slurm_run() { # COMMAND...: runs in the namespaces of the nodes, outside any job
  nsenter --target "$slurm_namespaces" --mount --net --pid --uts --ipc \
    env SLURM_CONF="$slurm_dir/slurm.conf" sh -c 'cd "$0" && exec "$@"' "$PWD" "$@"
}

slurm_stop() {
  [ -n "$slurm_dir" ] || return 0
  # If its init dies, all processes of the namespace end. Then unshare ends, too.
  kill -9 "${slurm_namespaces:-$slurm_unshare}" 2>/dev/null
  wait "$slurm_unshare" 2>/dev/null
  PATH=${PATH#"$slurm_dir/bin:"}
  rm -rf "$slurm_dir"
  slurm_dir=
}

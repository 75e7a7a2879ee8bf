# Several hosts on one machine, as network namespaces. A veth link joins two hosts. More hosts have a link each to a bridge
# in a namespace of its own. tc tbf limits the rate of what leaves a host. This file is sourced, not run. It needs root and
# iproute2. The burst of a link holds a packet of 64 KiB, the largest that TCP hands to a network card. With a smaller burst,
# the kernel would spend time on cutting packets, which a card does itself.
# Namespaces do not share abstract sockets, so only ranks of one "host" can share memory.
# shellcheck shell=bash
hosts=()               # the namespaces; the i-th is 10.77.0.(i+1), and host-a, host-b, ... by name
hosts_switch=lks-$$-sw # the namespace of the bridge, if any
hosts_dir=             # files that only the hosts see

# Removes the hosts and kills the processes that still run there. May be called after hosts_make has failed.
hosts_remove() {
  local host
  for host in "${hosts[@]}"; do
    ip netns pids "$host" 2>/dev/null | xargs -r kill -9 2>/dev/null
    ip netns del "$host" 2>/dev/null
  done
  ip netns del "$hosts_switch" 2>/dev/null
  [ -z "$hosts_dir" ] || rm -rf "$hosts_dir"
  hosts=()
}

# hosts_make RATE [N]: makes N hosts (default 2), 10.77.0.1 to 10.77.0.N. On failure it prints one line with the reason.
hosts_make() {
  local rate=$1 n=${2:-2} index host why
  command -v ip >/dev/null && command -v tc >/dev/null || {
    echo "network namespaces need iproute2 (ip, tc)"
    return 1
  }
  hosts_dir=$(mktemp -d)
  echo "hosts: files" >"$hosts_dir/nsswitch.conf" # there is no name server
  echo "127.0.0.1 localhost" >"$hosts_dir/hosts"
  for ((index = 0; index < n; index++)); do
    host=lks-$$-$(host_letter "$index")
    hosts+=("$host")
    echo "10.77.0.$((index + 1)) host-$(host_letter "$index")" >>"$hosts_dir/hosts"
    why=$(ip netns add "$host" 2>&1) || {
      echo "cannot make a network namespace: $why"
      return 1
    }
    ip -n "$host" link set lo up
  done
  if [ "$n" = 2 ]; then
    ip link add eth0 netns "${hosts[0]}" type veth peer name eth0 netns "${hosts[1]}"
  else
    cables_to_switch
  fi || {
    echo "cannot make a veth link"
    return 1
  }
  for ((index = 0; index < n; index++)); do
    host=${hosts[index]}
    ip -n "$host" addr add "10.77.0.$((index + 1))/24" dev eth0 && ip -n "$host" link set eth0 up || {
      echo "cannot set an address"
      return 1
    }
    ip netns exec "$host" tc qdisc add dev eth0 root tbf rate "$rate" burst 96kb latency 50ms 2>/dev/null ||
      echo "note: tc tbf is missing here, the rate of the link is not limited"
  done
}

cables_to_switch() {
  local index
  ip netns add "$hosts_switch" && ip -n "$hosts_switch" link add bridge type bridge &&
    ip -n "$hosts_switch" link set bridge up || return 1
  for index in "${!hosts[@]}"; do
    ip link add eth0 netns "${hosts[index]}" type veth peer name "port$index" netns "$hosts_switch" &&
      ip -n "$hosts_switch" link set "port$index" master bridge up || return 1
  done
}

host_letter() { printf "\\$(printf %03o $((97 + $1)))"; }

# host_run INDEX COMMAND...: runs a command on that host, with the host's own hostname. The command replaces the calling
# shell, so that signals reach it. Call this in a subshell or in the background.
host_run() {
  local index=$1 name
  shift
  name=host-$(host_letter "$index")
  # shellcheck disable=SC2016 # the inner shell expands it
  exec ip netns exec "${hosts[index]}" unshare --uts sh -c 'for file in hosts nsswitch.conf; do mount --bind "$1/$file" "/etc/$file" || exit; done
    hostname "$0" && shift && exec "$@"' "$name" "$hosts_dir" "$@"
}

# host_unplug INDEX and host_plug INDEX: disconnect a host from the switch and reconnect it. They need three hosts or more.
host_unplug() { ip -n "$hosts_switch" link set "port$1" down; }
host_plug() { ip -n "$hosts_switch" link set "port$1" up; }

# hosts_ssh: starts an sshd on each host, with keys of its own. $hosts_ssh is the ssh command to use. On failure it prints
# one line with the reason.
hosts_ssh() {
  local index
  command -v sshd >/dev/null || [ -x /usr/sbin/sshd ] || {
    echo "there is no sshd (Debian: openssh-server)"
    return 1
  }
  ssh-keygen -q -t ed25519 -N '' -f "$hosts_dir/host" && ssh-keygen -q -t ed25519 -N '' -f "$hosts_dir/user" || {
    echo "ssh-keygen failed"
    return 1
  }
  cp "$hosts_dir/user.pub" "$hosts_dir/authorized"
  printf '%s\n' "HostKey $hosts_dir/host" "AuthorizedKeysFile $hosts_dir/authorized" "StrictModes no" "UsePAM no" \
    "PasswordAuthentication no" "KbdInteractiveAuthentication no" "PermitRootLogin yes" "PidFile none" \
    "MaxStartups 50" >"$hosts_dir/sshd_config"
  # With SHLVL set, bash does not read ~/.bashrc, where a user's tools may wait for locks that a killed ssh has left.
  echo "SetEnv SHLVL=1" >>"$hosts_dir/sshd_config"
  # Two attempts, because a link may be cut and restored during the first one.
  printf '%s\n' "IdentityFile $hosts_dir/user" "IdentitiesOnly yes" "UserKnownHostsFile $hosts_dir/known" \
    "StrictHostKeyChecking accept-new" "LogLevel ERROR" "ConnectTimeout 5" "ConnectionAttempts 2" >"$hosts_dir/ssh_config"
  # shellcheck disable=SC2034 # the script that sources this file uses it
  hosts_ssh="ssh -o BatchMode=yes -F $hosts_dir/ssh_config"
  for index in "${!hosts[@]}"; do
    # sshd requires its directory in /run, which other programs might remove. So each host gets a /run of its own.
    # shellcheck disable=SC2016 # the inner shell expands it
    (host_run "$index" sh -c 'mount -t tmpfs none /run && mkdir /run/sshd && exec /usr/sbin/sshd -D -e -f "$0"' "$hosts_dir/sshd_config") >"$hosts_dir/log.$index" 2>&1 </dev/null &
    disown # otherwise the shell prints a message when it ends
  done
  for index in "${!hosts[@]}"; do host_answers "$index" || { echo "sshd does not start: $(tail -n 1 "$hosts_dir/log.$index")"; return 1; }; done
}

host_answers() {
  for _ in $(seq 50); do
    ip netns exec "${hosts[$1]}" bash -c ': </dev/tcp/127.0.0.1/22' 2>/dev/null && return
    sleep 0.1
  done
  return 1
}

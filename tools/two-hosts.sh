# Two hosts on one machine: network namespaces joined by a veth link that tc tbf holds to a rate. Sourced, not run; needs
# root and iproute2. The link's burst holds a packet of 64 KiB, the largest that TCP hands to a network card: of a smaller
# one the kernel would spend the time to cut them, which a card does itself. Namespaces share no abstract sockets, so that only ranks of one "host" can share memory.
# shellcheck shell=bash
hosts=("lks-$$-a" "lks-$$-b")
host_devices=("v$$" "w$$")

# Also after hosts_make has failed. Ends what still runs there.
hosts_remove() {
  local host
  for host in "${hosts[@]}"; do
    ip netns pids "$host" 2>/dev/null | xargs -r kill -9 2>/dev/null
    ip netns del "$host" 2>/dev/null
  done
}

# hosts_make RATE: 10.77.0.1 and 10.77.0.2. Fails with one line that says why it cannot.
hosts_make() {
  local rate=$1 host index why
  command -v ip >/dev/null && command -v tc >/dev/null || {
    echo "network namespaces need iproute2 (ip, tc)"
    return 1
  }
  for host in "${hosts[@]}"; do
    why=$(ip netns add "$host" 2>&1) || {
      echo "cannot make a network namespace: $why"
      return 1
    }
    ip -n "$host" link set lo up
  done
  ip link add "${host_devices[0]}" netns "${hosts[0]}" type veth peer name "${host_devices[1]}" netns "${hosts[1]}" || {
    echo "cannot make a veth link"
    return 1
  }
  for index in 0 1; do
    ip -n "${hosts[index]}" addr add "10.77.0.$((index + 1))/24" dev "${host_devices[index]}"
    ip -n "${hosts[index]}" link set "${host_devices[index]}" up
    ip netns exec "${hosts[index]}" tc qdisc add dev "${host_devices[index]}" root tbf rate "$rate" burst 96kb \
      latency 50ms 2>/dev/null || echo "note: no tc tbf here, the link is as fast as it is"
  done
}

# A network of a test script's own: namespaces joined by a bridge, and links between them that are
# cut, lose packets and heal. Source it after lib.sh; the end of the script takes it away.
#
# Gives make_network, address_of, inside, lose, heal, heal_all.
# shellcheck shell=bash disable=SC2034

# Names of namespaces and links are short and this run's own.
net=k$$
machines=()
AT_END=heal_all AFTER_ALL=remove_network

# address_of MACHINE: the first has .1, and so on.
address_of() {
    local number
    for ((number = 0; number < ${#machines[@]}; number++)); do
        [ "${machines[$number]}" != "$1" ] || echo "10.99.0.$((number + 1))"
    done
}

# inside MACHINE COMMAND…: runs it in the machine's network. (Not ip netns exec: mounts would not be
# seen outside.)
inside() {
    local which=$1
    shift
    nsenter --net="/run/netns/$net$which" "$@"
}

# make_network MACHINE…: names of one character.
make_network() {
    local which
    machines=("$@")
    # A link that a namespace of this name left behind would be in the way.
    remove_network
    ip link add "${net}br" type bridge
    ip link set "${net}br" up
    for which in "$@"; do
        ip netns add "$net$which"
        ip link add "$net$which" type veth peer name eth0 netns "$net$which"
        ip link set "$net$which" master "${net}br" up
        inside "$which" ip link set lo up
        inside "$which" ip address add "$(address_of "$which")/24" dev eth0
        inside "$which" ip link set eth0 up
    done
}

# lose MACHINE FROM [MATCH…]: packets that FROM sends to MACHINE are lost.
lose() {
    local which=$1 from=$2
    shift 2
    inside "$which" iptables -w -A INPUT -i eth0 -s "$(address_of "$from")" "$@" -j DROP
}

# heal MACHINE: it loses nothing any more of what is sent to it.
heal() {
    inside "$1" iptables -w -F
}

heal_all() {
    local which
    for which in "${machines[@]}"; do
        [ ! -e "/run/netns/$net$which" ] || heal "$which"
    done
}

remove_network() {
    local which
    for which in "${machines[@]}"; do ip netns del "$net$which" 2>/dev/null || true; done
    ip link del "${net}br" 2>/dev/null || true
}

# Servers of one's own for a test script: `kestrel serve` on a free loopback port, mounts of
# kestrel://… Sourced by lib.sh; used by make_volume, mount_volume, kill_mount and fsck_volume with
# KESTREL_SERVE=1, so that every script can run on a served volume.
#
# KESTREL_NODES=N puts a cluster of N nodes in the place of the server: that of node 1 lies in the
# volume's directory, those of the others beside it. What starts, stops and kills the server does so
# with all of them; start_node, kill_node and node_pid with one.
#
# Gives start_server, stop_server, kill_server, server_pid, serve_url. SERVE_OPTIONS and
# MOUNT_OPTIONS are added to what starts them. IN_SERVER and IN_CLIENT go before the commands
# (network namespaces). In IN_SERVER and SERVE_HOST {} stands for the number of a node of a cluster.
# shellcheck shell=bash disable=SC2034

NODES=${KESTREL_NODES:-1}
SERVING=${KESTREL_SERVE:-}
[ "$NODES" = 1 ] || SERVING=1
# A short lease: a server that is started again waits that long for mounts that were killed.
SERVE_OPTIONS=(--lease 4s) MOUNT_OPTIONS=() IN_SERVER=() IN_CLIENT=()
SERVE_HOST=127.0.0.1
declare -A SERVE_PORT=()
# Of a cluster: the addresses of all nodes, with commas.
declare -A NODE_ADDRESSES=()

# serve_address VOLUME
serve_address() {
    echo "$SERVE_HOST:${SERVE_PORT[$1]}"
}

# serve_url VOLUME: what is mounted. Servers in a network of their own are known by their volume's
# authority.
serve_url() {
    local url
    url=kestrel://${NODE_ADDRESSES[$1]:-$(serve_address "$1")}/$(basename "$1")
    [[ $SERVE_HOST == 127.* ]] || url+="?ca=$(fingerprint_of "$1")"
    echo "$url"
}

# fingerprint_of VOLUME: of its authority.
fingerprint_of() {
    "$KESTREL" cluster ca "$1" | sed -n 1p
}

# node_dir VOLUME NODE: the directory of a node.
node_dir() {
    if [ "$2" = 1 ]; then echo "$1"; else echo "$1-node$2"; fi
}

# free_ports COUNT: ports below those that outgoing connections get at which nobody listens here.
free_ports() {
    python3 - "$1" <<'PY'
import random, socket, sys
count, held = int(sys.argv[1]), []
while len(held) < count:
    one = socket.socket()
    try:
        one.bind(("127.0.0.1", random.randrange(20000, 32000)))
        held.append(one)
    except OSError:
        one.close()
print(*[one.getsockname()[1] for one in held])
PY
}

# make_cluster VOLUME [FORMAT OPTION…]: a volume of $NODES nodes, none of which runs yet. Durability
# is that of every cluster.
make_cluster() {
    local volume=$1 node options=() ports addresses=()
    shift
    while [ $# -gt 0 ]; do
        if [ "$1" = --durability ]; then shift 2; else options+=("$1") && shift; fi
    done
    read -ra ports < <(free_ports "$NODES")
    SERVE_PORT[$volume]=${ports[0]}
    for ((node = 1; node <= NODES; node++)); do
        addresses+=("${SERVE_HOST//\{\}/$node}:${ports[$((node - 1))]}")
        options+=(--node "${addresses[-1]}")
    done
    NODE_ADDRESSES[$volume]=$(IFS=, && echo "${addresses[*]}")
    "$KESTREL" cluster init "$volume" --name "$(basename "$volume")" "${options[@]}" >/dev/null
    for ((node = 2; node <= NODES; node++)); do
        "$KESTREL" cluster token "$volume" |
            "${IN_SERVER[@]//\{\}/$node}" "$KESTREL" cluster join - \
            "$(node_dir "$volume" "$node")" --node "$node" >/dev/null
    done
}

# start_node VOLUME NODE [OPTION…]: returns when it serves.
start_node() {
    local volume=$1 node=$2
    shift 2
    timeout 120 "${IN_SERVER[@]//\{\}/$node}" "$KESTREL" serve "$(node_dir "$volume" "$node")" \
        "${SERVE_OPTIONS[@]}" "$@" \
        >"$WORK/serve.out" 2>&1 9>&- || { cat "$WORK/serve.out" >&2 && return 1; }
}

# node_pid VOLUME NODE: nothing if it does not run.
node_pid() {
    server_pid "$(node_dir "$1" "$2")"
}

# kill_node VOLUME NODE: kill -9.
kill_node() {
    local pid
    pid=$(node_pid "$1" "$2")
    [ -n "$pid" ] && kill_pid "$pid"
}

# start_server VOLUME [OPTION…]: returns when it serves. At a port below those that outgoing
# connections get, found by trying, and at the same one again after a kill.
start_server() {
    local volume=$1 try node
    shift
    if [ "$NODES" != 1 ]; then
        for ((node = 1; node <= NODES; node++)); do
            [ -n "$(node_pid "$volume" "$node")" ] || start_node "$volume" "$node" "$@" || return
        done
        return
    fi
    for ((try = 0; try < 20; try++)); do
        local port=${SERVE_PORT[$volume]:-$((20000 + (RANDOM * 32768 + RANDOM) % 12000))}
        if timeout 120 "${IN_SERVER[@]}" "$KESTREL" serve "$volume" --listen "$SERVE_HOST:$port" \
            "${SERVE_OPTIONS[@]}" "$@" \
            >"$WORK/serve.out" 2>&1 9>&-; then
            SERVE_PORT[$volume]=$port
            return
        fi
        grep -qi 'address already in use' "$WORK/serve.out" || break
    done
    cat "$WORK/serve.out" >&2
    return 1
}

# settled VOLUME: the nodes of a cluster all reach each other. They serve before that: connections
# between them come about on the way. A node that starts again is well when its clients have claimed
# their opens, at the latest after a lease.
settled() {
    wait_until 120 is_settled "$1" || { cat "$WORK/settled.out" && return 1; }
}

# is_settled VOLUME: now.
is_settled() {
    "${IN_CLIENT[@]}" "$KESTREL" cluster status "$(serve_url "$1")" >"$WORK/settled.out" 2>&1
}

# server_pid PLACE: the process that serves a volume, or a mount; nothing if none does, or it is
# just dying.
server_pid() {
    volume_pid "$1" 2>/dev/null || true
}

# kill_pid PID: kill -9; returns when it is gone.
kill_pid() {
    kill -9 "$1" 2>/dev/null || true
    while alive "$1"; do sleep 0.005; done
}

# kill_server VOLUME: kill -9.
kill_server() {
    local pid node status=1
    for ((node = 1; node <= NODES; node++)); do
        pid=$(node_pid "$1" "$node")
        [ -n "$pid" ] && kill_pid "$pid" && status=0
    done
    return "$status"
}

# kill_script VOLUME: a bash script that does the same, for tests in other languages. It can be run
# again and again.
kill_script() {
    declare -p KESTREL NODES LOCAL
    declare -f volume_pid server_pid node_dir node_pid alive kill_pid kill_server
    printf 'kill_server %q\n' "$1"
}

# stop_server VOLUME: it stores everything and ends by itself.
stop_server() {
    local pid node
    for ((node = 1; node <= NODES; node++)); do
        pid=$(node_pid "$1" "$node")
        [ -n "$pid" ] || continue
        kill -TERM "$pid"
        wait_until 60 gone "$pid" || return
    done
}

# gone PID
gone() {
    ! alive "$1"
}

# serve_mount VOLUME DIR [MOUNT OPTION…]: a server that was killed is started again.
serve_mount() {
    local volume=$1 dir=$2
    shift 2
    if [ "$NODES" != 1 ] || [ -z "$(server_pid "$volume")" ]; then start_server "$volume"; fi
    mkdir -p "$WORK/client-$(basename "$dir")"
    timeout 120 "${IN_CLIENT[@]}" "$KESTREL" mount "$(serve_url "$volume")" "$dir" --allow-other \
        --log "$WORK/client-$(basename "$dir")/mount.log" "${MOUNT_OPTIONS[@]}" "$@" >/dev/null 9>&-
}

# serve_kill VOLUME DIR: server and mount, both with kill -9.
serve_kill() {
    local pid
    pid=$(server_pid "$2")
    kill_server "$1"
    [ -z "$pid" ] || kill_pid "$pid"
}

# serve_fsck VOLUME [OPTION…]: asks the server, or if it is down looks at the volume itself.
serve_fsck() {
    local volume=$1 node
    shift
    if [ -n "$(server_pid "$volume")" ]; then
        set -- "$(serve_url "$volume")" "$@"
    else
        for ((node = NODES; node > 0; node--)); do set -- "$(node_dir "$volume" "$node")" "$@"; done
    fi
    timeout 300 "${IN_CLIENT[@]}" "$KESTREL" fsck "$@"
}

# stop_servers: at the end of a script.
stop_servers() {
    local volume pid node
    for volume in "${!SERVE_PORT[@]}"; do
        for ((node = 1; node <= NODES; node++)); do
            pid=$(node_pid "$volume" "$node")
            [ -z "$pid" ] || kill -9 "$pid" 2>/dev/null
        done
    done
}

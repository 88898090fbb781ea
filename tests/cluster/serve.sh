# Servers of one's own for a test script: `kestrel serve` on a free loopback port, mounts of kestrel://… Sourced by lib.sh; used
# by make_volume, mount_volume, kill_mount and fsck_volume with KESTREL_SERVE=1, so that every script can run on a served volume.
#
# Gives start_server, stop_server, kill_server, server_pid, serve_url. SERVE_OPTIONS and MOUNT_OPTIONS are added to
# what starts them. IN_SERVER and IN_CLIENT go before the commands (network namespaces).
# shellcheck shell=bash disable=SC2034

SERVING=${KESTREL_SERVE:-}
# A short lease: a server that is started again waits that long for mounts that were killed.
SERVE_OPTIONS=(--lease 4s) MOUNT_OPTIONS=() IN_SERVER=() IN_CLIENT=()
SERVE_HOST=127.0.0.1
declare -A SERVE_PORT=()

# serve_address VOLUME
serve_address() {
    echo "$SERVE_HOST:${SERVE_PORT[$1]}"
}

# serve_url VOLUME: what is mounted.
serve_url() {
    echo "kestrel://$(serve_address "$1")/$(basename "$1")"
}

# start_server VOLUME [OPTION…]: returns when it serves. At a port below those that outgoing connections get, found by trying,
# and at the same one again after a kill.
start_server() {
    local volume=$1 try
    shift
    for ((try = 0; try < 20; try++)); do
        local port=${SERVE_PORT[$volume]:-$((20000 + (RANDOM * 32768 + RANDOM) % 12000))}
        if timeout 120 "${IN_SERVER[@]}" "$KESTREL" serve "$volume" --listen "$SERVE_HOST:$port" "${SERVE_OPTIONS[@]}" "$@" \
            >"$WORK/serve.out" 2>&1 9>&-; then
            SERVE_PORT[$volume]=$port
            return
        fi
        grep -qi 'address already in use' "$WORK/serve.out" || break
    done
    cat "$WORK/serve.out" >&2
    return 1
}

# server_pid PLACE: the process that serves a volume, or a mount; nothing if none does, or it is just dying.
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
    local pid
    pid=$(server_pid "$1")
    [ -n "$pid" ] && kill_pid "$pid"
}

# stop_server VOLUME: it stores everything and ends by itself.
stop_server() {
    local pid
    pid=$(server_pid "$1")
    [ -n "$pid" ] || return 0
    kill -TERM "$pid"
    wait_until 60 gone "$pid"
}

# gone PID
gone() {
    ! alive "$1"
}

# serve_mount VOLUME DIR [MOUNT OPTION…]: a server that was killed is started again.
serve_mount() {
    local volume=$1 dir=$2
    shift 2
    [ -n "$(server_pid "$volume")" ] || start_server "$volume"
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
    local volume=$1
    shift
    if [ -n "$(server_pid "$volume")" ]; then
        set -- "$(serve_url "$volume")" "$@"
    else
        set -- "$volume" "$@"
    fi
    timeout 300 "${IN_CLIENT[@]}" "$KESTREL" fsck "$@"
}

# stop_servers: at the end of a script.
stop_servers() {
    local volume pid
    for volume in "${!SERVE_PORT[@]}"; do
        pid=$(server_pid "$volume")
        [ -z "$pid" ] || kill -9 "$pid" 2>/dev/null
    done
}

# An etcd of this run's own, of three members on one machine's ports 2379 and 2380, 2381 and 2382,
# …, in a network namespace or not. Source it after lib.sh; the script that sources it has stop_etcd
# called when all is over.
#
# ETCD_HOST (default 127.0.0.1), IN_ETCD (a command to run its members under), ETCD_PORT (first of
# the ports, default 2379)
# shellcheck shell=bash

ETCD_HOST=${ETCD_HOST:-127.0.0.1} ETCD_PORT=${ETCD_PORT:-2379}
IN_ETCD=()
ETCD_MEMBERS=3
declare -A ETCD_PIDS=()

etcd_endpoint() {
    echo "$ETCD_HOST:$((ETCD_PORT + 2 * ($1 - 1)))"
}

etcd_peer() {
    echo "http://$ETCD_HOST:$((ETCD_PORT + 2 * ($1 - 1) + 1))"
}

# etcd_run MEMBER: starts it, and does not wait.
etcd_run() {
    local member all=''
    for ((member = 1; member <= ETCD_MEMBERS; member++)); do
        all+="${all:+,}m$member=$(etcd_peer "$member")"
    done
    # exec: the process is the server itself, so that its number is known.
    (exec "${IN_ETCD[@]}" etcd --name "m$1" --data-dir "$WORK/etcd$1" --initial-cluster "$all" \
        --listen-peer-urls "$(etcd_peer "$1")" --initial-advertise-peer-urls "$(etcd_peer "$1")" \
        --listen-client-urls "http://$(etcd_endpoint "$1")" --advertise-client-urls \
        "http://$(etcd_endpoint "$1")" \
        >>"$WORK/etcd$1.log" 2>&1 9>&-) &
    ETCD_PIDS[$1]=$!
    # Ended by number, also by the trap, and nobody is told that it was.
    disown
}

# etcd_kill MEMBER: kill -9.
etcd_kill() {
    local pid=${ETCD_PIDS[$1]:-}
    [ -n "$pid" ] || return 0
    kill -9 "$pid" 2>/dev/null || true
    while alive "$pid"; do sleep 0.01; done
    unset "ETCD_PIDS[$1]"
}

etcd_answers() {
    local member
    for ((member = 1; member <= ETCD_MEMBERS; member++)); do
        "${IN_ETCD[@]}" curl -fsS -m 2 "http://$(etcd_endpoint "$member")/health" 2>/dev/null |
            grep -q '"true"' || return 1
    done
}

# etcd_start: all members; returns when they answer.
etcd_start() {
    local member
    for ((member = 1; member <= ETCD_MEMBERS; member++)); do
        [ -n "${ETCD_PIDS[$member]:-}" ] || etcd_run "$member"
    done
    wait_until 30 etcd_answers
}

# etcd_url PREFIX: the URL of a registry.
etcd_url() {
    local member hosts=''
    for ((member = 1; member <= ETCD_MEMBERS; member++)); do
        hosts+="${hosts:+,}$(etcd_endpoint "$member")"
    done
    echo "etcd://$hosts/$1"
}

# etcd_keys PREFIX: how many there are.
etcd_keys() {
    local from to
    from=$(printf '%s/' "$1" | base64 -w 0) to=$(printf '%s0' "$1" | base64 -w 0)
    "${IN_ETCD[@]}" curl -fsS -m 5 "http://$(etcd_endpoint 1)/v3/kv/range" \
        -d "{\"key\":\"$from\",\"range_end\":\"$to\",\"count_only\":true}" |
        sed -n 's/.*"count":"\([0-9]*\)".*/\1/p'
}

stop_etcd() {
    local member
    for member in "${!ETCD_PIDS[@]}"; do etcd_kill "$member"; done
}

# Nodes that take each other over, for test scripts: sourced after tests/lib.sh by those that set
# KESTREL_NODES and KESTREL_METADATA.
# shellcheck shell=bash disable=SC2034

# stand_in_dir VOLUME HOME NODE: the directory from which the machine of node HOME serves node NODE.
stand_in_dir() {
    echo "$(node_dir "$1" "$2")/nodes/$3"
}

# serving VOLUME: "NODE PID" of each node that answers, wherever it is served.
serving() {
    "${IN_CLIENT[@]}" "$KESTREL" cluster status "$(serve_url "$1")" --json 2>/dev/null |
        python3 -c '
import json, sys
for node in json.load(sys.stdin)["nodes"]:
    if node.get("up"): print(node["node"], node["process"])'
}

# serving_pid VOLUME NODE: the process that serves it, wherever; nothing if none does.
serving_pid() {
    serving "$1" | sed -n "s/^$2 //p"
}

# has_moved VOLUME NODE PID: whether another process serves it, and all is well.
has_moved() {
    local pid
    pid=$(serving_pid "$1" "$2")
    [ -n "$pid" ] && [ "$pid" != "$3" ] && "${IN_CLIENT[@]}" "$KESTREL" cluster status \
        "$(serve_url "$1")" >/dev/null 2>&1
}

# wait_for SECONDS COMMAND…: true as soon as the command is.
wait_for() {
    local until=$((SECONDS + $1))
    shift
    while ! "$@"; do
        [ "$SECONDS" -lt "$until" ] || return 1
        sleep 0.1
    done
}

now() {
    python3 "$ROOT/tests/ha/pauses.py" now
}

# end_stand_ins VOLUME: kills what stands in for nodes.
end_stand_ins() {
    local dir pid
    for dir in "$1"/nodes/* "$1"-node*/nodes/*; do
        [ -e "$dir/kestrel.json" ] || continue
        pid=$(server_pid "$dir")
        [ -z "$pid" ] || kill -9 "$pid" 2>/dev/null
    done
}

# ha_cluster VOLUME [LISTEN OPTION…]: three nodes with their rows in a PostgreSQL that has a
# synchronous standby, and a coordinator, node 4, with its rows in an etcd of three members; all
# serve. Needs KESTREL_NODES=4, and tests/ha/etcd.sh.
ha_cluster() {
    local volume=$1 ports addresses node
    need_postgres
    PRIMARY=one PORT_OF[one]=$PG_PORT PORT_OF[two]=$(free_port)
    ha_standby two
    check "etcd answers" etcd_start
    check "the standby is synchronous" wait_for 30 ha_is_synchronous
    read -ra ports < <(free_ports 4)
    addresses=("${ports[@]/#/127.0.0.1:}")
    SERVE_PORT[$volume]=${ports[0]} SERVING=1
    NODE_ADDRESSES[$volume]=$(IFS=, && echo "${addresses[*]:0:3}")
    "$KESTREL" cluster init "$volume" --name "$(basename "$volume")" --grace 1s \
        --node "${addresses[0]}" --node "${addresses[1]}" \
        --node "${addresses[2]}" --coordinator "${addresses[3]}" \
        --registry "$(etcd_url "$(basename "$volume")")" \
        --metadata "postgres://kestrel@127.0.0.1:$PG_PORT,127.0.0.1:${PORT_OF[two]}/postgres?schema=$(basename "$volume")" >/dev/null
    for node in 2 3 4; do
        "$KESTREL" cluster token "$volume" |
            "$KESTREL" cluster join - "$(node_dir "$volume" "$node")" --node "$node" >/dev/null
    done
    start_server "$volume"
    check "all nodes reach each other" wait_for 30 settled "$volume"
}

declare -A PORT_OF=()

# ha_standby NAME: makes a server of this name a synchronous standby of the primary.
ha_standby() {
    rm -rf "${PG_HOME:?}/$1"
    as_postgres "$PG_BIN/pg_basebackup" -h 127.0.0.1 -p "${PORT_OF[$PRIMARY]}" -U kestrel \
        -D "$PG_HOME/$1" -R -c fast
    echo "primary_conninfo = 'host=127.0.0.1 port=${PORT_OF[$PRIMARY]} user=kestrel application_name=$1'" |
        as_postgres tee -a "$PG_HOME/$1/postgresql.auto.conf" >/dev/null
    # A primary that comes back waits for its standby: not for the usual 5 s.
    pg_run "$1" "${PORT_OF[$1]}" -c wal_retrieve_retry_interval=200ms
    psql_at "${PORT_OF[$PRIMARY]}" "ALTER SYSTEM SET synchronous_standby_names = '$1'"
    psql_at "${PORT_OF[$PRIMARY]}" "SELECT pg_reload_conf()" >/dev/null
}

ha_is_synchronous() {
    [ "$(psql_at "${PORT_OF[$PRIMARY]}" 'SELECT sync_state FROM pg_stat_replication')" = sync ]
}

# ha_promote: the primary is killed, its standby takes its place, without one of its own.
ha_promote() {
    local before=$PRIMARY
    if [ "$PRIMARY" = one ]; then PRIMARY=two; else PRIMARY=one; fi
    pg_kill "$before"
    sleep 0.3
    psql_at "${PORT_OF[$PRIMARY]}" "SELECT pg_promote()" >/dev/null
    psql_at "${PORT_OF[$PRIMARY]}" "ALTER SYSTEM RESET synchronous_standby_names"
    psql_at "${PORT_OF[$PRIMARY]}" "SELECT pg_reload_conf()" >/dev/null
}

# stands_in VOLUME NODE: the node on the machine that serves it; nothing if that is its own.
stands_in() {
    "${IN_CLIENT[@]}" "$KESTREL" cluster status "$(serve_url "$1")" | sed -n "s/^node $2 is served in place of its own process, on the machine of node \([0-9]*\),.*/\1/p"
}

# A PostgreSQL server of this run's own, for volumes with their metadata there
# (KESTREL_METADATA=postgres). Sourced by tests/lib.sh. The server listens on a loopback port of its
# own and runs as user postgres; its data is in $PG_HOME, outside $WORK, which only root enters.
# shellcheck shell=bash

PG_BIN=/usr/lib/postgresql/15/bin
PG_HOME='' PG_PORT=''
declare -A PG_PIDS=()

# as_postgres COMMAND…: not in the test's directory, which that user may not read.
as_postgres() {
    (cd / && runuser -u postgres -- "$@")
}

# free_port: one that nobody has now.
free_port() {
    python3 -c \
        'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

pg_home() {
    [ -z "$PG_HOME" ] || return 0
    PG_HOME=$(mktemp -d "${TMPDIR:-/var/tmp}/kestrel-pg.XXXXXX")
    chown postgres "$PG_HOME"
}

# pg_run NAME PORT [OPTION…]: starts the server with its data in $PG_HOME/NAME; returns when it
# answers.
pg_run() {
    local name=$1 port=$2 tries
    shift 2
    for ((tries = 0; tries < 100; tries++)); do
        # exec: the process is the server itself, so that its number is known.
        if [ -z "${PG_PIDS[$name]:-}" ] || ! alive "${PG_PIDS[$name]}"; then
            (cd / && exec setpriv --reuid postgres --regid postgres --clear-groups \
                -- "$PG_BIN/postgres" -D "$PG_HOME/$name" \
                -k "$PG_HOME" -h 127.0.0.1 -p "$port" "$@" >>"$PG_HOME/$name.log" 2>&1) &
            PG_PIDS[$name]=$!
            # Ended by number, also by the trap, and nobody is told that it was.
            disown
        fi
        "$PG_BIN/pg_isready" -q -h 127.0.0.1 -p "$port" && return
        sleep 0.1
    done
    tail -n 20 "$PG_HOME/$name.log"
    return 1
}

# pg_kill NAME: kill -9 of a server and all its processes.
pg_kill() {
    local pid=${PG_PIDS[$1]:-}
    [ -n "$pid" ] || return 0
    # shellcheck disable=SC2046 # one argument a process
    kill -9 "$pid" $(cat "/proc/$pid/task/$pid/children" 2>/dev/null) 2>/dev/null || true
    while alive "$pid"; do sleep 0.01; done
    # What it leaves names it by a number that another process may have by the time it starts again,
    # which it would take for itself.
    local port
    port=$(sed -n 4p "$PG_HOME/$1/postmaster.pid" 2>/dev/null || true)
    rm -f "$PG_HOME/$1/postmaster.pid" "$PG_HOME/.s.PGSQL.$port.lock"
    unset "PG_PIDS[$1]"
}

# need_postgres: starts the server of this run, once.
need_postgres() {
    [ -z "$PG_PORT" ] || return 0
    pg_home
    as_postgres "$PG_BIN/initdb" -A trust -E UTF8 --no-locale -N -U kestrel -D "$PG_HOME/one" \
        >/dev/null
    PG_PORT=$(free_port)
    pg_run one "$PG_PORT"
}

# pg_url SCHEMA: the URL of a volume's metadata.
pg_url() {
    echo "postgres://kestrel@127.0.0.1:$PG_PORT/postgres?schema=$1"
}

# psql_at PORT SQL
psql_at() {
    psql -qAtX -h 127.0.0.1 -p "$1" -U kestrel postgres -c "$2"
}

# stop_postgres: servers and their data are gone.
stop_postgres() {
    local name
    for name in "${!PG_PIDS[@]}"; do pg_kill "$name"; done
    [ -z "$PG_HOME" ] || rm -rf "$PG_HOME"
}

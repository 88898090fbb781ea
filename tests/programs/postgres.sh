#!/usr/bin/env bash
# PostgreSQL: initdb, pgbench, kill -9 of the mount under it, recovery, a consistency check. At
# night only: KESTREL_NIGHTLY=1.
#
# SECONDS_EACH (default 60), CYCLES (default 3)
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
needs_kestrel

if [ -z "${KESTREL_NIGHTLY:-}" ]; then
    echo "skipped: set KESTREL_NIGHTLY=1"
    summary
    exit
fi
bin=$(find /usr/lib/postgresql -maxdepth 2 -name bin | sort -V | tail -n 1)
volume=$WORK/volume mnt=$WORK/mnt
make_volume "$volume"
mount_volume "$volume" "$mnt"
install -d -o postgres -g postgres -m 700 "$mnt/data"
install -d -o postgres -g postgres "$WORK/socket"

as_postgres() { setpriv --reuid postgres --regid postgres --init-groups env -C "$WORK/socket" \
    "$@"; }
start() {
    as_postgres "$bin/pg_ctl" -D "$mnt/data" -l "$WORK/socket/log" -w -t 120 \
        -o "-k $WORK/socket -c listen_addresses= -c full_page_writes=on" start
}
sql() { as_postgres "$bin/psql" -h "$WORK/socket" -qAtX -v ON_ERROR_STOP=1 postgres -c "$1"; }
# pgbench's invariant: the sums of all balances and of the history are equal (-n: it would begin
# with an empty history).
balanced() {
    local sums
    sums=$(sql 'select (select sum(abalance) from pgbench_accounts) = (select coalesce(sum(delta), 0) from pgbench_history)
        and (select sum(tbalance) from pgbench_tellers) = (select coalesce(sum(delta), 0) from pgbench_history)')
    [ "$sums" = t ]
}
check "initdb" as_postgres "$bin/initdb" -D "$mnt/data" --no-instructions -A trust
check "start" start
check "pgbench -i" as_postgres "$bin/pgbench" -h "$WORK/socket" -q -i -s 5 postgres
for ((cycle = 1; cycle <= ${CYCLES:-3}; cycle++)); do
    as_postgres "$bin/pgbench" -h "$WORK/socket" -n -c 4 -T "${SECONDS_EACH:-60}" postgres \
        >"$WORK/pgbench.out" 2>&1 &
    bench=$!
    sleep $((${SECONDS_EACH:-60} / 2))
    server=$(head -n 1 "$mnt/data/postmaster.pid")
    kill_mount "$volume" "$mnt"
    wait "$bench" || true
    # The server cannot go on without its files; its children end with it.
    kill -9 "$server" 2>/dev/null || true
    sleep 2
    check "cycle $cycle: fsck" fsck_volume "$volume"
    mount_volume "$volume" "$mnt"
    rm -f "$mnt/data/postmaster.pid"
    check "cycle $cycle: recovers" start
    check "cycle $cycle: balanced" balanced
done
check "stop" as_postgres "$bin/pg_ctl" -D "$mnt/data" -m fast -w stop
close_and_check "$volume" "$mnt"
summary

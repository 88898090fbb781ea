#!/usr/bin/env bash
# A primary with a synchronous standby: the primary is killed under load, the standby promoted. The
# mount finds it by the second host of the URL; no call fails, and nothing acknowledged is lost: the
# log that the workload keeps outside proves it. Then the mount is killed.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
needs_kestrel
need_postgres
volume=$WORK/volume mnt=$WORK/mnt
second=$(free_port)
as_postgres "$PG_BIN/pg_basebackup" -h 127.0.0.1 -p "$PG_PORT" -U kestrel -D "$PG_HOME/two" \
    -R -c fast
# The name by which the primary knows it.
echo "primary_conninfo = 'host=127.0.0.1 port=$PG_PORT user=kestrel application_name=two'" |
    as_postgres tee -a "$PG_HOME/two/postgresql.auto.conf" >/dev/null
pg_run two "$second"
psql_at "$PG_PORT" "ALTER SYSTEM SET synchronous_standby_names = 'two'"
psql_at "$PG_PORT" "SELECT pg_reload_conf()" >/dev/null
for _ in $(seq 100); do
    [ "$(psql_at "$PG_PORT" 'SELECT sync_state FROM pg_stat_replication')" = sync ] && break
    sleep 0.1
done
check "the standby is synchronous" test \
    "$(psql_at "$PG_PORT" 'SELECT sync_state FROM pg_stat_replication')" = sync

"$KESTREL" format "$volume" \
    --metadata "postgres://kestrel@127.0.0.1:$PG_PORT,127.0.0.1:$second/postgres?schema=volume" \
    >/dev/null
mount_volume "$volume" "$mnt"
mkdir "$mnt/load"
kestrel-crashload run --dir "$mnt/load" --log "$WORK/load.log" --threads 4 --seed 11 --ms 8000 \
    >"$WORK/run.out" 2>&1 &
load=$!
sleep 3
pg_kill one
sleep 0.3
check "the standby is promoted" psql_at "$second" "SELECT pg_promote()"
# Its own standby is gone: nobody to wait for.
psql_at "$second" "ALTER SYSTEM RESET synchronous_standby_names"
psql_at "$second" "SELECT pg_reload_conf()" >/dev/null
check "no call failed" wait "$load"
acked=$(sed -n 's/^\([0-9]*\) operations acknowledged.*/\1/p' "$WORK/run.out")
check "operations were acknowledged: ${acked:-none}" test "${acked:-0}" -gt 20
kill_mount "$volume" "$mnt"
check "fsck" fsck_volume "$volume" --data
mount_volume "$volume" "$mnt"
check "what was acknowledged is there" kestrel-crashload verify --dir "$mnt/load" \
    --log "$WORK/load.log" --mode process
close_and_check "$volume" "$mnt"
summary

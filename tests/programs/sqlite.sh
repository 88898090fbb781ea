#!/usr/bin/env bash
# sqlite with a write-ahead log on the mount; its process is killed again and again. After each
# kill the database is intact and every transaction that was acknowledged (and noted outside) is
# there.
#
# CYCLES (default 8)
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
needs_kestrel

volume=$WORK/volume mnt=$WORK/mnt
make_volume "$volume"
mount_volume "$volume" "$mnt"

# Inserts until the mount dies; notes each acknowledged number outside.
insert() {
    python3 - "$mnt/db" "$WORK/acked" "$1" <<'PY'
import os, sqlite3, sys
path, log, first = sys.argv[1], sys.argv[2], int(sys.argv[3])
log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
try:
    db = sqlite3.connect(path, timeout=20, isolation_level=None)
    db.execute("pragma journal_mode=wal")
    db.execute("pragma synchronous=full")
    for n in range(first, first + 1_000_000):
        db.execute("insert into t values (?, randomblob(?))", (n, n % 3000 + 1))
        os.write(log, f"{n}\n".encode())
except (sqlite3.Error, OSError):
    pass
PY
}

intact() {
    python3 - "$mnt/db" "$WORK/acked" <<'PY'
import sqlite3, sys
db = sqlite3.connect(sys.argv[1])
found = db.execute("pragma integrity_check").fetchall()
if found != [("ok",)]:
    sys.exit(f"integrity_check: {found}")
there = {n for (n,) in db.execute("select n from t")}
acked = {int(line) for line in open(sys.argv[2]) if line.endswith("\n")}
if acked - there:
    sys.exit(f"{len(acked - there)} acknowledged transactions are lost: {sorted(acked - there)[:5]}")
if len(there - acked) > 1:
    sys.exit(f"{len(there - acked)} rows more than were acknowledged")
wrong = db.execute("select count(*) from t where length(data) != n % 3000 + 1").fetchone()
if wrong != (0,):
    sys.exit(f"{wrong} rows have wrong data")
print(f"{len(there)} rows")
# What was in flight counts as acknowledged from now on.
with open(sys.argv[2], "a") as log:
    log.writelines(f"{n}\n" for n in there - acked)
PY
}

: >"$WORK/acked"
check "a database is made" sqlite3 "$mnt/db" \
    'pragma journal_mode=wal; create table t (n integer primary key, data blob);'
first=0
for ((cycle = 1; cycle <= ${CYCLES:-8}; cycle++)); do
    insert "$first" &
    inserter=$!
    sleep "$(ms "$(random 300 1500)")"
    kill_mount "$volume" "$mnt"
    wait "$inserter" 2>/dev/null || true
    check "cycle $cycle: fsck" fsck_volume "$volume"
    mount_volume "$volume" "$mnt"
    check "cycle $cycle: intact, nothing lost" intact
    first=$((first + 1000000))
done
check "vacuum" sqlite3 "$mnt/db" vacuum
check "intact after vacuum" intact
close_and_check "$volume" "$mnt"
summary

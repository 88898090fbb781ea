#!/usr/bin/env bash
# SQL over published versions: what it finds is compared with a walk of the source and with SQLite's
# own tables, names of all bytes, how much is read, what is refused, and damage. No process has the
# volume open meanwhile.
#
# VERSIONS_BUCKET=1: of a volume that a bucket has all of, by a machine that has nothing else of it
# (a machine is a state directory). SEED: of the random queries, QUERIES: how many.
set -euo pipefail
if [ -n "${VERSIONS_BUCKET:-}" ]; then
    . "$(dirname "$0")/../s3/lib.sh"
else
    . "$(dirname "$0")/../lib.sh"
fi
needs_kestrel

volume=$WORK/volume mnt=$WORK/mnt seed=${SEED:-$RANDOM} queries=${QUERIES:-150}
mkdir "$mnt"

k() {
    KESTREL_STATE_DIR=$WORK/a timeout 120 "$KESTREL" "$@"
}
reader() {
    KESTREL_STATE_DIR=$WORK/b timeout 120 "$KESTREL" "$@"
}
sql() {
    reader sql "$@"
}
py() {
    KESTREL_STATE_DIR=$WORK/b KESTREL_SQL="$KESTREL sql" timeout 300 \
        python3 "$ROOT/tests/versions/sql.py" "$@"
}
damage() {
    python3 "$ROOT/tests/versions/publish.py" damage "$@"
}
same() {
    [ "$1" = "$2" ] || {
        echo "$1 is not $2"
        return 1
    }
}
not() {
    ! "$@"
}

if [ -n "${VERSIONS_BUCKET:-}" ]; then
    vol=$(volume_url versions/sql) query=$(volume_url '')
    query=?${query#*\?} base=s3://$S3_BUCKET/versions/sql
    k format "$vol" >/dev/null
    k mount "$vol" "$mnt" >/dev/null
else
    make_volume "$volume"
    mount_volume "$volume" "$mnt"
    vol=$volume base=$volume query=''
fi
version() {
    echo "$base//$1$query"
}
store=
manifest() {
    echo "$store/name/$(printf %s "$1" | od -An -v -tx1 | tr -d ' \n')"
}
# table NAME: the first table of a version.
table() {
    local id
    id=$(python3 -c '
import json, sys
print(json.load(open(sys.argv[1]))["id"])' "$(manifest "$1")")
    find "$store/data/$id/table" -type f | sort | head -n 1
}

echo "-- two versions of a tree of everything"
refuses "a volume without versions: a version" "the volume has none" sql "$(version a@1)" "select 1"
check "there are none" same "$(sql "$vol" "select count(*) from versions" --csv | tail -n 1)" 0
mkdir "$mnt/tree" "$mnt/outside"
python3 "$ROOT/tests/versions/publish.py" make "$mnt/tree" "$mnt/outside/out"
py more "$mnt/tree"
k publish "$mnt/tree" a@1 >/dev/null
check "what a walk of the source finds" py walk "$(version a@1)" "$mnt/tree"
if [ -z "${VERSIONS_BUCKET:-}" ]; then
    check "by a path in the mount" same "$(sql "$mnt/tree" "select name from versions" --csv)" \
        $'name\na@1'
fi
rm -rf "$mnt/tree/many/d3" "$mnt/tree/sizes"
echo "more now" >>"$mnt/tree/many/d4/f7"
echo new >"$mnt/tree/many/new"
k publish "$mnt/tree" b@1 >/dev/null
k publish "$mnt/tree/order" c@1 >/dev/null
umount_volume "$mnt"

echo "-- queries"
check "random queries, seed $seed" py queries "$vol" "$seed" "$queries"
check "rows that are read" py reads "$(version a@1)"
check "formats" py formats "$(version a@1)"
columns() {
    same "$(sql "$vol" "select name, files, directories, source_dir > 0, length(id), user,
        created between unixepoch() - 600 and unixepoch(), snapshot like 'version-%',
        snapshot_owned, created_ns / 1000000000 = created, rows > files, tables, table_bytes > 0
        from versions where name = 'c@1'" --csv | tail -n 1)" \
        "c@1,$((20 * 6 + 3000)),$((20 * 7 + 1)),1,32,0,1,1,1,1,1,1,1"
}
check "columns of versions" columns
check "a version alone" same "$(sql "$(version b@1)" "select name from versions" --csv)" \
    $'name\nb@1'
check "and its entries alone" same \
    "$(sql "$(version b@1)" "select distinct version from entries" --csv)" $'version\nb@1'
check "another one is not there" same \
    "$(sql "$(version b@1)" "select 1 from entries where version = 'a@1'" --csv 2>/dev/null)" 1
absent() {
    sql "$vol" "select count(*) from entries where version = 'nope'" >"$WORK/absent" 2>&1
    grep -q "there is no version nope" "$WORK/absent"
}
check "a name without a version is told" absent
pipe() {
    sql "$vol" "select path from entries" 2>"$WORK/pipe.err" | head -n 2 >/dev/null || true
    [ ! -s "$WORK/pipe.err" ]
}
check "a reader that goes away" pipe
sorted() {
    # More than SQLite may have in memory: it sorts in a file.
    sql "$vol" "select count(*) from (select hex(zeroblob(2000)) || a.path from entries a,
        (select 1 union select 2 union select 3) order by 1 desc)" --csv --memory 32M |
        tail -n 1 >"$WORK/sorted"
    same "$(cat "$WORK/sorted")" \
        "$(sql "$vol" "select 3 * count(*) from entries" --csv | tail -n 1)"
}
check "a sort of more than the memory" sorted
interrupted() {
    local pid
    "$KESTREL" sql "$vol" "select count(*) from entries a, entries b, entries c" >/dev/null 2>&1 &
    pid=$!
    sleep 0.3
    kill -INT "$pid"
    wait "$pid" && return 1
    [ $? = 130 ]
}
if [ -z "${VERSIONS_BUCKET:-}" ]; then
    # Of a command in the background SIGINT is ignored, unless it is in a job of its own.
    set -m
    check "Ctrl-C ends it" interrupted
    set +m
fi

echo "-- what is refused"
wrong() {
    refuses "$1" "$2" sql "$vol" "$1"
}
for statement in "create table x (a)" "create temp table x as select 1" "drop table entries" \
    "insert into entries (path) values ('a')" "update entries set size = 0" "delete from versions" \
    "attach '$WORK/other.db' as other" "pragma journal_mode = wal" \
    "pragma temp_store_directory = '/'" \
    "select load_extension('$WORK/x.so')" "begin" "detach main" "analyze" \
    "create virtual table x using fts5(a)" "create view v as select 1"; do
    wrong "$statement" "versions never change"
done
wrong "vacuum into '$WORK/other.db'" "no query in it"
wrong "reindex" "no query in it"
wrong "" "no query in it"
wrong "select 1; select 2" "one statement is taken at a time"
wrong "selec 1" "syntax error.*kestrel help sql"
wrong "select nope from entries" "no such column: nope.*kestrel help sql"
wrong "select * from nope" "no such table: nope.*versions, entries and xattrs"
wrong "select abs(path) + abs('x', 1) from entries" "wrong number of arguments"
refuses "two columns of a name in JSON" "two columns are named" \
    sql "$vol" "select 1 as a, 2 as a" --json
refuses "more memory than it may have" "more than the 16 MiB.*--memory" \
    sql "$vol" "select length(group_concat(hex(zeroblob(50000)), path)) from entries" --memory 32M
refuses "no such version" "no version of this name" sql "$(version no@1)" "select 1"
refuses "no volume" "neither a volume" sql "$WORK/nothing" "select 1"
check "nothing was written" not test -e "$WORK/other.db"
code() {
    sql "$vol" "$1" >/dev/null 2>&1
    [ $? = 2 ]
}
check "the exit code of wrong SQL is 2" code "select"

echo "-- damage"
store=$(find "$WORK" -xdev -type d -path '*/versions/name' -not -path "$mnt/*" | head -n 1)
store=${store%/name}
all="select count(*), sum(length(path)) from entries where version = 'a@1'"
good=$(sql "$vol" "$all" --csv)
size=$(stat -c %s "$(table a@1)")
for at in 20 $((size / 3)) $((size / 2)) $((size - 20)); do
    damage "$(table a@1)" "$at"
    refuses "a table that is damaged at $at" "version a@1.*damaged" sql "$vol" "$all"
    damage "$(table a@1)" "$at"
done
check "it is well again" same "$(sql "$vol" "$all" --csv)" "$good"
damage "$(table a@1)" 20
check "another version is read" py reads "$(version b@1)"
refuses "rows of all versions are not" "version a@1.*damaged" sql "$vol" "select path from entries"
damage "$(table a@1)" 20
cat "$(manifest a@1)" >"$WORK/manifest"
damage "$(manifest a@1)" 100
refuses "a damaged manifest" "version a@1.*damaged" sql "$vol" "select name, files from versions"
check "names are shown" same "$(sql "$vol" "select name from versions" --csv | wc -l)" 4
check "other versions, too" same \
    "$(sql "$vol" "select count(*) from versions where name = 'b@1' and files > 0" --csv)" \
    $'count(*)\n1'
cat "$WORK/manifest" >"$(manifest a@1)"
mv "$(table a@1)" "$WORK/table"
refuses "a table that is gone" "version a@1.*(missing|not found)" sql "$vol" "$all"

if [ -z "${VERSIONS_BUCKET:-}$SERVING" ]; then
    echo "-- a served volume"
    served=$(k serve "$volume" --listen 127.0.0.1:0 | grep -o 'kestrel://[^ ]*' | head -n 1)
    check "by its URL" same "$(sql "$served" "select name from versions" --csv | wc -l)" 4
    check "a version by its URL" py reads "$served//b@1"
    check "the server stops" k serve "$volume" --stop
fi
summary

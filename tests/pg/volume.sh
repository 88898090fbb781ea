#!/usr/bin/env bash
# A volume with its metadata in PostgreSQL, as an administrator meets it: made, mounted, checked,
# dumped and loaded; which process opens it twice, which takes it over, passwords, and a server that
# dies under load.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
needs_kestrel
need_postgres
volume=$WORK/volume mnt=$WORK/mnt
url=$(pg_url photos)

refuses "durability fsync is not to be had" 'commit' "$KESTREL" format "$volume" --metadata "$url" \
    --durability fsync
refuses "a URL that is none" 'postgres://USER' "$KESTREL" format "$volume" \
    --metadata "postgres://me:geheim@/x"
check "format" "$KESTREL" format "$volume" --metadata "${url/kestrel@/kestrel:geheim@}"
check "only root reads the descriptor" test "$(stat -c %a "$volume/kestrel.json")" = 600
check "there is no metadata in the directory" test ! -e "$volume/meta"
refuses "another volume does not go to the same schema" 'another volume' "$KESTREL" format \
    "$WORK/other" --metadata "$url"
check "nothing is left of that" test ! -e "$WORK/other/kestrel.json"

mount_volume "$volume" "$mnt"
mkdir "$mnt/d"
for n in $(seq 200); do echo "$n" >"$mnt/d/$n"; done
head -c 3000000 /dev/urandom >"$mnt/big"
sum=$(sha256sum <"$mnt/big")
pid=$(volume_pid "$volume")
# Its own directory has a lock besides; the same descriptor elsewhere, as on another machine, has
# only the database's.
mkdir "$WORK/copy" && cp "$volume/kestrel.json" "$WORK/copy/" &&
    ln -s "$volume/objects" "$WORK/copy/objects"
mkdir -p "$WORK/mnt2"
refuses "a second mount is refused" 'take-over' timeout 60 "$KESTREL" mount "$WORK/copy" \
    "$WORK/mnt2"
check "taken over by name" "$KESTREL" mount "$WORK/copy" "$WORK/mnt2" --allow-other --take-over
check "all files are there" test "$(find "$WORK/mnt2/d" -type f | wc -l)" = 200
# What it sends now is refused, and not acknowledged.
refuses "who was replaced writes nothing" 'error|fehler' timeout 60 touch "$mnt/stale"
check "it says so" grep -q 'taken this metadata over' "$volume/mount.log"
check "nothing of it is seen" test ! -e "$WORK/mnt2/stale"
echo new >"$WORK/mnt2/new"
kill -9 "$pid" && umount -l "$mnt"
# (The pattern does not find itself.)
check "no password in logs, arguments or status" bash \
    -c "! { cat $volume/*.log $WORK/copy/*.log; ps axww -o args; \
    $KESTREL status $WORK/mnt2; $KESTREL status $WORK/mnt2 --json; } | grep '[g]eheim'"
check "the status names the database" bash -c "$KESTREL status $WORK/mnt2 | grep -q 'postgres://kestrel@127.0.0.1:$PG_PORT/postgres?schema=photos'"
check "unmounts" umount_volume "$WORK/mnt2"

check "fsck --data finds nothing" fsck_volume "$volume" --data
check "dump" "$KESTREL" dump "$volume" "$WORK/dump"
check "no password in the dump" bash -c "! zcat -f $WORK/dump | grep -a geheim"
check "loaded into a volume of its own" "$KESTREL" load "$WORK/dump" "$WORK/embedded" \
    --objects "$volume/objects"
check "and from there into the database" bash -c "$KESTREL dump $WORK/embedded $WORK/dump2 && \
    $KESTREL load $WORK/dump2 $WORK/again --objects $WORK/embedded/objects --metadata '$(pg_url \
    again)'"
for place in "$WORK/embedded" "$WORK/again"; do
    check "fsck of $(basename "$place")" fsck_volume "$place" --data
done
mount_volume "$WORK/again" "$mnt"
check "every byte is there" test "$(sha256sum <"$mnt/big")" = "$sum" -a "$(cat "$mnt/d/77")" = 77
check "gc" "$KESTREL" gc "$WORK/again"

mkdir "$mnt/load"
# The server dies under load: no call fails, nothing acknowledged is lost.
kestrel-crashload run --dir "$mnt/load" --log "$WORK/load.log" --threads 4 --seed 7 --ms 6000 \
    >"$WORK/run.out" 2>&1 &
load=$!
for _ in 1 2 3; do
    sleep 1
    pg_kill one
    pg_run one "$PG_PORT"
done
check "no call failed" wait "$load"
check "operations were acknowledged meanwhile" grep -E '^[0-9]{2,} operations acknowledged' \
    "$WORK/run.out"
kill_mount "$WORK/again" "$mnt"
check "fsck after kill -9 of both" fsck_volume "$WORK/again" --data
mount_volume "$WORK/again" "$mnt"
check "what was acknowledged is there" kestrel-crashload verify --dir "$mnt/load" \
    --log "$WORK/load.log" --mode process
close_and_check "$WORK/again" "$mnt"
check "format --force takes its place" "$KESTREL" format "$WORK/again" \
    --force --metadata "$(pg_url again)"
summary

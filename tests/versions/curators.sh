#!/usr/bin/env bash
# Curators: processes that serve the metadata of a published version. They reach the store by a
# proxy of their own, which refuses whatever would change something, and run as another user. What
# their clients see is compared with the tree that was published; curators are killed, started
# again, replaced by others, and stopped; tables are damaged; versions are deleted.
#
# KESTREL_ENCRYPT=1: of an encrypted volume.
set -euo pipefail
. "$(dirname "$0")/../s3/lib.sh"

py=$ROOT/tests/versions/publish.py
mnt=$WORK/mnt m1=$WORK/m1 m2=$WORK/m2 m3=$WORK/m3
mkdir "$mnt" "$m1" "$m2" "$m3"
chmod 711 "$WORK"
install -m 755 "$KESTREL" "$WORK/kestrel"
export KESTREL_RUNTIME_DIR=$WORK/run
kestrel-s3proxy serve --store "unix:$WORK/s3.sock" --log "$WORK/reader.log" \
    >"$WORK/reader.out" 2>"$WORK/reader.err" 9>&- &
reader_pid=$!
disown
# Those that are started below, and a mount that nobody serves would hold the end up.
end_curators() {
    local file
    for file in "$WORK"/curator-*.pid; do
        [ ! -s "$file" ] || kill -9 "$(cat "$file")" 2>/dev/null || true
    done
}
end_reader() {
    kill "$reader_pid"
}
AT_END=end_curators AFTER_ALL=end_reader
wait_until 30 grep -q listening "$WORK/reader.out"
read -r _ reader _ reader_control <"$WORK/reader.out"
kestrel-s3proxy rules --control "$reader_control" --set \
    'status:code=403,error=AccessDenied,kind=put+copy+delete+delete-many+multipart'

url=$(volume_url curated) query=$(volume_url '')
query=${query#*\?} read_query=${query/$S3_ENDPOINT/http:\/\/$reader}
format=()
if [ -n "${KESTREL_ENCRYPT:-}" ]; then
    export KESTREL_KEY_FILE=$WORK/volume.key
    "$KESTREL" key create "$KESTREL_KEY_FILE" >/dev/null
    format=(--encrypt)
fi
# k COMMAND…: kestrel on the machine that writes.
k() {
    KESTREL_STATE_DIR=$WORK/a timeout 120 "$KESTREL" "$@"
}
# curator COMMAND…: as the user of curators, on another machine.
curator() {
    timeout 60 setpriv --reuid 1000 --regid 1000 --clear-groups env "${curator_env[@]}" \
        KESTREL_STATE_DIR="$WORK/c/state" KESTREL_RUNTIME_DIR="$WORK/c/run" "$WORK/kestrel" "$@"
}
install -d -o 1000 -g 1000 "$WORK/c"
curator_env=()
if [ -n "${KESTREL_ENCRYPT:-}" ]; then
    install -o 1000 -m 600 "$KESTREL_KEY_FILE" "$WORK/c/volume.key"
    curator_env=(KESTREL_KEY_FILE="$WORK/c/volume.key")
fi
py() {
    timeout 120 python3 "$py" "$@"
}
# version NAME: as curators name it.
version() {
    echo "s3://$S3_BUCKET/curated//$1?$read_query"
}
# begin NAME PORT [OPTION…]: a curator of a version; its process is in curator-PORT.pid.
begin() {
    curator serve "$(version "$1")" --read-only --listen "127.0.0.1:$2" --lease 4s "${@:3}" \
        >"$WORK/curator-$2.out" 7<&- 8<&- || return
    sed -n 's/.*(process \([0-9]*\),.*/\1/p' "$WORK/curator-$2.out" >"$WORK/curator-$2.pid"
}
# end PORT: kill -9
end() {
    kill_pid "$(cat "$WORK/curator-$1.pid")"
}
log_of() {
    cat "$WORK"/c/run/serve-127.0.0.1-"$1"-*/serve.log
}
# at NAME PORT…: the URL of clients.
at() {
    local addresses
    addresses=$(printf ',127.0.0.1:%s' "${@:2}")
    echo "kestrel://${addresses:1}/curated//$1"
}
show() {
    timeout 60 "$KESTREL" mount "$1" "$2" --allow-other "${@:3}"
}
hide() {
    timeout 60 "$KESTREL" umount "$1"
}
equals() {
    py list "$2" >"$WORK/listing" 2>"$WORK/listing.err" || true
    check "$1: every attribute, link and byte" py same "$WORK/live" "$WORK/listing"
    [ ! -s "$WORK/listing.err" ] || { cat "$WORK/listing.err" && fail "$1: the listing"; }
}
# served URL EXPRESSION: of the status of a server.
served() {
    "$KESTREL" status "$1" --json | python3 -c "
import json, sys
one = json.load(sys.stdin)
print($2)"
}
fails_with() {
    local error=$1
    shift
    ! "$@" >"$WORK/fails.out" 2>&1 && grep -qi "$error" "$WORK/fails.out"
}
read -r p1 p2 p3 p4 < <(free_ports 4)

k format "$url" --grace 1s "${format[@]}" >/dev/null
k mount "$url" "$mnt" --allow-other >/dev/null
mkdir "$mnt/tree"
py make "$mnt/tree" "$mnt/out"
py list "$mnt/tree" live >"$WORK/live"
k publish "$mnt/tree" all@1 >/dev/null
mkdir "$mnt/small" && echo one >"$mnt/small/f"
k publish "$mnt/small" small@1 >/dev/null
sums=$(py sums "$mnt/tree")
check "the volume is unmounted" k umount "$mnt"

echo "-- how one is started"
refuses "without --read-only" "served with --read-only" curator serve "$(version all@1)"
refuses "a volume with --read-only" "for a published version" k serve "$url" --read-only
refuses "no such version" "no version of this name" \
    curator serve "$(version nope)" --read-only --listen "127.0.0.1:$p1"
refuses "--grace" "for servers of a volume" \
    curator serve "$(version all@1)" --read-only --grace 5s
refuses "port 0" "give ADDRESS:PORT" \
    curator serve "$(version all@1)" --read-only --listen 127.0.0.1:0
refuses "tokens, and none" "kestrel token export" \
    curator serve "$(version all@1)" --read-only --access tokens
if [ -n "${KESTREL_ENCRYPT:-}" ]; then
    refuses "without the volume's key" "key" setpriv --reuid 1000 --regid 1000 --clear-groups env \
        -u KESTREL_KEY_FILE KESTREL_STATE_DIR="$WORK/c/other" KESTREL_RUNTIME_DIR="$WORK/c/run" \
        "$WORK/kestrel" serve "s3://$S3_BUCKET/curated//all@1?$read_query" --read-only
fi
check "--check" prints "would be served at 127.0.0.1:$p1" \
    curator serve "$(version all@1)" --read-only --listen "127.0.0.1:$p1" --check
check "a curator" begin all@1 "$p1"
check "another one beside it" begin all@1 "$p2" --metrics "127.0.0.1:$p4"
refuses "a second one at an address" "in use" begin all@1 "$p1"
check "its log says what is in memory" grep -q "all .* of tables are in memory" <(log_of "$p1")

echo "-- what clients see"
check "a client of one" show "$(at all@1 "$p1")" "$m1" --deadline 60s
check "a client of two" show "$(at all@1 "$p1" "$p2")" "$m2"
equals "one curator" "$m1"
equals "two curators" "$m2"
check "every change is EROFS" py read-only "$m1"
not_private() {
    ! setpriv --reuid 2000 --clear-groups cat "$m1/attributes/m400" &&
        setpriv --reuid 1000 --clear-groups cat "$m1/attributes/m400"
}
check "permissions are looked at" not_private
check "a lock" flock -n "$m1/sizes/5000" true
check "there is no .snap" test ! -e "$m1/.snap"
check "statfs" stat -f "$m1"
check "status of the mount" prints "served *as curated//all@1 at 127.0.0.1:$p1" \
    "$KESTREL" status "$m1"
check "status of the curator" prints "served *as curated//all@1" \
    "$KESTREL" status "$(at all@1 "$p1")"
check "it names the version" same "$(served "$(at all@1 "$p1")" 'one["version"]["name"]')" all@1
check "stats" prints "lookup" "$KESTREL" stats "$(at all@1 "$p1")" --once
check "metrics" prints "^kestrel_server_connected 0" curl -s "http://127.0.0.1:$p4/metrics"
refuses "what is not known of a version" "name the volume itself" \
    "$KESTREL" fsck "$(at all@1 "$p1")"
refuses "another version" "this node serves .curated//all@1" show "$(at other@1 "$p1")" "$m3"
refuses "the volume" "this node serves .curated//all@1" \
    show "kestrel://127.0.0.1:$p1/curated" "$m3"
# The client reads file data by itself; the curator reads nothing any more.
curator_requests() {
    served "$(at all@1 "$p1")" 'one["pid"]' >/dev/null
    "$KESTREL" stats "$(at all@1 "$p1")" --once --json | python3 -c '
import json, sys
found = json.load(sys.stdin)
print(sum(value for name, value in found.items()
          if name.startswith("s3_requests") and isinstance(value, int)))'
}
before=$(curator_requests)
check "a new client" show "$(at all@1 "$p1")" "$m3"
find "$m3" -printf '%s %m\n' >/dev/null
check "a walk of it costs the curator no request" same "$(curator_requests)" "$before"
check "is unmounted" hide "$m3"

echo "-- curators die"
exec 7<"$m1/sizes/10000000" 8<"$m2/sizes/10000000"
head -c 1000 <&7 >/dev/null
head -c 1000 <&8 >/dev/null
# churn DIR: opens and reads files until a file says stop; fails if anything does.
churn() {
    python3 - "$1" "$WORK/stop" <<'PY'
import os, random, sys, time
top, stop = sys.argv[1:]
rng, seen, begun, longest = random.Random(3), 0, time.monotonic(), 0
while not os.path.exists(stop):
    n, m = rng.randrange(12), rng.randrange(40)
    at = time.monotonic()
    with open(f"{top}/many/d{n}/f{m}", "rb") as file:
        found = file.read()
    longest = max(longest, time.monotonic() - at)
    assert found.startswith(b"%d of %d\n" % (m, n)), (n, m, found[:40])
    os.stat(f"{top}/names/name number {rng.randrange(1500):06}")
    seen += 1
assert seen > 100, seen
print(f"{seen} reads, the longest took {longest:.2f} s")
PY
}
rm -f "$WORK/stop"
churn "$m1" >"$WORK/churn-1" 2>&1 &
one=$!
churn "$m2" >"$WORK/churn-2" 2>&1 &
two=$!
end "$p1"
elsewhere() {
    same "$(served "$(at all@1 "$p2")" 'one["served"]["connected"]')" 2
}
check "a client goes on with the other curator" wait_until 20 elsewhere
check "a file that is open is read on" test "$(wc -c <&8)" = 9999000
sleep 1
check "killed, and started again" begin all@1 "$p1"
check "the other client goes on" timeout 20 stat "$m1/sizes"
check "a file that is open is read on" test "$(wc -c <&7)" = 9999000
end "$p2"
both() {
    same "$(served "$(at all@1 "$p1")" 'one["served"]["connected"]')" 3
}
check "and back" wait_until 20 both
check "started again" begin all@1 "$p2"
for _ in 1 2; do
    end "$p1"
    begin all@1 "$p1"
    sleep 0.5
done
touch "$WORK/stop"
check "no read has failed ($(tail -n 1 "$WORK/churn-1"))" wait "$one"
check "nor one of the other ($(tail -n 1 "$WORK/churn-2"))" wait "$two"
exec 7<&- 8<&-
equals "after that" "$m1"
equals "and of two" "$m2"
no_opens() {
    same "$(served "$(at all@1 "$p1")" 'one["served"]["opens"]')" 0
}
check "the curator knows of no open file" wait_until 10 no_opens

echo "-- they end"
check "--stop" curator serve "$(version all@1)" --stop --listen "127.0.0.1:$p2"
refuses "--stop of what does not run" "nobody serves" \
    curator serve "$(version all@1)" --stop --listen "127.0.0.1:$p2"
kill "$(cat "$WORK/curator-$p1.pid")"
check "SIGTERM" wait_until 20 gone "$(cat "$WORK/curator-$p1.pid")"
check "it said that it ended" grep -q "closed" <(log_of "$p1")
check "mounts are unmounted without a curator" hide "$m1"
check "both of them" hide "$m2"

echo "-- where a server of the volume is"
KESTREL_STATE_DIR=$WORK/a timeout 60 "$KESTREL" serve "$url" --listen "127.0.0.1:$p3" >/dev/null
served "kestrel://127.0.0.1:$p3/curated" 'one["pid"]' >"$WORK/curator-$p3.pid"
check "a mount by it reads the store" show "$(at all@1 "$p3")" "$m1"
check "all of it" same "$(py sums "$m1")" "$sums"
check "its log has no refusal" not grep -q "refused" "$WORK"/a/*/serve.log
check "unmounted" hide "$m1"

echo "-- tokens and encryption"
tokens=$WORK/c/tokens
export_tokens() {
    k token export "$url" >"$tokens.new" && chown 1000 "$tokens.new" && mv "$tokens.new" "$tokens"
}
(umask 077
k token create "$url" --name reader --read-only >"$WORK/reader.token"
k token create "$url" --name user --uid 1000 >"$WORK/user.token"
k token create "$url" --name below --subtree /tree >"$WORK/below.token")
check "tokens are exported" export_tokens
check "without their secrets" not grep -q "$(cut -d: -f4 "$WORK/reader.token")" "$tokens"
check "a curator that wants tokens" begin all@1 "$p1" --tls on --access tokens --tokens "$tokens"
secure=$(sed 's/.* is served at \([^ ]*\) .*/\1/' "$WORK/curator-$p1.out")
check "the URL says by what it is known" prints "ca=sha256:" echo "$secure"
refuses "a client without a token" "show a token" show "$secure&tls=on" "$m1"
check "a client with one" show "$(at all@1 "$p1")?tls=on" "$m1" --token-file "$WORK/reader.token"
check "sees all" same "$(py sums "$m1")" "$sums"
check "unmounted" hide "$m1"
refuses "one for a subtree" "no token" show "$(at all@1 "$p1")?tls=on" "$m1" \
    --token-file "$WORK/below.token"
check "one for a user" show "$(at all@1 "$p1")?tls=on" "$m2" --token-file "$WORK/user.token"
check "root is another user" fails_with "permission denied" stat "$m2/sizes"
check "the user may" setpriv --reuid 1000 --regid 1000 --clear-groups stat "$m2/sizes"
k token revoke "$url" user >/dev/null
check "revoked, and exported" export_tokens
ended() {
    ! setpriv --reuid 1000 --regid 1000 --clear-groups cat "$m2/sizes/4095" >/dev/null 2>&1
}
check "the mount ends to see things" wait_until 15 ended
hide "$m2" >/dev/null 2>&1 || "$KESTREL" umount --force "$m2" >/dev/null
end "$p1"
check "the server of the volume ends" k serve "$url" --stop

echo "-- another version under the name"
check "a curator of a small version" begin small@1 "$p1"
check "a client" show "$(at small@1 "$p1")" "$m1" --deadline 2s
check "reads" same "$(cat "$m1/f")" one
end "$p1"
check "mounted" k mount "$url" "$mnt" --allow-other
check "deleted" k version delete "$mnt" small@1
echo two >"$mnt/small/f"
# In objects of its own.
head -c 20000000 /dev/urandom >"$mnt/small/large"
check "published anew" k publish "$mnt/small" small@1
check "a curator of it" begin small@1 "$p1"
check "the client does not take it for the old one" fails_with "input/output error" \
    timeout 20 cat "$m1/f"
check "and says why" grep -q "another version" "$WORK"/run/*m1*/mount.log
check "mounted anew" hide "$m1"
check "it is the new one" show "$(at small@1 "$p1")" "$m1"
check "with its bytes" same "$(cat "$m1/f")" two

echo "-- a version that is deleted while it is served"
check "deleted" k version delete "$mnt" small@1
rm -r "$mnt/small"
stored() {
    du -s --block-size=1 "$STORE_DIR/$S3_BUCKET/curated" | cut -f1
}
full=$(stored)
freed() {
    k gc "$url" --delete --grace 0s >/dev/null
    [ "$(stored)" -lt $((full - 15000000)) ]
}
check "names and attributes are there" test "$(stat -c %s "$m1/large")" = 20000000
check "small files, too" same "$(cat "$m1/f")" two
check "bytes are freed" wait_until 40 freed
check "those that were not read are gone (EIO)" fails_with "input/output error" \
    timeout 20 cat "$m1/large"
check "unmounted" hide "$m1"
check "the curator ends" curator serve "$(version small@1)" --stop --listen "127.0.0.1:$p1"
check "the volume is unmounted" k umount "$mnt"

echo "-- damage"
check "a curator" begin all@1 "$p2"
table=$(find "$STORE_DIR/$S3_BUCKET/curated" -path '*versions/data/*' -path '*table*' -type f |
    head -n 1)
cp "$table" "$WORK/table"
# Not the first block: what a node reads when it starts is there.
size=$(stat -c %s "$table")
for offset in $((size * 4 / 10)) $((size * 6 / 10)); do py damage "$table" "$offset"; done
check "what is in memory is served" show "$(at all@1 "$p2")" "$m1"
check "all of it" same "$(py sums "$m1")" "$sums"
check "unmounted" hide "$m1"
check "a curator of damaged tables starts" begin all@1 "$p1"
check "and says so" grep -q "version all@1: .*read when they are asked for" <(log_of "$p1")
check "a client of it" show "$(at all@1 "$p1")" "$m1"
check "reading the damaged part is EIO" fails_with "input/output error" \
    timeout 60 find "$m1" -printf '%s\n'
check "the curator's log names it" grep -q "ERROR.*version all@1" <(log_of "$p1")
cp "$WORK/table" "$table"
check "with the table back the mount reads all of it" same "$(py sums "$m1")" "$sums"
check "unmounted" hide "$m1"
end "$p1"
end "$p2"

echo "-- nothing was written"
check "no curator has tried to write" same 0 "$(kestrel-s3proxy counts \
    --control "$reader_control" | python3 -c '
import json, sys
found = json.load(sys.stdin)["requests"]
print(sum(found.get(kind, 0) for kind in ("put", "copy", "delete", "delete-many", "multipart")))')"
check "fsck --data finds nothing" k fsck "$url" --data
summary

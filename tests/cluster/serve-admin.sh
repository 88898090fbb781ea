#!/usr/bin/env bash
# What an administrator does by URL with a volume that one node serves, with a token: dumps of it
# while it is used, settings, keys, compact; that this is refused with a token that may not
# administer; and that a change which was cut short is finished by the next.
# shellcheck disable=SC2034 # lib.sh reads what is set here
set -euo pipefail
KESTREL_SERVE=1
. "$(dirname "$0")/../lib.sh"
needs_kestrel
SERVE_OPTIONS=(--lease 4s --access tokens)
umask 077

# says TEXT PATTERN COMMAND…: it succeeds and says something that matches.
says() {
    local text=$1 pattern=$2
    shift 2
    if "$@" >"$WORK/said.out" 2>&1 && grep -qE -- "$pattern" "$WORK/said.out"; then ok "$text"; else
        tail -n 30 "$WORK/said.out"
        fail "$text"
    fi
}
same() { [ "$1" = "$2" ] || { echo "$1 is not $2" && return 1; }; }

trees=(python3 "$ROOT/tests/cluster/trees.py")
sparse=(python3 "$ROOT/tests/cluster/sparse.py")
volume=$WORK/volume mnt=$WORK/mnt one=$WORK/one
for key in 1 2 3 4 other; do "$KESTREL" key create "$WORK/$key.key" >/dev/null; done
export KESTREL_KEY_FILE=$WORK/1.key
make_volume "$volume" --encrypt --grace 1s
url=$(serve_url "$volume")
"$KESTREL" token create "$volume" --name chief --admin >"$WORK/chief.token"
"$KESTREL" token create "$volume" --name user >"$WORK/user.token"
as_user=(env KESTREL_TOKEN_FILE="$WORK/user.token" "$KESTREL")
as_chief=(env KESTREL_TOKEN_FILE="$WORK/chief.token" "$KESTREL")
export KESTREL_TOKEN_FILE=$WORK/user.token
mount_volume "$volume" "$mnt"
mkdir "$mnt/tree" "$mnt/busy" "$mnt/sparse"
check "a tree with files of all kinds" "${trees[@]}" make "$mnt/tree"
check "files of which most are removed" "${sparse[@]}" make "$mnt/sparse"
sync -f "$mnt"

echo "== who may not"
may_not='token [0-9a-f]+ \(user\) may not administer the volume'
refuses "a dump" "dump: .*$may_not" "${as_user[@]}" dump "$url" "$WORK/no.dump"
check "of which nothing is left" sh -c "! ls -A '$WORK' | grep -E 'no.dump|^cut\.'"
refuses "looking at settings" "config: .*$may_not" "${as_user[@]}" config "$url"
refuses "changing them" "config: .*$may_not" "${as_user[@]}" config "$url" --compress lz4
refuses "looking at keys" "key: .*$may_not" "${as_user[@]}" key show "$url"
refuses "replacing them" "key: .*$may_not" "${as_user[@]}" key rotate "$url" \
    --new-key-file "$WORK/2.key"
refuses "compact" "compact: .*$may_not" "${as_user[@]}" compact "$url"
refuses "nobody without a token" 'kestrel token create|--token' env -u KESTREL_TOKEN_FILE \
    "$KESTREL" dump "$url" "$WORK/no.dump"

echo "== dumps while files change"
"${trees[@]}" change "$mnt/busy" 15 >"$WORK/steps" &
change=$!
wait_until 20 test -s "$WORK/steps"
for round in 1 2 3; do
    sleep 0.5
    from=$(tail -n 1 "$WORK/steps")
    check "dump $round" "${as_chief[@]}" dump "$url" "$WORK/busy$round.dump"
    to=$(tail -n 1 "$WORK/steps")
    echo "$from $to" >"$WORK/busy$round.steps"
done
if wait "$change"; then
    ok "the changes go on meanwhile: $(tail -n 1 "$WORK/steps") steps"
else
    fail "a change failed"
fi
refuses "one that is there is not replaced" "exists" "${as_chief[@]}" dump "$url" "$WORK/busy1.dump"
cp "$WORK/busy1.dump" "$WORK/replaced.dump"
check "unless it is to be" "${as_chief[@]}" dump "$url" "$WORK/replaced.dump" --force
check "nothing is left beside them" sh -c "! ls -A '$WORK' | grep -E '^\.|^cut\.'"
SERVING=
for round in 1 2 3; do
    read -r from to <"$WORK/busy$round.steps"
    says "load of dump $round" "loaded and verified" "$KESTREL" load "$WORK/busy$round.dump" \
        "$one$round" --objects "$volume/objects"
    check "fsck of it" "$KESTREL" fsck "$one$round" --data
    mount_volume "$one$round" "$WORK/mnt-one"
    check "it is what was there at one moment, from step $from to $to" "${trees[@]}" judge \
        "$WORK/mnt-one/busy" "$from" "$to"
    check "and the tree as it is" "${trees[@]}" compare "$mnt/tree" "$WORK/mnt-one/tree"
    umount_volume "$WORK/mnt-one"
done
SERVING=1
# The same rows as a dump by the volume's directory, in the same order, when nothing changes.
sync -f "$mnt"
rows() { python3 - "$1" <<'PY'
import json, sys
# Not the first line, which has the time, nor the last, which has a checksum of all.
for line in open(sys.argv[1]):
    if not {"header", "end"} & json.loads(line).keys():
        print(line, end="")
PY
}
check "a dump by URL" "${as_chief[@]}" dump "$url" "$WORK/url.dump"
check "and one by the directory" "$KESTREL" dump "$volume" "$WORK/dir.dump"
rows "$WORK/url.dump" >"$WORK/url.rows"
rows "$WORK/dir.dump" >"$WORK/dir.rows"
check "have the same rows" diff "$WORK/url.rows" "$WORK/dir.rows"

echo "== compact"
says "compact tells what there is to do" "[1-9][0-9]* objects less than half in use" \
    "${as_chief[@]}" compact "$url" --dry-run
says "compact" "[1-9][0-9]* references moved" "${as_chief[@]}" compact "$url"
check "every byte is as written" "${sparse[@]}" judge "$mnt/sparse"

echo "== settings"
says "config" "compression  none" "${as_chief[@]}" config "$url"
says "a change" "compression  zstd:3" "${as_chief[@]}" config "$url" --compress zstd:3
says "applies when it is opened again" "changes apply when it is started" "${as_chief[@]}" config \
    "$url"
says "the directory has it" "compression  zstd:3" "$KESTREL" config "$volume"
refuses "nonsense" "compress" "${as_chief[@]}" config "$url" --compress rot13
check "it is in the audit log" grep -q '"what":"settings"' "$volume/audit.log"

echo "== keys"
says "the keys" "data key     1" "${as_chief[@]}" key show "$url"
refuses "with another key" "not the key" "${as_chief[@]}" key rotate "$url" \
    --key-file "$WORK/other.key" --new-key-file "$WORK/2.key"
says "a rotation" "data key 2 is the newest" "${as_chief[@]}" key rotate "$url" \
    --new-key-file "$WORK/2.key"
says "and the same again changes nothing" "data key 2 is the newest" "${as_chief[@]}" key rotate \
    "$url" --new-key-file "$WORK/2.key"
says "the new key opens it" "this key opens it" "${as_chief[@]}" key show "$url" \
    --key-file "$WORK/2.key"
refuses "the old one does not" "not the key" "${as_chief[@]}" key show "$url" \
    --key-file "$WORK/1.key"
check "what is mounted goes on" "${trees[@]}" compare "$mnt/tree" "$mnt/tree"
umount_volume "$mnt"

# The server is killed in the middle of a change; the next finishes it.
from=2
for point in descriptor.replace.written descriptor.replace.renamed; do
    to=$((from + 1))
    kill_server "$volume"
    KESTREL_KEY_FILE=$WORK/$from.key KESTREL_CRASH_AT=$point:1 start_server "$volume"
    refuses "a rotation that $point cuts short" "answer" \
        timeout 60 "${as_chief[@]}" key rotate "$url" --key-file "$WORK/$from.key" \
        --new-key-file "$WORK/$to.key"
    opens=$from
    "$KESTREL" key show "$volume" --key-file "$WORK/$from.key" >"$WORK/said.out" 2>&1 || opens=$to
    check "one of the two keys opens the volume: $opens" "$KESTREL" key show "$volume" \
        --key-file "$WORK/$opens.key"
    KESTREL_KEY_FILE=$WORK/$opens.key start_server "$volume"
    says "is finished by the next" "volume key" "${as_chief[@]}" key rotate "$url" \
        --key-file "$WORK/$from.key" --new-key-file "$WORK/$to.key"
    check "the new key opens it" "$KESTREL" key show "$volume" --key-file "$WORK/$to.key"
    from=$to
done
export KESTREL_KEY_FILE=$WORK/4.key
stop_server "$volume"
start_server "$volume"
mount_volume "$volume" "$mnt"
check "every byte is there with the newest key" "${sparse[@]}" judge "$mnt/sparse"
check "and can be changed" sh -c "echo new >'$mnt/tree/new' && dd if=/dev/urandom of='$mnt/tree/big' bs=1M count=2 status=none"
umount_volume "$mnt"
check "fsck --data by URL" "${as_chief[@]}" fsck "$url" --data
stop_server "$volume"
check "fsck --data at rest" "$KESTREL" fsck "$volume" --data
summary

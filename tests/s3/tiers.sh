#!/usr/bin/env bash
# Tiers: where new data goes, moving what is there by copies in the store and, where others share
# it, by storing it again; archives that have to restore before they are read; a store that fails at
# it; crashes. The gateway has no storage classes: kestrel-s3proxy keeps them.
set -euo pipefail
# shellcheck disable=SC2034 # s3/lib.sh reads it
STORE_OPTIONS=(--classes STANDARD_IA,GLACIER)
. "$(dirname "$0")/lib.sh"

volume=$WORK/vol mnt=$WORK/mnt
PY=$ROOT/tests/s3/tiers.py

# tier ARGUMENTS: as JSON.
tier() {
    "$KESTREL" tier "$@" --json
}

# figure FIELD… FILE: of the JSON in it.
figure() {
    python3 -c '
import json, sys
found = json.load(open(sys.argv[-1]))
for name in sys.argv[1:-1]:
    if isinstance(found, list):
        found = {row["tier"]: row for row in found}
    found = found.get(name, {"objects": 0})
print(found)' "$@"
}

# all_in TIER PLACE: every object of the files there is in it.
all_in() {
    tier status "$2" >"$WORK/status.json" || true
    python3 -c '
import json, sys
found = json.load(open(sys.argv[2]))["found"]
names = [row["tier"] for row in found]
sys.exit(f"{names}" if names != [sys.argv[1]] else 0)' "$1" "$WORK/status.json"
}

# fails_with ERRNO FILE [nonblock]: reading it fails so.
fails_with() {
    python3 "$PY" fails "$@"
}

# reads PLACE: all files there are as they were written.
reads() {
    python3 "$PY" check "$1"
}

mount_volume_aloud() {
    "$KESTREL" mount "$@"
}

restored() {
    kestrel-s3proxy restored --control "$CONTROL" >"$WORK/restored.out"
}

make_volume "$volume"
mount_volume "$volume" "$mnt"
mkdir "$mnt/new" "$mnt/old" "$mnt/other"

echo "== new data"
refuses "a tier that the store does not have" "a tier is one that the volume's store has" \
    "$KESTREL" policy set "$mnt/new" tier=deep-archive
refuses "what is no tier" "tier takes standard, standard-ia" \
    "$KESTREL" policy set "$mnt/new" tier=cold
refuses "the same as an attribute" "not supported" \
    setfattr -n kestrel.tier -v deep-archive "$mnt/new"
check "a tier is set" "$KESTREL" policy set "$mnt/new" tier=archive
check "and shown" prints 'tier *archive' "$KESTREL" policy get "$mnt/new" tier
check "and as an attribute" prints archive getfattr --only-values -n kestrel.tier "$mnt/new"
check "nothing is left of the trial" not grep -r kestrel-tier "$STORE_DIR"
python3 "$PY" write "$mnt/new" 12
python3 "$PY" write "$mnt/old" 30
mkdir "$mnt/new/inner"
python3 "$PY" write "$mnt/new/inner" 2
check "files are in the archive" all_in archive "$mnt/new"
check "also below" all_in archive "$mnt/new/inner"
check "others are not" all_in standard "$mnt/old"
check "one file has a status, too" all_in archive "$mnt/new/f0"
check "a mount that wrote them still reads them or says EIO at once" \
    timeout 20 python3 "$PY" reads-or-fails "$mnt/new"
remount "$volume" "$mnt"

echo "== archives"
check "a file in an archive: EIO" timeout 20 python3 "$PY" fails EIO "$mnt/new/f3"
check "EAGAIN for O_NONBLOCK" timeout 20 python3 "$PY" fails EAGAIN "$mnt/new/f3" nonblock
check "the mount's log says what to do" grep -q 'is in an archive; .kestrel tier restore' \
    "$(find "$WORK" -maxdepth 2 -name '*.log' | xargs grep -l 'in an archive' | head -n 1)"
check "names, attributes and removal do not need it" \
    python3 "$PY" attributes "$mnt/new/f5"
refuses "status: not readable, exit code 1" "have to be restored" \
    "$KESTREL" tier status "$mnt/new"
refuses "restore of part of it: not there yet" "being restored" \
    "$KESTREL" tier restore "$mnt/new" --days 3 --speed expedited
refuses "asked again" "being restored" "$KESTREL" tier restore "$mnt/new"
check "still EIO meanwhile" fails_with EIO "$mnt/new/f3"
restored
check "then it is there" prints 'can be read for a while' "$KESTREL" tier status "$mnt/new"
check "and read" reads "$mnt/new"
check "restore of what can be read" "$KESTREL" tier restore "$mnt/new"
check "restore of what is in no archive does nothing" "$KESTREL" tier restore "$mnt/old"

echo "== moving"
check "policy" "$KESTREL" policy set "$mnt/old" tier=standard-ia
tier migrate "$mnt/old" --dry-run >"$WORK/dry.json"
check "a dry run tells" is_more "$(figure moved standard-ia objects "$WORK/dry.json")" 0
check "and moves nothing" all_in standard "$mnt/old"
reset_counts
check "migrates" "$KESTREL" tier migrate "$mnt/old"
check "by copies in the store" same "$(count requests copy)" \
    "$(figure moved standard-ia objects "$WORK/dry.json")"
check "no byte comes here" same "$(count requests get)" 0
check "all there" all_in standard-ia "$mnt/old"
check "read as they were" reads "$mnt/old"
check "nothing to do again" prints 'everything is in its tier' "$KESTREL" tier migrate "$mnt/old"
remount "$volume" "$mnt"
check "read as they were after a remount" reads "$mnt/old"

echo "== what others share"
python3 "$PY" clone "$mnt/old" "$mnt/other/clone"
"$KESTREL" policy set "$mnt/other" tier=standard
"$KESTREL" policy set "$mnt/old" tier=archive
tier migrate "$mnt/old" >"$WORK/shared.json"
again=$(figure stored_again objects "$WORK/shared.json")
check "shared objects are stored again" is_more "$again" 0
check "the files are in the archive" all_in archive "$mnt/old"
remount "$volume" "$mnt"
check "the others can be read" reads "$mnt/other/clone"
check "these not" fails_with EIO "$mnt/old/f1"

echo "== out of an archive"
"$KESTREL" policy set "$mnt/old" tier=standard
check "not before it is restored" prints 'are in an archive: restore them first' \
    "$KESTREL" tier migrate "$mnt/old"
"$KESTREL" tier restore "$mnt/old" >/dev/null || true
(sleep 2 && restored) &
check "waits for the archive" timeout 60 "$KESTREL" tier restore "$mnt/old" --until-restored \
    --every 200ms
check "then" "$KESTREL" tier migrate "$mnt/old"
check "all in standard" all_in standard "$mnt/old"
check "and read" reads "$mnt/old"

echo "== a store that fails"
"$KESTREL" policy set "$mnt/old" tier=standard-ia
faults 'status:code=400,error=InvalidArgument,kind=copy'
refuses "copies fail" "failed; the log" "$KESTREL" tier migrate "$mnt/old"
no_faults
check "nothing moved, nothing lost" all_in standard "$mnt/old"
remount "$volume" "$mnt"
check "read after failed copies" reads "$mnt/old"
faults 'lost-answer:kind=copy,rate=0.4'
check "lost answers are no failures" "$KESTREL" tier migrate "$mnt/old"
no_faults
check "all moved" all_in standard-ia "$mnt/old"
faults 'lost-answer:kind=put,rate=0.4'
mkdir "$mnt/new/more"
check "puts to an archive whose answers are lost" python3 "$PY" write "$mnt/new/more" 6
no_faults
check "are there" all_in archive "$mnt/new/more"

if [ -z "$SERVING" ]; then
    echo "== crashes"
    for point in tier.before-copy tier.copied client.repack.stored \
        client.repack.committed; do
        tier=standard
        grep -q repack <<<"$point" && tier=standard-ia
        # Bytes that another tree shares are stored again.
        rm -rf "$mnt/other/clone"
        "$KESTREL" policy set "$mnt/old" tier=$tier
        "$KESTREL" tier migrate "$mnt/old" >/dev/null
        grep -q repack <<<"$point" && python3 "$PY" clone "$mnt/old" "$mnt/other/clone"
        next=$([ $tier = standard ] && echo standard-ia || echo standard)
        "$KESTREL" policy set "$mnt/old" tier="$next"
        umount_volume "$mnt"
        KESTREL_CRASH_AT=$point mount_volume "$volume" "$mnt"
        refuses "$point: the mount dies" "ended before it had answered" \
            "$KESTREL" tier migrate "$mnt/old"
        "$KESTREL" umount --force "$mnt" >/dev/null
        mount_volume "$volume" "$mnt"
        check "$point: files are whole" reads "$mnt/old"
        check "$point: goes on" "$KESTREL" tier migrate "$mnt/old"
        check "$point: all there" all_in "$next" "$mnt/old"
    done
    umount_volume "$mnt"
    tier status "$volume" >"$WORK/rest.json" || true
    found=$(figure found standard objects "$WORK/rest.json")
    check "a volume that nobody serves" is_more "$found" 0
    mount_volume "$volume" "$mnt"
fi

echo "== everything else"
check "compaction leaves archives alone" "$KESTREL" compact "$mnt/new"
refuses "a path that is not there" "no such file|neither a volume" \
    "$KESTREL" tier status "$mnt/nothing"
refuses "a number of days that is none" "1..=3650" \
    "$KESTREL" tier restore "$mnt/new" --days 0
"$KESTREL" snapshot create "$mnt/old" one >/dev/null
python3 "$PY" clone "$mnt/old" "$mnt/other/again"
"$KESTREL" policy set "$mnt/old" tier=archive
check "shared objects are stored again beside snapshots" \
    prints 'are stored again' "$KESTREL" tier migrate "$mnt/old"
check "all in the archive" all_in archive "$mnt/old"
remount "$volume" "$mnt"
check "others are read" reads "$mnt/other/again"
"$KESTREL" snapshot remove "$mnt/old" one >/dev/null
rm -rf "$mnt/new/f1"
check "unmounts" umount_volume "$mnt"
check "fsck" fsck_volume "$volume"
check "fsck --data says what it could not verify" fsck_volume "$volume" --data
check "and says so" grep -q 'in archives not verified' "$WORK/fsck.out"

if [ -z "$SERVING" ]; then
    echo "== a local store"
    "$KESTREL" format "$WORK/local" >/dev/null
    mount_volume "$WORK/local" "$WORK/local-mnt"
    refuses "a tier on a local disk" "a tier is one that the volume's store has" \
        "$KESTREL" policy set "$WORK/local-mnt" tier=archive
    refuses "its status" "the volume's store has no tiers" "$KESTREL" tier status "$WORK/local-mnt"
    check "standard is always there" "$KESTREL" policy set "$WORK/local-mnt" tier=standard
    echo text >"$WORK/local-mnt/f"
    close_and_check "$WORK/local" "$WORK/local-mnt"

    echo "== a local store with a second directory"
    mkdir "$WORK/slow"
    ln -s "$WORK/slow" "$WORK/local/objects/archive"
    mount_volume "$WORK/local" "$WORK/local-mnt"
    check "the tier archive is there" "$KESTREL" policy set "$WORK/local-mnt" tier=archive
    refuses "another is not" "a tier is one that the volume's store has" \
        "$KESTREL" policy set "$WORK/local-mnt" tier=glacier-ir
    mkdir "$WORK/local-mnt/d" "$WORK/local-mnt/e"
    python3 "$PY" write "$WORK/local-mnt/d" 12
    check "new data goes there" is_more "$(find "$WORK/slow" -type f -size +100k | wc -l)" 0
    check "all of it" all_in archive "$WORK/local-mnt/d"
    check "info says where" prints "$WORK/local/objects/archive/../" \
        "$KESTREL" info "$WORK/local-mnt/d/f4" --json
    remount "$WORK/local" "$WORK/local-mnt"
    check "and is read without restoring" reads "$WORK/local-mnt/d"
    check "status: nothing to restore" "$KESTREL" tier status "$WORK/local-mnt/d"
    "$KESTREL" policy set "$WORK/local-mnt" tier=standard
    check "moved back" "$KESTREL" tier migrate "$WORK/local-mnt"
    check "all in standard" all_in standard "$WORK/local-mnt"
    check "nothing is left behind" same "$(find "$WORK/slow" -name '0000*' | wc -l)" 0
    "$KESTREL" policy set "$WORK/local-mnt/d" tier=archive
    umount_volume "$WORK/local-mnt"
    KESTREL_CRASH_AT=tier.linked:3 mount_volume "$WORK/local" "$WORK/local-mnt"
    refuses "killed while it moves" "ended before it had answered" \
        "$KESTREL" tier migrate "$WORK/local-mnt"
    "$KESTREL" umount --force "$WORK/local-mnt" >/dev/null
    check "fsck after that" fsck_volume "$WORK/local" --data
    mount_volume "$WORK/local" "$WORK/local-mnt"
    check "files are whole" reads "$WORK/local-mnt/d"
    check "moved after all" "$KESTREL" tier migrate "$WORK/local-mnt"
    check "all in the archive" all_in archive "$WORK/local-mnt/d"
    python3 "$PY" clone "$WORK/local-mnt/d" "$WORK/local-mnt/e/clone"
    rm -rf "$WORK/local-mnt/d"
    check "others keep what they share" reads "$WORK/local-mnt/e/clone"
    umount_volume "$WORK/local-mnt"
    mv "$WORK/slow" "$WORK/away"
    refuses "a second directory that is not there" "archive.*mount it" \
        mount_volume_aloud "$WORK/local" "$WORK/local-mnt"
    mkdir "$WORK/slow"
    refuses "one that is not mounted" "mount its disk" \
        mount_volume_aloud "$WORK/local" "$WORK/local-mnt"
    rmdir "$WORK/slow" && mv "$WORK/away" "$WORK/slow"
    mount_volume "$WORK/local" "$WORK/local-mnt"
    check "back again" reads "$WORK/local-mnt/e/clone"
    close_and_check "$WORK/local" "$WORK/local-mnt"
fi
summary

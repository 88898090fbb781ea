#!/usr/bin/env bash
# Objects that a killed mount stored and did not commit go by themselves: collected in the
# background, told in the status, while files are written, and nothing that a file refers to goes.
# Also by a server, and by a cluster's coordinator.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"

volume=$WORK/volume mnt=$WORK/mnt
mkdir -p "$mnt"
collects=(--collect-every 1s --collect-grace 2s)

# until_it COMMAND…: tries for 60 s.
until_it() {
    local try
    for ((try = 0; try < 300; try++)); do
        "$@" && return
        sleep 0.2
    done
    return 1
}

# leftovers COUNT [FIELD]: whether the status of the volume at $place tells of at least so many.
leftovers() {
    "$KESTREL" status "$place" --json >"$WORK/status.json" 2>/dev/null &&
        python3 -c 'import json, sys
told = json.load(open(sys.argv[1]))["leftovers"]
sys.exit(0 if told[sys.argv[3]] >= int(sys.argv[2]) else 1)' "$WORK/status.json" "$1" \
    "${2:-deleted_objects}"
}

leaked() {
    "$KESTREL" gc "$volume" --grace 0s --json |
        python3 -c 'import json, sys; print(json.load(sys.stdin)["leaked_objects"])'
}

"$KESTREL" format "$volume" >/dev/null
for point in 1 2; do
    KESTREL_CRASH_AT=client.flush.stored:1 "$KESTREL" mount "$volume" "$mnt" --collect-every off \
        >/dev/null
    for file in 1 2 3 4 5 6; do
        head -c 300000 /dev/urandom >"$mnt/killed$point.$file" 2>/dev/null || break
    done
    "$KESTREL" umount --force "$mnt" 2>/dev/null || umount -l "$mnt"
done
before=$(leaked)
check "a killed mount leaves objects behind" test "$before" -gt 0

place=$volume
"$KESTREL" mount "$volume" "$mnt" "${collects[@]}" >/dev/null
# Files come and go meanwhile.
(
    set +e
    for ((number = 0; number < 400; number++)); do
        head -c $((number * 997 % 200000 + 5000)) /dev/zero | tr '\0' "$((number % 10))" \
            >"$mnt/file$number"
        [ $((number % 3)) != 0 ] || mv "$mnt/file$number" "$mnt/moved$number"
        [ $((number % 5)) != 0 ] || rm -f "$mnt/file$number"
    done
) &
writer=$!
check "they are deleted in the background, which the status tells" until_it leftovers "$before"
# One may be under way at that moment.
says='^leftovers .*(collected every 1 s|being collected).* objects? with'
check "the status says so to people too" sh -c '"$1" status --verbose "$2" | grep -Eq "$3"' sh \
    "$KESTREL" "$volume" "$says"
wait "$writer"
exec 7>"$mnt/orphan"
rm "$mnt/orphan"
check "a check comes first, and tells of a removed file that is open" \
    prints '^removed, but still open: 1 files of ' "$KESTREL" fsck "$volume"
exec 7>&-
check "and a collection" "$KESTREL" gc "$volume"
runs=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["leftovers"]["runs"])' \
    "$WORK/status.json")
check "it goes on after those" until_it leftovers $((runs + 2)) runs
"$KESTREL" umount "$mnt"
check "nothing is left" test "$(leaked)" = 0
check "and nothing else is gone" "$KESTREL" fsck --data "$volume"

# A server collects what its clients leave behind.
MOUNT_OPTIONS=()
start_server "$volume" "${collects[@]}"
KESTREL_CRASH_AT=client.flush.stored:1 "$KESTREL" mount "$(serve_url "$volume")" "$mnt" >/dev/null
for file in 1 2 3 4 5 6; do
    head -c 300000 /dev/urandom >"$mnt/served$file" 2>/dev/null || break
done
"$KESTREL" umount --force "$mnt" 2>/dev/null || umount -l "$mnt"
place=$(serve_url "$volume")
check "a server collects what a killed client left behind" until_it leftovers 1
stop_server "$volume"
check "and nothing else" "$KESTREL" fsck --data "$volume"
summary

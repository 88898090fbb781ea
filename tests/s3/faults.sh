#!/usr/bin/env bash
# Loads under a storm of store faults, by seed: 500, 503, resets, answers lost after the store did
# the work, truncated, short, long and wrong bodies, delays. Nothing of it may reach an application;
# all of it is retried and counted. Plain volumes, and compressed and encrypted ones. The marker
# that is read at every mount is not spared.
#
# SEED (default 1)
set -euo pipefail
. "$(dirname "$0")/lib.sh"

storm='latency:ms=1,jitter=10 status:code=500,rate=0.03 status:code=503,rate=0.05 reset:rate=0.03 lost-answer:rate=0.03
    truncate:rate=0.05 short:rate=0.08 long:rate=0.08 wrong-bytes:rate=0.08'
mnt=$WORK/mnt
"$KESTREL" key create "$WORK/key" >/dev/null

# weather VOLUME MOUNT-OPTION… -- FORMAT-OPTION…
weather() {
    local name=$1 mount=() load
    local volume=$WORK/$name
    shift
    while [ "$1" != -- ]; do mount+=("$1") && shift; done
    shift
    make_volume "$volume" --grace 1s "$@"
    mount_volume "$volume" "$mnt" "${mount[@]}"
    reset_counts
    faults "$storm"
    mkdir "$mnt/load"
    kestrel-crashload run --dir "$mnt/load" --log "$WORK/$name.log" --threads 6 \
        --seed "${SEED:-1}" --seconds 4 >"$WORK/run.out" 2>&1 &
    load=$!
    check "$name: writes get through" "$TREE" write "$mnt/tree" 60 5000,90000,5000000
    check "$name: reads get through" "$TREE" check "$mnt/tree" 60 5000,90000,5000000
    if wait $load; then ok "$name: $(tail -n 1 "$WORK/run.out")"; else
        cat "$WORK/run.out"
        fail "$name: random load"
    fi
    check "$name: retries are counted" is_more "$(stat_of "$mnt" store_retries)" 5
    umount_volume "$mnt"
    # What was written went into the cache as well.
    rm -rf "$WORK/cache"
    faults "wrong-bytes:match=/kestrel-volume,count=1 $storm"
    check "$name: mounts in spite of a bad answer about the marker" mount_volume "$volume" "$mnt" \
        "${mount[@]}"
    check "$name: cold reads get through" "$TREE" check "$mnt/tree" 60 5000,90000,5000000
    check "$name: the load is as acknowledged" kestrel-crashload verify --dir "$mnt/load" \
        --log "$WORK/$name.log" --mode process
    local fault
    for fault in status reset lost-answer truncate short long wrong-bytes; do
        is_more "$(count faults $fault)" 0 >/dev/null ||
            fail "$name: no $fault happened: the test tests nothing"
    done
    no_faults
    check "$name: unmounts" umount_volume "$mnt"
    check "$name: fsck --data finds nothing" fsck_volume "$volume" --data
}

weather plain --
weather cached --cache-dir "$WORK/cache" --
export KESTREL_KEY_FILE=$WORK/key
weather coded --cache-dir "$WORK/cache" -- --compress lz4 --encrypt --key-file "$WORK/key"
summary

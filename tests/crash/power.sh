#!/usr/bin/env bash
# Power loss, for real: the volume lies on a loop-mounted XFS that is shut down in full flight (with
# and without flushing its log), so that nothing reaches the disk any more. Then it is mounted again
# and checked. Mode fsync: what is there is a prefix of what was acknowledged, up to the last sync
# at least, and up to what is older than a second (with slack). Mode commit: everything acknowledged
# is there.
#
# CYCLES (default 6, for each mode), SEED
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
needs_kestrel

cycles=${CYCLES:-6}
seed=${SEED:-$(date +%s)}
RANDOM=$((seed % 32768))
echo "seed $seed"
disk=$WORK/disk mnt=$WORK/mnt image=$WORK/image
mkdir -p "$disk" "$mnt"
# The bound is one second when the disk keeps up. On a shared machine single syncs take seconds, and
# nothing can be durable before them: what is checked is that syncs go on by themselves, not how
# fast this disk is.
within_ms=15000

keep_evidence() {
    local to=${KESTREL_EVIDENCE:-$ROOT/target/crash-evidence}/power-$seed-$1
    mkdir -p "$to"
    cp -a "$disk"/volume "$WORK"/*.log "$WORK"/*.out "$to"/ 2>/dev/null || true
    echo "evidence: $to"
}

lose_power() {
    local mode=$1 cycle=$2 promise=power bound=(--within-ms "$within_ms") shutdown=shutdown pid load
    [ "$mode" = fsync ] || { promise=commit bound=(); }
    # Every second time XFS writes its own log first: its metadata is then newer than the data.
    [ $((cycle % 2)) = 0 ] || shutdown='shutdown -f'
    mount_volume "$disk/volume" "$mnt"
    pid=$(volume_pid "$disk/volume")
    mkdir "$mnt/c$cycle"
    sync -f "$mnt"
    kestrel-crashload run --dir "$mnt/c$cycle" --log "$WORK/$cycle.log" --threads 6 \
        --seed $((seed + cycle)) --ms 60000 --disk "$disk" \
        >"$WORK/run.out" 2>&1 &
    load=$!
    load_begun "$load" "$WORK/$cycle.log"
    sleep "$(ms "$(random 300 6000)")"
    xfs_io -x -c "$shutdown" "$disk"
    # The machine is gone: nothing that runs on it may say anything any more.
    kill_mount "$disk/volume" "$mnt" "$pid"
    wait "$load" || true
    # The kernel may still be writing for threads that are ending.
    for _ in $(seq 100); do
        umount "$disk" 2>/dev/null && break
        sleep 0.1
    done
    mount -o loop "$image" "$disk"
    if ! fsck_volume "$disk/volume" --data; then
        fail "$mode, cycle $cycle: fsck, seed $seed"
        keep_evidence "$mode-$cycle"
        return
    fi
    mount_volume "$disk/volume" "$mnt"
    if kestrel-crashload verify --dir "$mnt/c$cycle" --log "$WORK/$cycle.log" --mode "$promise" \
        ${bound[@]+"${bound[@]}"} \
        >"$WORK/verify.out" 2>&1; then
        ok "$mode, cycle $cycle ($shutdown): $(tail -n 1 "$WORK/verify.out")"
    else
        cat "$WORK/verify.out"
        fail "$mode, cycle $cycle ($shutdown), seed $seed"
        keep_evidence "$mode-$cycle"
    fi
    rm -rf "$mnt/c$cycle"
    umount_volume "$mnt"
}

for mode in fsync commit; do
    truncate -s 4G "$image"
    mkfs.xfs -q -f "$image"
    mount -o loop "$image" "$disk"
    make_volume "$disk/volume" --durability "$mode" --grace 1s
    for ((cycle = 1; cycle <= cycles; cycle++)); do
        lose_power "$mode" "$cycle"
    done
    umount "$disk"
    rm -f "$image"
done
summary

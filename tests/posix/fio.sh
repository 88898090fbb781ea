#!/usr/bin/env bash
# fio with crc32c verification: random and sequential, buffered, direct and mapped, small and large
# blocks.
#
# FIO_SIZE: size of each job's file (default 48m).
set -euo pipefail
. "$(dirname "$0")/../lib.sh"

volume=$WORK/volume mnt=$WORK/mnt
size=${FIO_SIZE:-48m}
cd "$WORK" # fio keeps its notes in the working directory
make_volume "$volume"
mount_volume "$volume" "$mnt"

# job NAME OPTION…
job() {
    local name=$1
    shift
    mkdir -p "$mnt/$name"
    if timeout 300 fio --name="$name" --directory="$mnt/$name" --size="$size" --verify=crc32c \
        --verify_fatal=1 --do_verify=1 \
        --verify_backlog=256 --verify_state_save=0 --randseed=7 --group_reporting \
        --output="$WORK/fio.out" "$@" >/dev/null 2>&1; then
        ok "$name"
    else
        tail -n 30 "$WORK/fio.out" || true
        fail "$name"
    fi
    rm -rf "${mnt:?}/$name"
}

job sequential --rw=write --bs=128k --ioengine=psync --numjobs=2
job random-4k --rw=randwrite --bs=4k --ioengine=psync --size=16m --numjobs=2
job random-mixed-sizes --rw=randwrite --bsrange=512-200k --bs_unaligned=1 --ioengine=psync
job direct --rw=randwrite --bs=16k --ioengine=psync --direct=1 --size=24m
job direct-async --rw=randrw --bs=64k --ioengine=libaio --iodepth=8 --direct=1
job mapped --rw=randwrite --bs=4k --ioengine=mmap --size=16m
job synced --rw=randwrite --bs=32k --ioengine=psync --fsync=8 --size=16m
# Files of one size and all open at once: with --openfiles and --verify_backlog together fio spins,
# on any file system.
job many-small-files --rw=write --bs=4k --ioengine=psync --filesize=32k --nrfiles=384 --size=12m \
    --verify_backlog=0
close_and_check "$volume" "$mnt"
summary

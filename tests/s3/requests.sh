#!/usr/bin/env bash
# What the main operations cost in requests. Counted by the proxy, at the latency of a near store,
# so that callers meet as they do there. The bars that depend on speed are in bench/s3.py. BUSY=32
# has as many processes that only compute beside the writes of small files.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

volume=$WORK/vol mnt=$WORK/mnt
make_volume "$volume"
mount_volume "$volume" "$mnt"
faults latency:ms=20

computing=()
for ((i = 0; i < ${BUSY:-0}; i++)); do
    while :; do :; done &
    computing+=($!)
done
reset_counts
"$TREE" write "$mnt/small" 2000 100000 --threads 64
[ ${#computing[@]} = 0 ] || kill "${computing[@]}"
puts=$(($(count requests put) + $(count requests part)))
check "2,000 files of 100 kB by 64 threads: $puts PUTs" is_more 200 "$puts"
check "none of them was looked for first" is_more 20 "$(count requests head)"
remount "$volume" "$mnt"
reset_counts
"$TREE" check "$mnt/small" 2000 100000 --threads 64 >/dev/null
gets=$(count requests get)
check "2,000 cold random reads by 64 threads: $gets GETs" is_more 2100 "$gets"

# 1 GiB without a byte written: what counts is the request for the first byte.
dd if=/dev/urandom of="$mnt/large" bs=1M count=40 status=none
truncate -s 10G "$mnt/large"
remount "$volume" "$mnt"
reset_counts
head -c 1 "$mnt/large" >/dev/null
gets=$(count requests get)
check "first byte of a large file: $gets GETs waited for" is_more 4 "$gets"
reset_counts
ls -lR "$mnt" >/dev/null
du -s --apparent-size "$mnt" >/dev/null
check "listing and sizing ask the store for nothing" same \
    "$(count requests get) $(count requests head) $(count requests list)" "0 0 0"
reset_counts
for i in 1 2 3 4 5; do
    mkdir "$mnt/d$i"; echo "$i" >"$mnt/d$i/inline"; mv "$mnt/d$i/inline" "$mnt/d$i/moved"
done
check "names and small files ask the store for nothing" same "$(count requests put)" 0
no_faults
close_and_check "$volume" "$mnt"
summary

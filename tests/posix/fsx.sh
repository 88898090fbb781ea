#!/usr/bin/env bash
# fsx: random reads, writes, mappings, truncates, holes and copies of one file, every read verified.
# Several seeds and file
# sizes: within the inline limit, one packed range, several blocks. (The tool has no direct I/O;
# fio.sh and compare.sh do.)
#
# FSX_OPS: operations of a run (default 50000).
set -euo pipefail
. "$(dirname "$0")/../lib.sh"

volume=$WORK/volume mnt=$WORK/mnt
ops=${FSX_OPS:-50000}
make_volume "$volume"
mount_volume "$volume" "$mnt"

# config NAME LENGTH LARGEST ALIGN MAPPED. No operation is empty: posix_fallocate of nothing is
# EINVAL on every file system, which the tool does not expect; aligned lengths are cut down to
# nothing, so that one goes without.
config() {
    cat >"$WORK/$1.toml" <<TOML
flen = $2
[opsize]
max = $3
min = $4
align = $4
[weights]
close_open = 2
read = 10
write = 10
mapread = $5
mapwrite = $5
invalidate = 1
truncate = 3
fsync = 0.2
fdatasync = 0.2
posix_fallocate = $(($4 == 1))
punch_hole = 2
sendfile = 1
posix_fadvise = 1
copy_file_range = 2
TOML
}
config inline 4000 2000 1 10
config packed 262144 65536 1 10
config unmapped 262144 65536 1 0
config aligned 1048576 131072 4096 10
config chunked 9000000 262144 1 5

run() {
    local name=$1 seed=$2
    if fsx -f "$WORK/$name.toml" -N "$ops" -S "$seed" -P "$WORK" "$mnt/$name-$seed" \
        >"$WORK/fsx-$name-$seed.out" 2>&1; then
        ok "$name seed $seed: $ops operations"
    else
        tail -n 30 "$WORK/fsx-$name-$seed.out"
        fail "$name seed $seed: replay with fsx -N $ops -S $seed"
    fi
    rm -f "$mnt/$name-$seed"
}

for seed in 1 2; do
    for name in inline packed unmapped aligned chunked; do
        run "$name" "$seed"
    done
done
# Side by side, as one volume serves several files at once.
for seed in 11 12 13 14; do
    fsx -f "$WORK/packed.toml" -N $((ops / 2)) -S "$seed" -P "$WORK" "$mnt/p$seed" \
        >"$WORK/fsx-p$seed.out" 2>&1 &
    pids[seed]=$!
done
for seed in 11 12 13 14; do
    if wait "${pids[seed]}"; then ok "side by side, seed $seed"; else
        tail -n 30 "$WORK/fsx-p$seed.out"
        fail "side by side, seed $seed"
    fi
done
close_and_check "$volume" "$mnt"
summary

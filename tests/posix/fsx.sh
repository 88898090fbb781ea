#!/usr/bin/env bash
# fsx (crate, pinned by scripts/install-deps.sh): random reads, writes, truncates, mmap, holes and copies of one file against
# a model, at several seeds and sizes, buffered and with O_DIRECT. FSX_OPS operations each (default 50,000).
. "$(dirname "$0")/../lib.sh"

ops=${FSX_OPS:-50000}
new_volume volume --block-size 1M
mount_volume

# run NAME SEED FLEN OPSIZE EXTRA-TOML
run() {
    local name=$1 seed=$2 flen=$3 opsize=$4 extra=$5
    cat >"$WORK/$name.toml" <<TOML
flen = $flen
$extra
[opsize]
max = $opsize
min = 0
align = ${6:-1}
[weights]
close_open = 1.0
invalidate = 1.0
truncate = 1.0
fsync = 1.0
fdatasync = 1.0
read = 10.0
write = 10.0
mapread = ${7:-5.0}
mapwrite = ${7:-5.0}
punch_hole = 1.0
posix_fallocate = 1.0
sendfile = 1.0
copy_file_range = 2.0
TOML
    check "$name (seed $seed, $ops operations)" \
        timeout 900 "$TOOLS/bin/fsx" -S "$seed" -N "$ops" -P "$WORK" -f "$WORK/$name.toml" "$MNT/$name" || true
    rm -f "$MNT/$name"
}

run small 1 65536 8192 ""
run inline 2 6000 3000 ""
run medium 3 1048576 65536 ""
run large 4 8388608 262144 ""
run blocks 5 3145728 131072 "" 512
umount_volume
check fsck check_volume || true
summary

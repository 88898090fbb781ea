#!/usr/bin/env bash
# Pass-through: files that the kernel reads by itself from whole copies in the disk cache. Coherence
# on one machine (coherence.py), fsx beside a reader, a second mount that changes files, kill -9,
# damaged copies, copies from elsewhere.
#
# FSX_OPS: operations of the fsx run (default 3000).
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
needs_kestrel

volume=$WORK/volume mnt=$WORK/mnt cache=$WORK/cache
make_volume "$volume"
mount_volume "$volume" "$mnt" --cache-dir "$cache"

# why_off: why pass-through is off on a mount; nothing if it is on.
why_off() {
    "$KESTREL" status "$1" --json |
        python3 -c 'import json, sys; print(json.load(sys.stdin)["passthrough"].get("why", ""))'
}
figure() {
    "$KESTREL" stats --once --json "$1" |
        python3 -c "import json, sys; print(json.load(sys.stdin)['passthrough_$2'])"
}
# leave: unmounts. The kernel closes a copy a moment after the process that had it open has ended,
# and is busy until then.
leave() {
    local try
    for ((try = 0; try < 50; try++)); do
        umount_volume "$mnt" 2>"$WORK/umount.err" && return
        sleep 0.1
    done
    cat "$WORK/umount.err"
    return 1
}
why=$(why_off "$mnt")
case $why in
*"kernel does not offer"*)
    echo "skipped: $why"
    summary
    exit
    ;;
esac
check "pass-through is on: $why" [ -z "$why" ]

check "views of a file agree, whatever changes it" timeout 280 python3 \
    "$ROOT/tests/passthrough/coherence.py" "$KESTREL" "$mnt"

# fsx writes, maps and truncates a file that another process has open in pass-through all the time.
cat >"$WORK/fsx.toml" <<TOML
flen = 4000000
[opsize]
max = 262144
min = 1
[weights]
close_open = 2
read = 10
write = 10
mapread = 5
mapwrite = 5
invalidate = 1
truncate = 3
fsync = 0.2
punch_hole = 2
sendfile = 1
copy_file_range = 2
TOML
fsx_beside_a_reader() {
    head -c 4000000 /dev/urandom >"$mnt/fsx"
    "$KESTREL" warmup --whole "$mnt/fsx"
    exec 7<"$mnt/fsx"
    [ "$(figure "$mnt" live)" = 1 ] || return 1
    fsx -f "$WORK/fsx.toml" -N "${FSX_OPS:-3000}" -S 1 -P "$WORK" "$mnt/fsx" || return 1
    [ "$(figure "$mnt" live)" = 1 ] || return 1
    cmp /dev/fd/7 "$mnt/fsx" || return 1
    local seen
    seen=$(md5sum </dev/fd/7)
    exec 7<&-
    leave && mount_volume "$volume" "$mnt" --cache-dir "$cache" || return 1
    [ "$(md5sum <"$mnt/fsx")" = "$seen" ]
}
if command -v fsx >/dev/null; then
    check "fsx beside a pass-through reader" fsx_beside_a_reader
else
    echo "skipped: no fsx"
fi

# A process that is killed leaves good copies or none; what it had changed in step with a file is
# not found again.
killed() {
    head -c 3000000 /dev/urandom >"$mnt/killed"
    cp "$mnt/killed" "$WORK/killed"
    sync -f "$mnt"
    "$KESTREL" warmup --whole "$mnt/killed"
    exec 7<"$mnt/killed"
    exec 8<>"$mnt/killed"
    echo changed >&8
    kill_mount "$volume" "$mnt"
    exec 7<&- 8<&-
    find "$cache" -path '*/whole/*' -type f -size +2900k -print
    mount_volume "$volume" "$mnt" --cache-dir "$cache" || return 1
    [ "$(figure "$mnt" live)" = 0 ] || return 1
    local content
    content=$(head -c 8 "$mnt/killed")
    [ "$content" = changed ] || [ "$content" = "$(head -c 8 "$WORK/killed")" ] || return 1
    cmp -i 8 "$mnt/killed" "$WORK/killed"
}
check "kill -9 while a copy is in use" killed

# A copy that was damaged on disk, or belongs to something else, reaches nobody.
damaged() {
    local copy
    head -c 3000000 /dev/urandom >"$mnt/damaged"
    cp "$mnt/damaged" "$WORK/damaged"
    "$KESTREL" warmup --whole "$mnt/damaged"
    leave
    rm -rf "$WORK/elsewhere"
    cp -a "$cache" "$WORK/elsewhere"
    for copy in "$cache"/*/whole/*; do
        printf 'harm' | dd of="$copy" bs=1 seek=1500000 conv=notrunc status=none
    done
    mount_volume "$volume" "$mnt" --cache-dir "$cache" || return 1
    for _ in 1 2 3; do
        cmp "$mnt/damaged" "$WORK/damaged" || return 1
        sleep 0.3
    done
    # Copied without their labels: not copies at all.
    leave
    mount_volume "$volume" "$mnt" --cache-dir "$WORK/elsewhere" || return 1
    for _ in 1 2 3; do
        cmp "$mnt/damaged" "$WORK/damaged" || return 1
        sleep 0.3
    done
}
check "damaged copies and directories copied from elsewhere" damaged

off() {
    leave
    mount_volume "$volume" "$mnt" --cache-dir "$cache" --passthrough off || return 1
    grep -q 'passthrough off' <<<"$(why_off "$mnt")" || return 1
    leave
    mount_volume "$volume" "$mnt" || return 1
    grep -q -- '--cache-dir' <<<"$(why_off "$mnt")"
}
check "off, and why" off

# Close-to-open across mounts: a client that opens after another client's close sees its content,
# also through maps, also while somebody here has the file open in pass-through. Nobody gets EIO.
two_mounts() {
    local served=$WORK/served here=$WORK/here there=$WORK/there
    (
        SERVING=1
        # What is started here is known here only.
        trap 'umount_volume "$here"; umount_volume "$there"; stop_servers' EXIT
        make_volume "$served" || exit 1
        mount_volume "$served" "$here" --cache-dir "$WORK/cache-here" || exit 1
        mount_volume "$served" "$there" --cache-dir "$WORK/cache-there" || exit 1
        python3 - "$KESTREL" "$here" "$there" <<'PYTHON'
import mmap, os, random, subprocess, sys

kestrel, here, there = sys.argv[1:]
rng = random.Random(5)
content = rng.randbytes(3_000_000)
with open(f"{here}/file", "wb") as file:
    file.write(content)
subprocess.run([kestrel, "warmup", "--whole", f"{here}/file"], check=True)
held = os.open(f"{here}/file", os.O_RDONLY)
held_map = mmap.mmap(held, 0, mmap.MAP_SHARED, mmap.PROT_READ)
assert held_map[:] == content
for step in range(6):
    content = rng.randbytes(rng.choice([3_000_000, 2_500_000, 4_200_000]))
    if step % 2:
        with open(f"{there}/file", "r+b") as file:
            file.write(content)
            file.truncate()
    else:
        with open(f"{there}/file", "wb") as file:
            file.write(content)
    new = os.open(f"{here}/file", os.O_RDONLY)
    view = mmap.mmap(new, 0, mmap.MAP_SHARED, mmap.PROT_READ)
    assert os.fstat(new).st_size == len(content), step
    assert os.pread(new, 5_000_000, 0) == content, f"step {step}: read"
    assert view[:] == content, f"step {step}: map"
    with open(f"{here}/file", "r+b") as file:
        assert file.read() == content, f"step {step}: who may write"
        file.seek(77)
        file.write(b"from here")
    content = content[:77] + b"from here" + content[86:]
    assert os.pread(new, 5_000_000, 0) == content and view[:] == content, f"step {step}: own write"
    with open(f"{there}/file", "rb") as file:
        assert file.read() == content, f"step {step}: there"
    view.close()
    os.close(new)

# Stores through a map here and writes there, which an open finds: both stay, but for the same page.
PAGE = 4096
file = os.open(f"{here}/file", os.O_RDWR)
stores = mmap.mmap(file, 2_000_000, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
content = bytearray(content)
for step in range(5):
    stores[step * PAGE + 9] = content[step * PAGE + 9] = step
    os.pwrite(file, b"beside", (step + 1) * PAGE - 3)
    content[(step + 1) * PAGE - 3 : (step + 1) * PAGE + 3] = b"beside"
    if step % 2:
        # What is written here is in the volume, and not what is stored here.
        os.utime(f"{here}/file")
    with open(f"{there}/file", "r+b", buffering=0) as other:
        other.seek((100 + step) * PAGE + 5)
        other.write(b"there")
    content[(100 + step) * PAGE + 5 : (100 + step) * PAGE + 10] = b"there"
    with open(f"{here}/file", "rb") as new:
        assert new.read() == content, f"stores, step {step}"
    assert stores[:] == content[:2_000_000], f"stores, step {step}: map"
    os.fsync(file)
    with open(f"{there}/file", "rb") as other:
        assert other.read() == content, f"stores, step {step}: there"
stores.close()
PYTHON
        # A change of this client's own is no reason to take stores back, either.
        python3 "$ROOT/tests/passthrough/coherence.py" "$KESTREL" "$here" stores
    )
}
[ "${KESTREL_STORE:-}" = s3 ] || [ -n "$SERVING" ] ||
    check "a second mount changes what is open here" two_mounts

leave
mount_volume "$volume" "$mnt"
close_and_check "$volume" "$mnt"
summary

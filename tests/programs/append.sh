#!/usr/bin/env bash
# Several processes append to one file with O_APPEND: no line is lost, torn or overwritten. Then the
# same under locks.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"

volume=$WORK/volume mnt=$WORK/mnt
make_volume "$volume"
mount_volume "$volume" "$mnt"

append() {
    python3 - "$mnt/log" "$1" "$2" <<'PY'
import fcntl, os, sys
path, who, how = sys.argv[1:]
if how == "append":
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for n in range(3000):
        line = f"{who} {n} ".ljust(20 + n % 150, "x") + "\n"
        assert os.write(fd, line.encode()) == len(line)
else:
    # Read, change, write back: only the lock keeps it right.
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    for n in range(400):
        (fcntl.flock if how == "flock" else fcntl.lockf)(fd, fcntl.LOCK_EX)
        value = int(os.pread(fd, 20, 0) or b"0")
        os.pwrite(fd, f"{value + 1:020d}".encode(), 0)
        (fcntl.flock if how == "flock" else fcntl.lockf)(fd, fcntl.LOCK_UN)
PY
}
all_lines() {
    python3 - "$mnt/log" <<'PY'
import sys
seen = {"a": [], "b": [], "c": []}
for line in open(sys.argv[1]):
    who, n, rest = line.split(" ", 2)
    assert len(line) == 21 + int(n) % 150, f"torn: {line!r}"
    seen[who].append(int(n))
for who, numbers in seen.items():
    assert numbers == list(range(3000)), f"{who}: {len(numbers)} lines, or out of order"
PY
}
together() {
    local who pids=()
    rm -f "$mnt/log"
    for who in a b c; do
        append "$who" "$1" &
        pids+=($!)
    done
    for who in "${pids[@]}"; do wait "$who" || return 1; done
}
count_is_right() {
    [ "$(cat "$mnt/log")" = 00000000000000001200 ]
}
check "three processes append" together append
check "every line is there, whole and in order" all_lines
for how in flock lockf; do
    check "three processes count under $how" together $how
    check "the count is right" count_is_right
done
close_and_check "$volume" "$mnt"
summary

#!/usr/bin/env bash
# The boundary of a subtree token when a directory is moved across it, with real mounts and a lease
# of 300 s: the mount of the token's client has the directory as its working directory and open, is
# idle, or uses it up to the last moment, or ever deeper directories of it. When mv has returned
# nothing in it is read or made through that mount. Then single files. On one node and, with
# KESTREL_NODES, on several.
# shellcheck shell=bash disable=SC2034
set -euo pipefail
KESTREL_SERVE=1
. "$(dirname "$0")/../lib.sh"
needs_kestrel
SERVE_OPTIONS=(--lease 300s --grace 4s --access tokens)

volume=$WORK/volume
make_volume "$volume"
umask 077
"$KESTREL" token create "$volume" --name all >"$WORK/all.token"
# on NAME: mounts with that token, at $WORK/NAME.
on() {
    mkdir -p "$WORK/$1"
    "$KESTREL" mount "$(serve_url "$volume")" "$WORK/$1" --token-file "$WORK/$1.token" \
        --deadline 20s >/dev/null
}
on all
mkdir -p "$WORK/all/t/7/d/deep/er" "$WORK/all/t/8"
for name in 1 2 3 4 5 6 7 8; do echo "$name" >"$WORK/all/t/7/d/$name"; done
"$KESTREL" token create "$volume" --name tenant --subtree /t/7 >"$WORK/tenant.token"
on tenant

# `kestrel rm -r` through it: in place, as its root is not the volume's.
mkdir -p "$WORK/all/t/7/gone/deep"
touch "$WORK/all/t/7/gone/deep/"{1..200}
check "rm -r in a subtree" "$KESTREL" rm -r "$WORK/tenant/gone"
check "leaves nothing" bash -c "[ -z \"\$(find '$WORK/all' -name gone -o -name .trash)\" ]"

# Uses a directory as a client that wants to keep it, until the owner has moved it out; then nothing
# of it may be had.
cat >"$WORK/keep.py" <<'PY'
import os, subprocess, sys, time

mine, owners, way = sys.argv[1:]
os.chdir(mine + "/d")
held = {path: os.open(path, os.O_RDONLY) for path in (".", "deep", "deep/er")}


def use(count):
    """What the client gets of the directory: names of what it may do."""
    had = []
    for path, fd in held.items():
        def tried(what, call):
            try:
                call()
                had.append(f"{what} {path}")
            except OSError:
                pass
        tried("list", lambda: os.listdir(f"/proc/self/fd/{fd}"))
        tried("create", lambda: os.close(os.open(f"new-{way}-{count}", os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=fd)))
        tried("mkdir", lambda: os.mkdir(f"dir-{way}-{count}", dir_fd=fd))
        tried("read", lambda: os.close(os.open(f"new-{way}-{count}", os.O_RDONLY, dir_fd=fd)))
    for name in range(1, 9):
        try:
            with open(str(name), "rb") as file:
                file.read()
            had.append(f"read {name}")
        except OSError:
            pass
    return had


assert len(use(0)) == 20, use(0)
if way == "idle":
    time.sleep(12)
elif way == "busy":
    end = time.monotonic() + 6
    count = 1
    while time.monotonic() < end:
        assert len(use(count)) == 20
        count += 1
        time.sleep(0.2)
elif way == "deeper":
    for _ in range(6):
        fd = os.open("deep", os.O_RDONLY)
        os.stat("er", dir_fd=fd)
        os.close(fd)
        time.sleep(1)
subprocess.run(["mv", owners + "/t/7/d", owners + "/t/8/d"], check=True)
had = use("late") + use("later")
subprocess.run(["mv", owners + "/t/8/d", owners + "/t/7/d"], check=True)
assert not had, had
assert not [name for name in os.listdir(owners + "/t/7/d") if "late" in name]
PY
for way in none busy deeper idle; do
    check "a directory that is moved out is out of reach at once: $way" \
        timeout 60 python3 "$WORK/keep.py" "$WORK/tenant" "$WORK/all" "$way"
done
check "and in reach again when it is back" grep -qx 3 "$WORK/tenant/d/3"

# A file by itself: what holds its number (O_PATH) gives nothing after mv; an open descriptor reads
# on until it is closed, and nothing is opened through it.
cat >"$WORK/file.py" <<'PY'
import os, subprocess, sys, time

mine, owners = sys.argv[1:]


def stale(call):
    """Whether it fails; within a second, for the kernel keeps attributes for some ticks."""
    end = time.monotonic() + 1
    while True:
        try:
            call()
        except OSError as why:
            return why.errno == 116
        if time.monotonic() > end:
            return False
        time.sleep(0.01)


for name in "pqrstuvw":
    with open(f"{owners}/t/7/{name}", "w") as file:
        file.write(name * 100000)
    number = os.open(f"{mine}/{name}", os.O_PATH)
    opened = os.open(f"{mine}/{name}", os.O_RDONLY)
    again = lambda fd: os.close(os.open(f"/proc/self/fd/{fd}", os.O_RDONLY))
    again(number)
    subprocess.run(["mv", f"{owners}/t/7/{name}", f"{owners}/t/8/{name}"], check=True)
    assert stale(lambda: again(number)) and stale(lambda: again(opened)), name
    assert os.pread(opened, 10, 99990) == name.encode() * 10
    assert os.fstat(opened).st_size == 100000
    os.close(opened)
    assert stale(lambda: os.stat(f"/proc/self/fd/{number}")), name
    assert stale(lambda: os.listxattr(f"/proc/self/fd/{number}")), name
    subprocess.run(["mv", f"{owners}/t/8/{name}", f"{owners}/t/7/{name}"], check=True)
    os.close(number)
    with open(f"{mine}/{name}") as file:
        assert len(file.read()) == 100000
PY
check "a file that is moved out is out of reach by number, but for what is open" \
    timeout 60 python3 "$WORK/file.py" "$WORK/tenant" "$WORK/all"
: >"$WORK/all/t/7/d/empty"
dd if=/dev/urandom of="$WORK/tenant/d/big" bs=1M count=9 conv=fsync status=none
# Of several nodes as of one, a mount tells what it knows, and what its calls may see.
for what in "status tenant:^mounted" "info tenant/d/3:^layout *inline" \
    "info tenant/d/big:^layout *chunked" \
    "info tenant/d:^in the tree *[0-9]* files" "info tenant/d/empty:^layout *none"; do
    read -r verb path <<<"${what%%:*}"
    check "$verb $path without administering" sh \
        -c "'$KESTREL' $verb '$WORK/$path' | grep '${what#*:}'"
done
check "unmounts the tenant" umount_volume "$WORK/tenant"
check "unmounts" umount_volume "$WORK/all"
stop_server "$volume"
summary

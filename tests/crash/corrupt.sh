#!/usr/bin/env bash
# Damage below the mount: flipped bytes in stored objects, in the log, in the sorted runs, in the
# descriptor; truncated and deleted objects. Every damaged file gives EIO or a clear refusal that
# names a file; every other file reads as written; nothing that was not written is ever returned.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"

volume=$WORK/volume mnt=$WORK/mnt
mkdir -p "$mnt"
python3 - "$WORK" <<'PY'
import os, random, sys
random.seed(7)
os.makedirs(f"{sys.argv[1]}/source")
for i, size in enumerate([100, 5_000, 70_000, 300_000, 6_000_000] * 4):
    with open(f"{sys.argv[1]}/source/file{i}", "wb") as file:
        file.write(random.randbytes(size))
PY

fill() {
    rm -rf "$volume"
    "$KESTREL" format "$volume" >/dev/null
    "$KESTREL" mount "$volume" "$mnt" >/dev/null
    cp "$WORK"/source/* "$mnt"/
    "$KESTREL" umount "$mnt"
}

# damage WHAT PATTERN: changes every stored file with a path that matches, in the way WHAT says.
damage() {
    python3 - "$volume" "$1" "$2" <<'PY'
import os, random, re, sys
random.seed(11)
volume, what, pattern = sys.argv[1:]
hit = 0
for root, _, names in os.walk(volume):
    for name in names:
        path = os.path.join(root, name)
        if not re.search(pattern, os.path.relpath(path, volume)) or os.path.getsize(path) == 0:
            continue
        hit += 1
        size = os.path.getsize(path)
        if what == "flip":
            with open(path, "r+b") as file:
                for _ in range(max(1, size // 200_000)):
                    at = random.randrange(size)
                    file.seek(at)
                    byte = file.read(1)
                    file.seek(at)
                    file.write(bytes([byte[0] ^ (1 << random.randrange(8))]))
        elif what == "shorten":
            os.truncate(path, size // 2)
        elif what == "delete":
            os.unlink(path)
sys.exit(0 if hit else f"nothing matches {pattern}")
PY
}

# Reads everything back: each file is either exactly as written or refuses with EIO, at least one of
# either where WANT says.
compare() {
    python3 - "$WORK/source" "$mnt" "$1" <<'PY'
import errno, os, sys
source, mnt, want = sys.argv[1:]
good = bad = 0
for name in sorted(os.listdir(source)):
    wanted = open(f"{source}/{name}", "rb").read()
    try:
        found = open(f"{mnt}/{name}", "rb").read()
    except OSError as error:
        if error.errno != errno.EIO:
            sys.exit(f"{name}: {error}, wanted EIO")
        bad += 1
        continue
    if found != wanted:
        sys.exit(f"{name}: wrong bytes reached the reader")
    good += 1
if want == "some-bad" and (good == 0 or bad == 0):
    sys.exit(f"{good} good, {bad} refused: wanted some of each")
if want == "all-bad-but-inline" and bad == 0:
    sys.exit("nothing was refused")
print(f"{good} good, {bad} refused with EIO")
PY
}

for what in flip shorten delete; do
    fill
    damage "$what" '^objects/.*[0-9a-f]$'
    "$KESTREL" mount "$volume" "$mnt" >/dev/null
    if compare all-bad-but-inline && echo new >"$mnt/new" && [ "$(cat "$mnt/new")" = new ]; then
        ok "objects: $what"
    else
        fail "objects: $what"
    fi
    "$KESTREL" umount "$mnt"
    if "$KESTREL" fsck --data "$volume" >"$WORK/fsck.out" 2>&1; then
        fail "fsck --data finds nothing after: $what"
    elif grep -q 'file[0-9]' "$WORK/fsck.out"; then
        ok "fsck --data names the files after: $what"
    else
        tail -20 "$WORK/fsck.out"
        fail "fsck --data names no file after: $what"
    fi
done

# Metadata: opening refuses and names a file, or works and everything is right; never a wrong
# answer.
for pattern in '^kestrel.json$' '^meta/log/' '^meta/runs/'; do
    for what in flip shorten; do
        fill
        damage "$what" "$pattern" || continue
        if "$KESTREL" mount "$volume" "$mnt" >"$WORK/mount.out" 2>&1; then
            if compare any; then
                ok "metadata $pattern: $what: served, nothing wrong"
            else
                fail "metadata $pattern: $what"
            fi
            "$KESTREL" umount "$mnt"
        elif grep -q "$volume" "$WORK/mount.out"; then
            ok "metadata $pattern: $what: refused: $(tail -n 1 "$WORK/mount.out" | cut -c1-160)"
        else
            cat "$WORK/mount.out"
            fail "metadata $pattern: $what: refused without naming a file"
        fi
    done
done

fill
# A newer program writes both copies.
sed -i 's/"format_version": 1/"format_version": 9/' "$volume/kestrel.json" \
    "$volume/kestrel.json.copy"
if "$KESTREL" mount "$volume" "$mnt" >"$WORK/mount.out" 2>&1; then
    fail "a newer format was mounted"
elif grep -qi newer "$WORK/mount.out"; then
    ok "a newer format is refused"
else
    fail "a newer format is refused without saying why"
fi

fill
"$KESTREL" mount "$volume" "$mnt" >/dev/null
mkdir "$WORK/second"
if "$KESTREL" mount "$volume" "$WORK/second" >"$WORK/mount.out" 2>&1; then
    fail "a volume was opened twice"
elif grep -q 'in use by' "$WORK/mount.out"; then
    ok "a volume cannot be opened twice"
else
    cat "$WORK/mount.out"
    fail "opening twice is refused without naming the holder"
fi
"$KESTREL" umount "$mnt"
summary

#!/usr/bin/env bash
# tar: a tree with everything tar can carry, unpacked on the mount, compared, packed again,
# compared.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"

volume=$WORK/volume mnt=$WORK/mnt
make_volume "$volume"
mount_volume "$volume" "$mnt"

python3 - "$WORK/source" <<'PY'
import os, random, sys
random.seed(3)
root = sys.argv[1]
os.mkdir(root)
paths = []
for d in range(40):
    os.makedirs(f"{root}/d{d % 8}/e{d}")
    for f in range(40):
        path = f"{root}/d{d % 8}/e{d}/file {f}"
        with open(path, "wb") as file:
            file.write(random.randbytes(random.choice([0, 1, 100, 4096, 5000, 70_000])))
        os.chmod(path, random.choice([0o644, 0o600, 0o755, 0o4755, 0o444]))
        os.utime(path, ns=(10**18 + f, 10**18 + d * 12345 + f))
        paths.append(path)
for i, path in enumerate(random.sample(paths, 100)):
    os.link(path, f"{root}/hard{i}")
    os.symlink(os.path.relpath(path, root), f"{root}/soft{i}")
    os.setxattr(path, "user.note", f"note {i}".encode())
for i, path in enumerate(random.sample(paths, 50)):
    os.chown(path, 1000 + i, 2000 + i)
os.mkfifo(f"{root}/pipe")
with open(f"{root}/sparse", "wb") as file:
    file.seek(30 << 20)
    file.write(b"end")
PY

unpack() {
    tar -C "$WORK" --xattrs -S -cf - source | tar -C "$mnt" --xattrs -S -xpf -
}
same_as_tar() {
    tar -C "$WORK" --xattrs -S -cf "$WORK/a.tar" source
    tar -C "$mnt" --xattrs --compare -f "$WORK/a.tar"
}
repack() {
    # Sorted and without what no two file systems share: the archives are equal byte by byte.
    local options=(--sort=name --format=posix --xattrs --pax-option='delete=atime,delete=ctime' -cf)
    touch -d @1000000000 "$WORK/source" "$mnt/source"
    find "$WORK/source" "$mnt/source" -type d -exec touch -d @1000000000 {} +
    tar -C "$WORK" "${options[@]}" "$WORK/one.tar" source
    tar -C "$mnt" "${options[@]}" "$WORK/two.tar" source
    cmp "$WORK/one.tar" "$WORK/two.tar"
}
check "unpack" unpack
check "tar --compare" same_as_tar
check "packs to the same archive" repack
check "copy within the mount" cp -a --reflink=auto "$mnt/source" "$mnt/copy"
check "the copy is equal" diff -r --no-dereference --exclude=pipe "$mnt/source" "$mnt/copy"
check "remove both" rm -rf "$mnt/source" "$mnt/copy"
close_and_check "$volume" "$mnt"
summary

#!/usr/bin/env python3
"""Trees for tests/versions/publish.sh.

    publish.py make DIR OUTSIDE   a tree with files of all kinds; OUTSIDE gets a name of one of them
    publish.py churn DIR          changes all of it heavily
    publish.py list DIR [live]    a listing of every name, attribute and byte, as JSON lines.
                                  `live`: link counts are those that a version of the tree has
    publish.py same A B           fails if two listings differ, and tells where
    publish.py sums DIR           the names and bytes of all regular files, as one hash
    publish.py read-only DIR      fails unless every change in it is refused with EROFS
    publish.py damage FILE AT     inverts a bit of the byte at AT; cut FILE SIZE, newer FILE
    publish.py many DIR COUNT     a directory tree of so many small files
"""

import errno
import hashlib
import json
import os
import random
import stat
import subprocess
import sys
from collections import Counter

SPECIAL = "special"


def write(path, data, mode=0o644):
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(fd, "wb") as file:
        file.write(data)


def make(d, outside):
    rng = random.Random(7)
    d = os.fsencode(d)
    at = lambda *parts: b"/".join([d, *[os.fsencode(part) for part in parts]])
    for n in range(12):
        os.makedirs(at("many", f"d{n}", "below"))
        for m in range(40):
            write(at("many", f"d{n}", f"f{m}"), b"%d of %d\n" % (m, n) * rng.randrange(1, 60))
        write(at("many", f"d{n}", "below", "f"), rng.randbytes(rng.randrange(9000)))
    os.mkdir(at("names"))
    for n in range(1500):
        write(at("names", f"name number {n:06}"), b"%d" % n)
    # Names of odd bytes.
    os.mkdir(at("odd"))
    odd = [b" ", b"a b", b"line\nbreak", b"\xff\xfe\x80", b"n" * 255, b"-rf", b"'\"$`",
           b"back\\", "äöü€".encode(), b"\x01\x7f", b"...", b".hidden", b"a@b", b"tab\t",
           b"n" * 254 + b"\xff"]
    for name in odd:
        write(at("odd") + b"/" + name, name)
    os.mkdir(at("odd") + b"/\xfe dir\n")
    write(at("odd") + b"/\xfe dir\n/\xfd", b"below")
    # Hard links.
    os.makedirs(at("links", "deep", "er"))
    write(at("links", "one"), b"three names")
    os.link(at("links", "one"), at("links", "two"))
    os.link(at("links", "one"), at("links", "deep", "er", "three"))
    write(at("links", "big"), rng.randbytes(300_000))
    os.link(at("links", "big"), at("many", "big"))
    write(at("links", "out"), b"a name outside")
    os.link(at("links", "out"), outside)
    os.setxattr(at("links", "one"), "user.of-a-link", b"yes")
    # Symbolic links.
    os.mkdir(at("symlinks"))
    for n, to in enumerate([b"../links/one", b"/absent", b"x" * 4000, b"\xff\n ", b".."]):
        os.symlink(to, at("symlinks", f"s{n}"))
    # What diff(1) cannot compare.
    os.mkdir(at(SPECIAL))
    os.mkfifo(at(SPECIAL, "fifo"), 0o640)
    os.mknod(at(SPECIAL, "socket"), stat.S_IFSOCK | 0o600)
    os.mknod(at(SPECIAL, "char"), stat.S_IFCHR | 0o666, os.makedev(1, 3))
    os.mknod(at(SPECIAL, "block"), stat.S_IFBLK | 0o660, os.makedev(259, 70000))
    with open(at(SPECIAL, "huge"), "wb") as file:
        for offset in (0, 5 << 20, (3 << 30) + 12345, (1 << 40) - 4096):
            file.seek(offset)
            file.write(rng.randbytes(10000))
        file.truncate(2 << 40)
    # Sizes and holes.
    os.mkdir(at("sizes"))
    for size in (0, 1, 511, 4095, 4096, 4097, 5000, 65536, 4 << 20, 10_000_000):
        write(at("sizes", str(size)), rng.randbytes(size))
    with open(at("sizes", "sparse"), "wb") as file:
        for offset in (65536, 9_000_000, 130 << 20):
            file.seek(offset)
            file.write(rng.randbytes(70_000))
        file.truncate(200 << 20)
    with open(at("sizes", "hole"), "wb") as file:
        file.truncate(50 << 20)
    with open(at("sizes", "pieces"), "w+b") as file:
        file.write(rng.randbytes(3_000_000))
        for _ in range(200):
            file.seek(rng.randrange(3_000_000))
            file.write(rng.randbytes(rng.randrange(1, 20_000)))
            file.flush()
    with open(at("sizes", "shrunk"), "w+b") as file:
        file.write(rng.randbytes(1_000_000))
        file.truncate(700_001)
        file.truncate(900_000)
    punch = ["fallocate", "-p", "-o", "1000000", "-l", "500000"]
    subprocess.check_call([*punch, at("sizes", "pieces")])
    # Attributes.
    os.mkdir(at("attributes"))
    for mode in (0, 0o400, 0o755, 0o1777, 0o2755, 0o4711, 0o6777):
        write(at("attributes", f"m{mode:o}"), b"%o" % mode)
        os.mkdir(at("attributes", f"d{mode:o}"))
        for kind in "md":
            os.chown(at("attributes", f"{kind}{mode:o}"), 1000, 1001)
            os.chmod(at("attributes", f"{kind}{mode:o}"), mode)
    write(at("attributes", "owner"), b"")
    os.chown(at("attributes", "owner"), 2**32 - 2, 2**31 + 5)
    write(at("attributes", "xattrs"), b"x")
    for name, value in {"user.empty": b"", "user.one": b"1", "user.binary": bytes(range(256)),
                        "user.large": rng.randbytes(4000), "trusted.t": b"only root",
                        "user." + "n" * 240: b"long name"}.items():
        os.setxattr(at("attributes", "xattrs"), name, value)
    for n in range(60):
        os.setxattr(at("attributes"), f"user.number-{n}", b"%d" % n)
    os.setxattr(at("symlinks", "s0"), "trusted.link", b"of a link", follow_symlinks=False)
    os.setxattr(d, "user.root", b"of the tree itself")
    write(at("attributes", "acl"), b"acl")
    os.mkdir(at("attributes", "acls"))
    acls = "u:1234:rwx,g:4321:r-x,u:root:---,m::rwx"
    for name in ("acl", "acls"):
        subprocess.check_call(["setfacl", "-m", acls, at("attributes", name)])
    subprocess.check_call(["setfacl", "-d", "-m", acls, at("attributes", "acls")])
    write(at("attributes", "acls", "inherits"), b"")
    # An empty directory, and a deep path.
    os.mkdir(at("empty"))
    deep = at("deep")
    for n in range(70):
        deep += b"/level number %02d of it" % n
    os.makedirs(deep)
    write(deep + b"/bottom", b"the bottom")
    times = [("1", 1), ("511", 1_234_567_890_123_456_789), ("5000", 4_102_444_800_000_000_001),
             ("4096", -1_000_000_001), ("0", 0)]
    for name, time in times:
        os.utime(at("sizes", name), ns=(time + 5, time))
    os.utime(at("symlinks", "s1"), ns=(7, 77_000_000_007), follow_symlinks=False)
    os.utime(at("empty"), ns=(123_456_789, 1_000_000_000_987_654_321))
    os.chmod(d, 0o751)
    os.chown(d, 1000, 1000)


def churn(d):
    rng = random.Random(8)
    d = os.fsencode(d)
    for n in range(12):
        for m in range(40):
            path = d + b"/many/d%d/f%d" % (n, m)
            what = (n + m) % 5
            if what == 0:
                os.unlink(path)
            elif what == 1:
                os.truncate(path, 0)
            elif what == 2:
                os.rename(path, path + b" renamed")
            elif what == 3:
                with open(path, "wb") as file:
                    file.write(b"other")
            else:
                os.setxattr(path, "user.new", b"new")
                os.chmod(path, 0o600)
    for n in range(0, 1500, 3):
        os.unlink(d + b"/names/name number %06d" % n)
    for name in (b"5000", b"10000000", b"pieces", b"sparse", b"4194304"):
        with open(d + b"/sizes/" + name, "r+b") as file:
            size = os.fstat(file.fileno()).st_size
            for offset in range(0, size, 700_000):
                file.seek(offset)
                file.write(rng.randbytes(5000))
    os.truncate(d + b"/links/big", 17)
    os.unlink(d + b"/links/one")
    with open(d + b"/links/two", "ab") as file:
        file.write(b" more")
    with open(d + b"/special/huge", "r+b") as file:
        file.write(bytes(10000))
        file.truncate(1 << 30)
    os.removexattr(d + b"/attributes/xattrs", "user.one")
    os.setxattr(d + b"/attributes/xattrs", "user.large", b"small")
    subprocess.check_call(["setfacl", "-b", d + b"/attributes/acl"])
    os.rename(d + b"/deep", d + b"/empty/deep")
    os.unlink(d + b"/symlinks/s1")
    os.symlink("other", d + b"/symlinks/s1")


def segments(path, size):
    """Where the data of a file is, and hashes of it."""
    found = []
    with open(path, "rb") as file:
        fd, at = file.fileno(), 0
        while at < size:
            try:
                at = os.lseek(fd, at, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    break
                raise
            end = os.lseek(fd, at, os.SEEK_HOLE)
            digest, left = hashlib.sha256(), end - at
            os.lseek(fd, at, os.SEEK_SET)
            while left:
                piece = os.read(fd, min(left, 1 << 20))
                assert piece, (path, at, end)
                digest.update(piece)
                left -= len(piece)
            found.append([at, end, digest.hexdigest()])
            at = end
    return found


def listing(d, live):
    d = os.fsencode(d)
    paths = [b""]
    for parent, dirs, names in os.walk(d):
        for name in dirs + names:
            paths.append(os.path.join(parent, name)[len(d) + 1:])
    seen = {path: os.lstat(os.path.join(d, path) if path else d) for path in paths}
    names = Counter(one.st_ino for one in seen.values())
    first = {}
    for path in sorted(seen):
        one, full = seen[path], os.path.join(d, path) if path else d
        is_dir = stat.S_ISDIR(one.st_mode)
        nlink = names[one.st_ino] if live and not is_dir else one.st_nlink
        row = {
            "path": os.fsdecode(path), "mode": oct(one.st_mode), "uid": one.st_uid,
            "gid": one.st_gid, "size": one.st_size, "blocks": one.st_blocks, "nlink": nlink,
            "atime": one.st_atime_ns, "mtime": one.st_mtime_ns, "ctime": one.st_ctime_ns,
            "rdev": one.st_rdev, "first": first.setdefault(one.st_ino, os.fsdecode(path)),
            # The directory itself becomes the root of the version.
            "ino": one.st_ino if path else 0,
            "xattrs": {name: os.getxattr(full, name, follow_symlinks=False).hex()
                       for name in sorted(os.listxattr(full, follow_symlinks=False))},
        }
        if stat.S_ISLNK(one.st_mode):
            row["to"] = os.fsdecode(os.readlink(full))
        if stat.S_ISREG(one.st_mode):
            row["data"] = segments(full, one.st_size)
        print(json.dumps(row))


def show_acls(d):
    done = subprocess.run(["getfacl", "-R", "-P", "-n", "-s", "."], cwd=d, stdout=subprocess.PIPE)
    print(json.dumps({"path": "getfacl", "acls": hashlib.sha256(done.stdout).hexdigest(),
                      "lines": done.stdout.count(b"\n")}))


def same(one, other):
    rows = []
    for path in (one, other):
        with open(path) as file:
            rows.append({row["path"]: row for row in map(json.loads, file)})
    different = 0
    for path in sorted(rows[0].keys() | rows[1].keys()):
        left, right = rows[0].get(path), rows[1].get(path)
        if left == right:
            continue
        different += 1
        if different > 20:
            continue
        if left is None or right is None:
            print(repr(path), "is only in the", "second" if left is None else "first")
            continue
        fields = [field for field in left if left[field] != right.get(field)]
        for field in fields or ["data", "to"]:
            print(repr(path), field, str(left.get(field))[:200], str(right.get(field))[:200])
    assert not different and len(rows[0]) > 1, f"{different} of {len(rows[0])} differ"


def sums(d):
    digest = hashlib.sha256()
    for parent, dirs, names in os.walk(os.fsencode(d)):
        dirs.sort()
        for name in sorted(names):
            path = os.path.join(parent, name)
            one = os.lstat(path)
            # Not those with nothing but holes behind some bytes.
            if not stat.S_ISREG(one.st_mode) or one.st_size > 1 << 30:
                continue
            with open(path, "rb") as file:
                digest.update(os.path.relpath(parent, os.fsencode(d)) + b"/" + name + b"\0")
                digest.update(hashlib.sha256(file.read()).digest())
    print(digest.hexdigest())


def read_only(d):
    file, sub = f"{d}/sizes/5000", f"{d}/empty"
    tries = {
        "create": lambda: os.open(f"{d}/new", os.O_CREAT | os.O_WRONLY),
        "open to write": lambda: os.open(file, os.O_WRONLY),
        "open to append": lambda: os.open(file, os.O_RDWR | os.O_APPEND),
        "truncate": lambda: os.truncate(file, 0),
        "unlink": lambda: os.unlink(file),
        "rename": lambda: os.rename(file, f"{d}/new"),
        "link": lambda: os.link(file, f"{d}/new"),
        "symlink": lambda: os.symlink("x", f"{d}/new"),
        "mkdir": lambda: os.mkdir(f"{d}/new"),
        "mkfifo": lambda: os.mkfifo(f"{d}/new"),
        "rmdir": lambda: os.rmdir(sub),
        "chmod": lambda: os.chmod(file, 0o777),
        "chown": lambda: os.chown(file, 1, 1),
        "utime": lambda: os.utime(file),
        "setxattr": lambda: os.setxattr(file, "user.new", b"x"),
        "removexattr": lambda: os.removexattr(f"{d}/attributes/xattrs", "user.one"),
        "chmod of the root": lambda: os.chmod(d, 0o777),
    }
    wrong = []
    for what, call in tries.items():
        try:
            call()
            wrong.append(f"{what}: succeeded")
        except OSError as error:
            if error.errno != errno.EROFS:
                wrong.append(f"{what}: {errno.errorcode[error.errno]}")
    try:
        os.mkdir(f"{d}/.snap/new")
        wrong.append("a snapshot in it was made")
    except OSError:
        pass
    assert not wrong, wrong


def damage(path, at):
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)
        assert byte, f"{path} is shorter than {at}"
        file.seek(at)
        file.write(bytes([byte[0] ^ 0x10]))


def newer(path):
    with open(path, "rb") as file:
        text = file.read()
    assert text.count(b'"format":1') == 1
    with open(path, "wb") as file:
        file.write(text.replace(b'"format":1', b'"format":9'))


def many(d, count):
    for n in range(count):
        if n % 200 == 0:
            os.makedirs(f"{d}/d{n}")
        write(f"{d}/d{n - n % 200}/file number {n}", b"%d" % n * 20)


if __name__ == "__main__":
    act, arguments = sys.argv[1], sys.argv[2:]
    if act == "make":
        make(*arguments)
    elif act == "churn":
        churn(*arguments)
    elif act == "list":
        listing(arguments[0], arguments[1:] == ["live"])
        show_acls(arguments[0])
    elif act == "same":
        same(*arguments)
    elif act == "sums":
        sums(*arguments)
    elif act == "read-only":
        read_only(*arguments)
    elif act == "damage":
        damage(arguments[0], int(arguments[1]))
    elif act == "cut":
        os.truncate(arguments[0], int(arguments[1]))
    elif act == "newer":
        newer(*arguments)
    elif act == "many":
        many(arguments[0], int(arguments[1]))
    else:
        sys.exit(__doc__)

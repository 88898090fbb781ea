#!/usr/bin/env python3
"""POSIX ACLs on a mount.

    acls.py compare DIR REFERENCE [--ops N] [--seed N]
    acls.py rules DIR [OTHER]
    acls.py passed DIR

`compare` makes the same random calls in two directories on different file systems and compares what
each call returns, the errno included: ACLs set, read and removed, valid and not, chmod, chown,
files and directories made under umasks, and what users with various groups may do. `rules` checks
what is said of ACLs one by one; OTHER is the same directory through another mount. `passed` sets
ACLs, as their owner, of the directories in DIR, which the mount knows only from walks to the file x
in each. Run as root.
"""

import argparse
import errno
import os
import random
import shutil
import stat
import struct
import sys
import traceback

ACCESS, DEFAULT = "system.posix_acl_access", "system.posix_acl_default"
USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER = 1, 2, 4, 8, 16, 32
NO_ID = 0xFFFFFFFF
# User, group and supplementary groups of callers.
CALLERS = [
    (0, 0, []),
    (0, 0, []),
    (1001, 1001, []),
    (1002, 1002, [2001]),
    (1003, 2001, [2002]),
    (1001, 2002, [2001]),
]
UIDS, GIDS = [0, 1001, 1002, 1003], [0, 1001, 2001, 2002]


def value(*entries):
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def acl(user, group, other, mask=None, users=(), groups=()):
    entries = [(USER_OBJ, user, NO_ID)]
    entries += [(USER, perm, uid) for uid, perm in users]
    entries.append((GROUP_OBJ, group, NO_ID))
    entries += [(GROUP, perm, gid) for gid, perm in groups]
    if mask is not None:
        entries.append((MASK, mask, NO_ID))
    return value(*entries, (OTHER, other, NO_ID))


def as_user(caller, function):
    """What a function returns to a caller: a string."""
    if caller == (0, 0, []):
        return function()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        uid, gid, groups = caller
        os.setgroups(groups)
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        os.write(write, function().encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        told = file.read()
    assert os.waitpid(child, 0)[1] == 0
    return told


def result(call, *arguments):
    try:
        return repr(call(*arguments))
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error.errno))


def under_umask(mask, call, *arguments):
    old = os.umask(mask)
    try:
        return result(call, *arguments)
    finally:
        os.umask(old)


def make_file(path, mode):
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, mode))


def open_as(path, flags):
    os.close(os.open(path, flags))


def remove_directory(path):
    """Of two reasons to refuse, file systems give different ones: this looks at the type first."""
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "not a directory", path)
    os.rmdir(path)


def remove_file(path):
    """The same of anything else."""
    if stat.S_ISDIR(os.lstat(path).st_mode):
        raise IsADirectoryError(errno.EISDIR, "a directory", path)
    os.unlink(path)


def show(path):
    """Mode, owner and ACLs of a file or directory."""
    try:
        found = os.lstat(path)
    except OSError as error:
        return errno.errorcode[error.errno]
    shown = (
        f"{stat.S_IFMT(found.st_mode):o} {found.st_mode & 0o7777:04o} {found.st_uid} {found.st_gid}"
    )
    # XFS shows to root where it keeps ACLs.
    own = lambda name: not name.startswith("trusted.SGI_")
    names = result(lambda: sorted(filter(own, os.listxattr(path, follow_symlinks=False))))
    acls = [
        result(lambda name=name: os.getxattr(path, name, follow_symlinks=False).hex())
        for name in (ACCESS, DEFAULT)
    ]
    return f"{shown} {names} {acls}"


class Calls:
    """Random calls on names in a tree of three levels, the same for every directory."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def path(self):
        depth = self.random.choice([1, 1, 2, 2, 2, 3])
        return "/".join(self.random.choice("abc") for _ in range(depth))

    def perm(self):
        return self.random.choice([0, 1, 2, 3, 4, 5, 5, 6, 7, 7, 7])

    def acl(self):
        pick = self.random
        named = lambda ids: [
            (pick.choice(ids), self.perm()) for _ in range(pick.choice([0, 0, 1, 1, 2, 3]))
        ]
        users, groups = named(UIDS), named(GIDS)
        mask = self.perm() if users or groups or pick.random() < 0.3 else None
        made = acl(self.perm(), self.perm(), self.perm(), mask, users, groups)
        if pick.random() < 0.15:
            made = self.damaged(made)
        return made

    def damaged(self, made):
        pick = self.random
        way = pick.randrange(6)
        if way == 0:
            return made[: pick.randrange(len(made))]
        if way == 1:
            return made + bytes(pick.randrange(12))
        if way == 2:
            at = pick.randrange(len(made))
            return made[:at] + bytes([made[at] ^ 1 << pick.randrange(8)]) + made[at + 1 :]
        if way == 3:
            entries = [made[at : at + 8] for at in range(4, len(made), 8)]
            pick.shuffle(entries)
            return made[:4] + b"".join(entries)
        if way == 4:
            return value(
                (USER_OBJ, 7, NO_ID),
                (USER, 7, NO_ID),
                (GROUP_OBJ, 7, NO_ID),
                (MASK, 7, NO_ID),
                (OTHER, 7, NO_ID),
            )
        return value()

    def call(self):
        """A call as text, its caller, and a function of a directory that makes it."""
        pick = self.random
        path, caller, mode = (
            self.path(),
            pick.choice(CALLERS),
            pick.choice([0o777, 0o666, 0o640, 0o2775, 0o700, 0o1777]),
        )
        mask = pick.choice([0, 0o022, 0o077, 0o027, 0o777])
        name, made = pick.choice([ACCESS, DEFAULT]), self.acl()
        uid, gid = pick.choice(UIDS), pick.choice(GIDS)
        kind = pick.choices(
            [
                "set",
                "remove",
                "show",
                "chmod",
                "chown",
                "mkdir",
                "create",
                "mknod",
                "read",
                "write",
                "list",
                "access",
                "unlink",
                "rmdir",
                "symlink",
            ],
            [8, 2, 2, 3, 2, 6, 6, 1, 4, 3, 3, 3, 1, 1, 1],
        )[0]
        how = pick.choice([os.R_OK, os.W_OK, os.X_OK, 7])
        calls = {
            "set": lambda d: result(os.setxattr, f"{d}/{path}", name, made),
            "remove": lambda d: result(os.removexattr, f"{d}/{path}", name),
            "show": lambda d: show(f"{d}/{path}"),
            "chmod": lambda d: result(os.chmod, f"{d}/{path}", mode),
            "chown": lambda d: result(os.chown, f"{d}/{path}", uid, gid),
            "mkdir": lambda d: under_umask(mask, os.mkdir, f"{d}/{path}", mode & 0o1777),
            "create": lambda d: under_umask(mask, make_file, f"{d}/{path}", mode & 0o777),
            "mknod": lambda d: under_umask(
                mask, os.mknod, f"{d}/{path}", stat.S_IFIFO | mode & 0o777
            ),
            "read": lambda d: result(open_as, f"{d}/{path}", os.O_RDONLY | os.O_NONBLOCK),
            "write": lambda d: result(open_as, f"{d}/{path}", os.O_RDWR | os.O_NONBLOCK),
            "list": lambda d: result(lambda: sorted(os.listdir(f"{d}/{path}"))),
            "access": lambda d: result(lambda: os.access(f"{d}/{path}", how, effective_ids=True)),
            "unlink": lambda d: result(remove_file, f"{d}/{path}"),
            "rmdir": lambda d: result(remove_directory, f"{d}/{path}"),
            "symlink": lambda d: result(os.symlink, "a", f"{d}/{path}"),
        }
        text = f"{kind} {path} as {caller} mode {mode:o} umask {mask:o} {name} {made.hex()}"
        text += f" {uid}:{gid} {how}"
        return text, path, lambda d: as_user(caller, lambda: calls[kind](d))


def compare(one, other, ops, seed):
    calls, trace = Calls(seed), []
    for place in (one, other):
        os.chmod(place, 0o777)
    for number in range(ops):
        text, path, call = calls.call()
        trace.append(text)
        got = [(call(place), show(f"{place}/{path}")) for place in (one, other)]
        if got[0] != got[1]:
            print("\n".join(trace[-12:]))
            print(f"call {number} of seed {seed}: {one}: {got[0]}\n{other}: {got[1]}")
            return False
    whole = [
        sorted(
            (os.path.relpath(f"{at}/{name}", place), show(f"{at}/{name}"))
            for at, dirs, files in os.walk(place)
            for name in dirs + files
        )
        for place in (one, other)
    ]
    if whole[0] != whole[1]:
        print("the trees differ in the end")
        return False
    return True


RULES = []


def rule(function):
    RULES.append(function)
    return function


def expect(wanted, caller, call, *arguments):
    got = as_user(caller, lambda: result(call, *arguments))
    assert got == wanted, f"{got}, wanted {wanted}"


ALICE, BOB, CAROL = (1001, 1001, []), (1002, 1002, [2001]), (1003, 1003, [])


@rule
def named_users_and_groups(d, other):
    """Entries of users and groups count, below the mask, here and at the other mount."""
    make_file(f"{d}/f", 0o600)
    os.setxattr(f"{d}/f", ACCESS, acl(6, 0, 0, 4, users=[(1001, 6)], groups=[(2001, 4)]))
    assert stat.S_IMODE(os.stat(f"{d}/f").st_mode) == 0o640
    for place in (d, other):
        expect("None", ALICE, open_as, f"{place}/f", os.O_RDONLY)
        expect("EACCES", ALICE, open_as, f"{place}/f", os.O_RDWR)
        expect("None", BOB, open_as, f"{place}/f", os.O_RDONLY)
        expect("EACCES", CAROL, open_as, f"{place}/f", os.O_RDONLY)
    os.chmod(f"{d}/f", 0o660)
    for place in (d, other):
        expect("None", ALICE, open_as, f"{place}/f", os.O_RDWR)
        expect("EACCES", BOB, open_as, f"{place}/f", os.O_RDWR)
    os.removexattr(f"{d}/f", ACCESS)
    assert stat.S_IMODE(os.stat(f"{other}/f").st_mode) == 0o660
    expect("EACCES", ALICE, open_as, f"{other}/f", os.O_RDONLY)
    expect("ENODATA", ALICE, os.getxattr, f"{other}/f", ACCESS)


@rule
def directories_on_a_path(d, other):
    """The ACL of a directory decides which users pass through it, at once at both mounts."""
    os.makedirs(f"{d}/x/y/z")
    make_file(f"{d}/x/y/z/f", 0o644)
    for place in (d, other, d, other):
        assert as_user(ALICE, lambda: result(lambda: os.stat(f"{place}/x/y/z/f").st_size)) == "0"
    for at in ("x", "x/y"):
        os.setxattr(f"{d}/{at}", ACCESS, acl(7, 5, 5, 5, users=[(1001, 0)]))
        for place in (d, other):
            expect("EACCES", ALICE, open_as, f"{place}/x/y/z/f", os.O_RDONLY)
            expect("None", BOB, open_as, f"{place}/x/y/z/f", os.O_RDONLY)
        os.removexattr(f"{other}/{at}", ACCESS)
        for place in (d, other):
            expect("None", ALICE, open_as, f"{place}/x/y/z/f", os.O_RDONLY)
    os.chmod(f"{d}/x", 0o700)
    expect("EACCES", ALICE, os.stat, f"{other}/x/y")
    os.setxattr(f"{d}/x", ACCESS, acl(7, 0, 0, 1, users=[(1001, 1)]))
    expect("None", ALICE, open_as, f"{other}/x/y/z/f", os.O_RDONLY)
    expect("EACCES", ALICE, os.listdir, f"{other}/x")
    expect("EACCES", CAROL, os.stat, f"{other}/x/y")


@rule
def inheritance(d, other):
    """A default ACL takes the place of the umask and goes down to directories."""
    os.mkdir(f"{d}/d")
    default = acl(7, 5, 0, 7, users=[(1001, 7)], groups=[(2001, 5)])
    os.setxattr(f"{d}/d", DEFAULT, default)
    old = os.umask(0o077)
    try:
        make_file(f"{other}/d/f", 0o666)
        os.mkdir(f"{other}/d/sub", 0o777)
        os.mknod(f"{other}/d/fifo", stat.S_IFIFO | 0o640)
        os.symlink("f", f"{other}/d/link")
        fd = os.open(f"{other}/d", os.O_TMPFILE | os.O_RDWR, 0o666)
        assert stat.S_IMODE(os.fstat(fd).st_mode) == 0o660
        os.close(fd)
        make_file(f"{other}/plain", 0o666)
    finally:
        os.umask(old)
    assert stat.S_IMODE(os.stat(f"{d}/plain").st_mode) == 0o600
    assert stat.S_IMODE(os.stat(f"{d}/d/f").st_mode) == 0o660
    assert os.getxattr(f"{d}/d/f", ACCESS) == acl(6, 5, 0, 6, users=[(1001, 7)], groups=[(2001, 5)])
    expect("ENODATA", ALICE, os.getxattr, f"{d}/d/f", DEFAULT)
    assert stat.S_IMODE(os.stat(f"{d}/d/sub").st_mode) == 0o770
    assert os.getxattr(f"{d}/d/sub", DEFAULT) == default
    assert os.getxattr(f"{d}/d/sub", ACCESS) == default
    assert stat.S_IMODE(os.stat(f"{d}/d/fifo").st_mode) == 0o640
    assert result(lambda: os.getxattr(f"{d}/d/link", ACCESS, follow_symlinks=False)) == "ENOTSUP"
    expect("None", ALICE, make_file, f"{d}/d/sub/of-alice", 0o644)
    os.removexattr(f"{d}/d", DEFAULT)
    os.removexattr(f"{d}/d", DEFAULT)
    expect("ENODATA", ALICE, os.getxattr, f"{other}/d", DEFAULT)


@rule
def ownership_and_bad_values(d, other):
    """Only owners set ACLs; what is no ACL is refused and changes nothing."""
    make_file(f"{d}/f", 0o644)
    os.chown(f"{d}/f", 1001, 1001)
    good = acl(6, 4, 4, 4, users=[(1002, 6)])
    expect("EPERM", BOB, os.setxattr, f"{d}/f", ACCESS, good)
    expect("None", ALICE, os.setxattr, f"{d}/f", ACCESS, good)
    expect("EPERM", BOB, os.removexattr, f"{d}/f", ACCESS)
    expect("EACCES", ALICE, os.setxattr, f"{d}/f", DEFAULT, good)
    for bad in (
        b"\2",
        good[:-1],
        good + bytes(8),
        acl(6, 4, 4, users=[(1002, 6)]),
        value((OTHER, 0, NO_ID)),
    ):
        expect("EINVAL", ALICE, os.setxattr, f"{d}/f", ACCESS, bad)
    expect("ENOTSUP", ALICE, os.setxattr, f"{d}/f", ACCESS, b"\3" + good[1:])
    longest = acl(6, 4, 4, 7, users=[(uid, 4) for uid in range(507)])
    expect("None", ALICE, os.setxattr, f"{d}/f", ACCESS, longest)
    assert os.getxattr(f"{other}/f", ACCESS) == longest
    expect(
        "E2BIG",
        ALICE,
        os.setxattr,
        f"{d}/f",
        ACCESS,
        acl(6, 4, 4, 7, users=[(uid, 4) for uid in range(508)]),
    )
    assert os.getxattr(f"{other}/f", ACCESS) == longest
    expect("None", ALICE, os.setxattr, f"{d}/f", ACCESS, acl(6, 4, 0))
    expect("ENODATA", ALICE, os.getxattr, f"{other}/f", ACCESS)
    assert stat.S_IMODE(os.stat(f"{other}/f").st_mode) == 0o640
    os.chmod(f"{d}/f", 0o2640)
    os.chown(f"{d}/f", 1001, 2001)
    os.chmod(f"{d}/f", 0o2640)
    expect("None", ALICE, os.setxattr, f"{d}/f", ACCESS, good)
    assert os.stat(f"{other}/f").st_mode & 0o2000 == 0, "set-group-id of a group that she is not in"


@rule
def links_and_renames(d, other):
    """ACLs stay with the file under all its names, and while it is open without one."""
    make_file(f"{d}/f", 0o600)
    wanted = acl(6, 0, 0, 6, users=[(1001, 6)])
    os.setxattr(f"{d}/f", ACCESS, wanted)
    os.link(f"{d}/f", f"{d}/g")
    os.rename(f"{d}/f", f"{d}/h")
    for name in ("g", "h"):
        assert os.getxattr(f"{other}/{name}", ACCESS) == wanted
        expect("None", ALICE, open_as, f"{other}/{name}", os.O_RDWR)
    with open(f"{d}/g", "rb") as file:
        os.unlink(f"{d}/g")
        os.unlink(f"{d}/h")
        assert os.fstat(file.fileno()).st_mode & 0o777 == 0o660


def rules(d, other):
    passed = failed = 0
    for number, function in enumerate(RULES):
        name = f"rule{number}"
        os.mkdir(f"{d}/{name}")
        os.chmod(f"{d}/{name}", 0o777)
        try:
            function(f"{d}/{name}", f"{other}/{name}")
            passed += 1
            print(f"ok   {function.__doc__}")
        except Exception:
            failed += 1
            traceback.print_exc(file=sys.stdout)
            print(f"FAIL {function.__doc__}")
        shutil.rmtree(f"{d}/{name}")
    print(f"{passed} passed, {failed} failed")
    return failed == 0


def passed(top):
    """The kernel asks by itself whether the caller owns a directory: of what it was told last."""
    wanted = acl(7, 5, 5, 5, users=[(1002, 5)])
    for name in sorted(os.listdir(top)):
        for _ in range(4):
            open_as(f"{top}/{name}/x", os.O_RDONLY)
        expect("None", ALICE, os.setxattr, f"{top}/{name}", ACCESS, wanted)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["compare", "rules", "passed"])
    parser.add_argument("directory")
    parser.add_argument("other", nargs="?")
    parser.add_argument("--ops", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    other = options.other or options.directory
    if options.what == "passed":
        sys.exit(passed(options.directory))
    if options.what == "rules":
        sys.exit(not rules(options.directory, other))
    sys.exit(not compare(options.directory, other, options.ops, options.seed))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Checks `kestrel sql` for tests/versions/sql.sh. KESTREL_SQL is the command with its options.

    sql.py more DIR                  adds names that sort in odd ways
    sql.py walk VERSION DIR          every entry and attribute is what a walk of DIR finds
    sql.py queries VOLUME SEED COUNT random queries find what SQLite finds in plain tables
    sql.py reads VERSION             queries that are pushed down read few rows
    sql.py formats VERSION           CSV, JSON and the table have the same rows
"""

import csv
import io
import json
import os
import random
import re
import shlex
import sqlite3
import stat
import subprocess
import sys
from collections import Counter

COMMAND = shlex.split(os.environ.get("KESTREL_SQL", "kestrel sql"))
KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink",
         stat.S_IFIFO: "fifo", stat.S_IFSOCK: "socket", stat.S_IFCHR: "char",
         stat.S_IFBLK: "block"}


def sql(volume, query, *options):
    """What the command prints, and what it tells."""
    done = subprocess.run([*COMMAND, volume, query, *options], capture_output=True, text=True,
                          timeout=120, check=False)
    if done.returncode:
        raise SystemExit(f"{query}: exit {done.returncode}: {done.stdout[-300:]}{done.stderr}")
    return done.stdout, done.stderr


def value_of(value):
    """A value of JSON as SQLite has it."""
    return bytes(value) if isinstance(value, list) else value


def rows_of(volume, query):
    rows = json.loads(sql(volume, query, "--json")[0])
    return [tuple(value_of(value) for value in row.values()) for row in rows]


def shown(data):
    """Bytes as the tables have them: TEXT if they are UTF-8 without a zero."""
    try:
        text = data.decode()
        return data if "\0" in text else text
    except UnicodeDecodeError:
        return data


def more(top):
    """Names that sort otherwise than the paths below them, and of all bytes."""
    top = os.fsencode(top)
    names = [b"a", b"a!", b"a-", b"a-b", b"a.b", b"a0", b"ab", b"A", b"A-", b"\xc3\xa4", b"\xe4",
             b"\xff", b"z%", b"z_", b"[z]", b"*", b"5", b"05", b"-7", b" "]
    for one in names:
        for two in [b"x", b"x-", b"x-y", b"X", b"\xfe", b"\xc3\xb6"]:
            os.makedirs(os.path.join(top, b"order", one, two))
            with open(os.path.join(top, b"order", one, two, b"f" + one), "wb"):
                pass
    for number in range(3000):
        with open(os.path.join(top, b"order", b"a", b"n%05d" % number), "wb"):
            pass
    path = os.path.join(top, b"order", b"5", b"x")
    values = {"user.text": "grün".encode(), "user.zero": b"a\0b", "user.bad": b"\xff"}
    for name, value in values.items():
        os.setxattr(path, name, value)


def walk(version, top):
    top, seen = os.fsencode(top), {}
    for parent, dirs, names in os.walk(top):
        for name in dirs + names:
            path = os.path.join(parent, name)
            seen[path[len(top) + 1:]] = os.lstat(path)
    seen[b""] = os.lstat(top)
    links = Counter(one.st_ino for one in seen.values())
    wanted, xattrs = {}, {}
    for path, one in seen.items():
        is_dir, full = stat.S_ISDIR(one.st_mode), os.path.join(top, path) if path else top
        parent, _, name = path.rpartition(b"/")
        wanted[shown(path)] = (
            shown(parent) if path else None, shown(name), KINDS[stat.S_IFMT(one.st_mode)],
            one.st_size, stat.S_IMODE(one.st_mode), one.st_uid, one.st_gid,
            one.st_nlink if is_dir else links[one.st_ino], one.st_ino if path else 1,
            one.st_mtime_ns // 10**9, one.st_ctime_ns // 10**9, one.st_atime_ns // 10**9,
            shown(os.readlink(full)) if stat.S_ISLNK(one.st_mode) else None,
            one.st_rdev, one.st_mtime_ns, one.st_ctime_ns, one.st_atime_ns)
        for attribute in os.listxattr(full, follow_symlinks=False):
            if not attribute.startswith(("system.", "kestrel.")):
                value = os.getxattr(full, attribute, follow_symlinks=False)
                xattrs[shown(path), attribute] = shown(value)
    columns = ("path, parent, name, kind, size, mode, uid, gid, nlink, inode, mtime, ctime, atime,"
               " target, rdev, mtime_ns, ctime_ns, atime_ns")
    rows = rows_of(version, f"select {columns} from entries")
    found = {row[0]: row[1:] for row in rows}
    assert len(found) == len(rows), "an entry twice"
    assert found.keys() == wanted.keys(), sorted(map(repr, found.keys() ^ wanted.keys()))[:5]
    for path, row in wanted.items():
        assert found[path] == row, (path, found[path], row)
    rows = rows_of(version, "select path, name, value from xattrs")
    found = {row[:2]: row[2] for row in rows}
    assert len(found) == len(rows) and found == xattrs, (len(rows), len(found), len(xattrs))
    # Without paths the way through the tables is another one.
    whole = rows_of(version, "select count(*), sum(size), count(distinct inode), sum(nlink)"
                             " from entries")[0]
    assert whole == (len(wanted), sum(row[3] for row in wanted.values()),
                     len({row[8] for row in wanted.values()}),
                     sum(row[7] for row in wanted.values())), whole
    print(f"{len(wanted)} entries, {len(xattrs)} attributes")


def literal(value):
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return str(value)


def matches(pattern, value, wildcards, flags):
    """GLOB and LIKE, as SQLite has them by default: systems build it to match no BLOBs."""
    if pattern is None or value is None:
        return None
    value = value if isinstance(value, bytes) else str(value).encode()
    parts = re.split(r"(\[a-z\]|[*?%_])", pattern)
    text = "".join(wildcards.get(part, re.escape(part)) for part in parts)
    return re.fullmatch(text, value.decode(errors="surrogateescape"), flags) is not None


def plain_tables(volume):
    base = sqlite3.connect(":memory:")
    glob, like = {"*": ".*", "?": ".", "[a-z]": "[a-z]"}, {"%": ".*", "_": "."}
    base.create_function("glob", 2, lambda pattern, value: matches(pattern, value, glob, re.S))
    for count in (2, 3):
        base.create_function("like", count, lambda pattern, value, *_: matches(
            pattern, value, like, re.S | re.I | re.A))
    base.text_factory = lambda data: shown(data)
    for table, types in {
            "versions": "name text, files integer, user integer",
            "entries": "version text, path text, parent text, name text, kind text, size integer,"
                       " uid integer, mtime integer",
            "xattrs": "version text, path text, name text, value text"}.items():
        base.execute(f"create table {table} ({types})")
        columns = ", ".join(one.split()[0] for one in types.split(", "))
        rows = rows_of(volume, f"select {columns} from {table}")
        base.executemany(f"insert into {table} values ({','.join('?' * len(rows[0]))})", rows)
    return base


def condition(rng, paths, versions):
    """A condition on one row."""
    path = rng.choice(paths)
    data = path if isinstance(path, bytes) else path.encode()
    cut = data[:rng.randrange(len(data) + 1)]
    text = cut.decode(errors="ignore").replace("[", "").replace("*", "")
    tail = rng.choice(["*", "*", "?", "*x*", "", "[a-z]*", "/*"])
    other = rng.choice(paths)
    bound = rng.choice([shown(cut), other, 5, -7, 5.5, b"a", b"\xff", None, text + "0"])
    bound = "null" if bound is None else literal(bound)
    swapped = text.swapcase()
    choices = [
        f"path = {literal(path)}",
        f"path = {literal(data)}",
        f"path = {bound}",
        f"path glob {literal(text + tail)}",
        f"path like {literal(swapped + rng.choice(['%', '%', '_', '', '%/%']))}",
        f"path >= {literal(shown(cut))} and path < {bound}",
        f"path > {bound}",
        f"path <= {bound} and path > {literal(text)}",
        f"path between {literal(text)} and {literal(other)}",
        f"parent = {literal(path)}",
        f"parent = {literal(shown(data.rpartition(b'/')[0]))}",
        f"parent = {literal(shown(data.rpartition(b'/')[0]))}"
        f" and name = {literal(shown(data.rpartition(b'/')[2]))}",
        f"name = {literal(shown(data.rpartition(b'/')[2]))}",
        f"path in ({literal(path)}, {literal(other)}, 'absent')",
        f"path = {literal(text)} collate nocase",
        f"path glob {literal(text + tail)} and path >= {literal(shown(cut))}",
        f"path like {literal(text + '%')} escape '~'",
        f"parent is null",
        f"version = {literal(rng.choice(versions))}",
        f"version > {literal(rng.choice(versions))}",
        "version = 'absent@1'",
        f"kind = 'directory' and path not glob {literal(text + '*')}",
    ]
    return rng.choice(choices)


def queries(volume, seed, count):
    base, rng = plain_tables(volume), random.Random(int(seed))
    paths = [row[0] for row in base.execute("select distinct path from entries")]
    paths = rng.sample(paths, min(len(paths), 400)) + [
        row[0] for row in base.execute("select path from entries where path glob 'order/*'"
                                       " and path not glob 'order/a/n*'")]
    versions = [row[0] for row in base.execute("select name from versions")]
    found_rows = 0
    for _ in range(int(count)):
        where = condition(rng, paths, versions)
        for _ in range(rng.choice([0, 0, 1, 2])):
            where = f"({where}) {rng.choice(['and', 'and', 'or'])} " \
                    f"({condition(rng, paths, versions)})"
        if rng.random() < 0.5:
            where = f"version = {literal(rng.choice(versions))} and ({where})"
        columns = rng.choice(["version, path, size", "kind, uid", "name, parent", "count(*)",
                              "version, path, kind, mtime"])
        query = f"select {columns} from entries where {where}"
        if "path" in columns and rng.random() < 0.3:
            query += f" order by path {rng.choice(['', 'desc'])}, version limit {rng.randrange(50)}"
        if rng.random() < 0.1 and "parent" not in where and "kind" not in where:
            query = f"select version, path, name, value from xattrs where {where}"
        found, wanted = rows_of(volume, query), base.execute(query).fetchall()
        if " order by " not in query:
            found, wanted = sorted(found, key=repr), sorted(wanted, key=repr)
        assert found == wanted, (query, len(found), len(wanted), found[:3], wanted[:3])
        found_rows += len(found)
    for query in [
            "select a.path, a.size, b.size as other from entries a join entries b on"
            " b.version = 'b@1' and b.path = a.path where a.version = 'a@1' and a.size <> b.size",
            "select path from entries where version = 'b@1' except"
            " select path from entries where version = 'a@1'",
            "select e.kind, count(*) from entries e join xattrs x on x.version = e.version and"
            " x.path = e.path group by e.kind",
            "select v.name, v.files, (select count(*) from entries where version = v.name and"
            " kind <> 'directory') as counted from versions v",
            "with recursive below(path) as (select 'order' union all select e.path from entries e,"
            " below where e.version = 'a@1' and e.parent = below.path and e.kind = 'directory')"
            " select path from below"]:
        found = sorted(rows_of(volume, query), key=repr)
        assert found == sorted(base.execute(query).fetchall(), key=repr), query
        assert found, query
        found_rows += len(found)
    print(f"{count} queries, {found_rows} rows")


def reads(version):
    """Rows read, at most as many times those that are found, with those on the way."""
    def read(query, times, beside):
        told = sql(version, query, "--csv", "--stats")[1]
        rows, of_tables = map(int, re.search(r"(\d+) rows; (\d+) rows of tables", told).groups())
        assert of_tables <= times * rows + beside, (query, told)
        return rows
    assert read("select path, size from entries where path glob 'order/a/n*'", 1, 4) == 3000
    assert read("select path from entries where path >= 'order/a/n01' and path < 'order/a/n02'",
                1, 4) == 1000
    assert read("select path from entries where path = 'order/a/n00007'", 1, 4) == 1
    assert read("select name from entries where parent = 'order/a'", 1, 4) == 3006
    assert read("select 1 from entries where parent = 'order/a' and name = 'n00007'", 1, 4) == 1
    assert read("select path from entries where path glob 'order/a/n*' limit 1", 1, 20) == 1
    assert read("select path, nlink from entries where path glob 'links/*'", 2, 4) == 7
    # A directory beside one of its name with more: nothing of that is read.
    assert read("select path from entries where path glob 'order/A/*'", 1, 4) == 12
    # Names on the way are looked through, for letters are folded.
    assert read("select path from entries where path like 'ORDER/a/n%'", 1, 200) == 3000
    assert read("select path from entries where path in ('order/a/x', 'odd', 'no')", 1, 8) == 2
    assert read("select a.path from entries a join entries b on b.path = a.path and b.version ="
                " a.version where a.parent = 'order/a'", 2, 10) == 3006


def formats(version):
    query = "select path, size, target, 0.5 as half, value from entries left join (select path as" \
            " p, value from xattrs) on p = path where path glob 'o*' or path glob 'symlinks*'"
    rows = rows_of(version, query)
    assert len(rows) > 3000
    lines = list(csv.reader(io.StringIO(sql(version, query, "--csv")[0], newline="")))
    def as_csv(value):
        return {None: ""}.get(value, literal(value) if isinstance(value, bytes) else str(value))
    assert lines[0] == ["path", "size", "target", "half", "value"], lines[0]
    assert lines[1:] == [[as_csv(value) for value in row] for row in rows]
    table = sql(version, query)[0].split("\n")
    assert len(table) == len(rows) + 2 and table[-1] == "", (len(table), len(rows))
    empty = "select path from entries where 0"
    assert json.loads(sql(version, empty, "--json")[0]) == []
    assert sql(version, empty, "--csv")[0] == "path\n" == sql(version, empty)[0]


if __name__ == "__main__":
    {"more": more, "walk": walk, "queries": queries, "reads": reads, "formats": formats}[
        sys.argv[1]](*sys.argv[2:])

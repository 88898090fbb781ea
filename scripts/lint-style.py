#!/usr/bin/env python3
"""Counts what docs/style.md forbids; fails when a count is above scripts/lint-baseline.json.

    scripts/lint-style.py                   compares with the baseline
    scripts/lint-style.py --list RULE [PATH…]
                                            every finding of a rule, in files below the paths
    scripts/lint-style.py --areas           the counts by directory
    scripts/lint-style.py --update          lowers the baseline to the present counts
    scripts/lint-style.py --update --raise  the same where a count rises: say why in the commit

Standard library only. What is new in a count that rose is found by comparing with the commit that
wrote the baseline.
"""

import argparse
import bisect
import collections
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import unicodedata

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BASELINE = "scripts/lint-baseline.json"

CODE_COLUMNS = 100
DOC_COLUMNS = 120
TEST_NAME = 50
SUBJECT = 72
TYPE_CRATES = 3
TYPE_EXCEPTIONS = {"Error", "Options", "State", "Config", "Stats", "Kind"}

# Rule: what it counts, and what to do about a finding.
RULES = {
    "who-comments": (
        "who, whoever, whose, whom in comments",
        "name the client, node, server, process or thread; people may be who",
    ),
    "who-docs": (
        "who, whoever, whose, whom in documents",
        "name the client, node, server, process or thread; people may be who",
    ),
    "who-messages": (
        "who, whoever, whose, whom in strings",
        "name the client, node, server, process or thread in what users read",
    ),
    "columns-code": (
        f"lines of code and comments over {CODE_COLUMNS} columns",
        "break the line (`make fmt` breaks code, not comments)",
    ),
    "columns-docs": (
        f"lines of documents over {DOC_COLUMNS} columns, tables and code blocks aside",
        "break the line",
    ),
    "test-names": (
        f"names of tests over {TEST_NAME} characters",
        "a noun phrase as name, the sentence as doc comment above",
    ),
    "type-names": (
        f"names of public types that more than {TYPE_CRATES} crates define",
        "add the noun: BalancePlan, not Plan (docs/glossary.md)",
    ),
    "references": (
        "references to documents, sections, files or functions that do not resolve",
        "name a file from the repository's root and a section that it has",
    ),
    "links": (
        "links in documents that do not resolve",
        "link to a file beside the document and to a heading that it has",
    ),
}

Finding = collections.namedtuple("Finding", "rule path line text")

CODE_SUFFIXES = (".rs", ".py", ".sh", ".toml")
CODE_NAMES = ("Makefile", ".ci/run")
# Not written by hand, or not ours.
SKIPPED = re.compile(r"(^|/)(Cargo\.lock|wire_corpus/|envelope_corpus/|golden/|target/)")

RUST = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)
      | b?r(?P<hashes>\#*)"(?P<raw>.*?)"(?P=hashes)
      | [bc]?"(?P<string>(?:[^"\\]|\\.)*)"
      | b?'(?:\\[^\n']{1,8}|\\'|[^'\\\n])'""",
    re.DOTALL | re.VERBOSE,
)
PYTHON = re.compile(
    r'''(?P<comment>\#[^\n]*|"""(?:.*?)""")
      | (?:"(?P<string>(?:[^"\\\n]|\\.)*)"|'(?P<raw>(?:[^'\\\n]|\\.)*)')''',
    re.DOTALL | re.VERBOSE,
)
SHELL = re.compile(
    r"""(?:(?<=\n)|(?<=\s)|\A)(?P<comment>\#[^\n]*)
      | "(?P<string>(?:[^"\\]|\\.)*)"
      | '(?P<raw>[^']*)'""",
    re.DOTALL | re.VERBOSE,
)
# Not *who* as this word itself.
WHO = re.compile(r"(?<!(?<!\*)\*)\b(?:who|whoever|whose|whom|whomever)\b", re.IGNORECASE)
TEST = re.compile(
    r"#\[(?:\w+::)*test\b[^\]\n]*\](?:\s*#\[[^\n]*\]|\s*//[^\n]*)*\s*(?:pub )?(?:async )?fn (\w+)"
)
TYPE = re.compile(r"^\s*pub(?:\([^)]*\))? (?:struct|enum|trait|union|type) (\w+)", re.MULTILINE)
# A document, then perhaps a section: a number after §, or a title in quotes. Comments may break
# in between.
GAP = r"(?:\s|\n\s*(?://[/!]?|\#))*"
DOCUMENT = re.compile(
    r"(?<![\w./:-])((?:\.\./)*[\w./-]*\w\.md)\b(?!/)`?"
    r"(?:\)?,?" + GAP + r"(?:§" + GAP + r'([\d.]*\d)|"([^"\n]{2,80})"))?'
)
# What a document calls a file: `crates/x/src/y.rs` or `crates/x/src/y.rs::function`.
SOURCE = re.compile(
    r"`((?:crates|scripts|tests|bench|fuzz|docs)/[\w./{},*-]*[\w}])/?(?:::(\w+)|:\d+)?(?:\(\))?`"
)
LINK = re.compile(
    r"""\[[^\]\n]*\]\(([^)\s]+)(?:\s+"[^"]*")?\)|^\[[^\]\n]+\]:\s+(\S+)|\bsrc="([^"]+)\"""",
    re.MULTILINE,
)
URL = re.compile(r"\bhttps?://[^\s)>\"]+")


class Tree:
    """Files by their path from the root, of the working tree or of a commit."""

    def __init__(self, files):
        self.files = files
        self.dirs = {os.path.dirname(path) for path in files}
        for path in list(self.dirs):
            while path:
                path = os.path.dirname(path)
                self.dirs.add(path)
        self._headings = {}

    @classmethod
    def working(cls, root):
        """The working tree: what git has, and what it would add."""
        names = git(root, "ls-files", "-co", "--exclude-standard", "-z")
        files = {}
        for name in filter(None, (names or "").split("\0")):
            try:
                with open(os.path.join(root, name), "rb") as file:
                    files[name] = file.read() if is_text(name) else None
            except OSError:
                continue  # deleted and not yet committed, or a link that leads nowhere
        return cls(files)

    @classmethod
    def commit(cls, root, commit):
        """The tree of a commit."""
        command = ["git", "archive", commit]
        archive = subprocess.run(command, cwd=root, check=True, capture_output=True).stdout
        files = {}
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            for entry in filter(tarfile.TarInfo.isfile, tar):
                text = is_text(entry.name)
                files[entry.name] = tar.extractfile(entry).read() if text else None
        return cls(files)

    def text(self, path):
        """The text of a file; empty if it is not text."""
        content = self.files.get(path)
        if isinstance(content, bytes):
            content = self.files[path] = content.decode("utf-8", "replace")
        return content or ""

    def has(self, path):
        """Whether there is such a file or directory; `*` and `{a,b}` as in a shell."""
        for one in braces(path):
            if "*" in one:
                pattern = re.escape(one).replace(r"\*\*", ".*").replace(r"\*", "[^/]*")
                if not any(re.fullmatch(pattern, name) for name in self.files):
                    return False
            elif one not in self.files and one not in self.dirs:
                return False
        return True

    def headings(self, path):
        """Titles of a document's headings, and the anchors that they get."""
        if path not in self._headings:
            text = without_blocks(self.text(path))
            titles = re.findall(r"^#{1,6} (.*?)[ #]*$", text, re.MULTILINE)
            anchors, seen = set(), collections.Counter()
            for title in titles:
                anchor = slug(title)
                anchors.add(f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor)
                seen[anchor] += 1
            anchors.update(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", text))
            self._headings[path] = ([plain(title) for title in titles], anchors)
        return self._headings[path]


def git(root, *args):
    """What a git command prints; nothing if it fails."""
    try:
        done = subprocess.run(["git", *args], cwd=root, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout


def is_doc(path):
    return path.endswith(".md")


def is_code(path):
    return path.endswith(CODE_SUFFIXES) or path in CODE_NAMES


def is_text(path):
    return (is_doc(path) or is_code(path)) and not SKIPPED.search(path)


def braces(path):
    """`a/{b,c}` is `a/b` and `a/c`."""
    found = re.search(r"\{([^{}]*)\}", path)
    if not found:
        return [path]
    head, tail = path[: found.start()], path[found.end() :]
    return [whole for part in found.group(1).split(",") for whole in braces(head + part + tail)]


def plain(title):
    """A heading as people quote it."""
    title = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", lambda found: found.group(1) or "", title)
    return title.strip().lower()


def slug(title):
    """The anchor that GitHub and mdBook give a heading."""
    kept = (c for c in plain(title) if c in " -_" or unicodedata.category(c)[0] in "LN")
    return "".join(kept).replace(" ", "-")


def columns(line):
    return len(line.expandtabs(4))


def line_of(starts, position):
    return bisect.bisect_right(starts, position)


def shown(text, position):
    """The line around a position."""
    begin = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    return text[begin : end if end >= 0 else len(text)].strip()


def blanked(pattern, text):
    """The text, with what the pattern finds replaced by blanks: positions and lines stay."""
    return pattern.sub(lambda found: re.sub(r"[^\n]", " ", found.group()), text)


def without_blocks(text):
    """A document with its fenced blocks replaced by blanks: positions and lines stay."""
    lines, fence = [], None
    for line in text.split("\n"):
        mark = line.lstrip(" >")[:3]
        if fence or mark in ("```", "~~~"):
            lines.append(" " * len(line))
            if not fence:
                fence = mark
            elif mark == fence:
                fence = None
        else:
            lines.append(line)
    return "\n".join(lines)


def scan(tree):
    """All findings of a tree."""
    findings, types = [], collections.defaultdict(dict)
    packages = [os.path.dirname(path) for path in tree.files if path.endswith("Cargo.toml")]
    for path in sorted(tree.files):
        if not is_text(path):
            continue
        text = tree.text(path)
        starts = [0] + [found.end() for found in re.finditer("\n", text)]

        def add(rule, position, what=None):
            where = line_of(starts, position)
            findings.append(Finding(rule, path, where, what or shown(text, position)))

        if is_doc(path):
            scan_doc(tree, path, text, add)
        else:
            scan_code(tree, path, text, add)
            if re.match(r"crates/(?!.*/tests).*/src/.*\.rs$", path):
                package = max((dir for dir in packages if path.startswith(dir + "/")), key=len)
                for found in TYPE.finditer(text):
                    where = (path, line_of(starts, found.start(1)))
                    types[found.group(1)].setdefault(package, where)
    for name, crates in sorted(types.items()):
        if len(crates) > TYPE_CRATES and name not in TYPE_EXCEPTIONS:
            path, line = min(crates.values())
            crates = ", ".join(sorted(crates))
            findings.append(Finding("type-names", path, line, f"{name}: {crates}"))
    return findings


def scan_doc(tree, path, text, add):
    """A document."""
    prose = without_blocks(text)
    position = 0
    for line in prose.split("\n"):
        if columns(line) > DOC_COLUMNS and not line.lstrip().startswith(("|", "<")):
            add("columns-docs", position)
        position += len(line) + 1
    for found in WHO.finditer(prose):
        add("who-docs", found.start())
    links = blanked(re.compile(r"`[^`\n]*`"), prose)
    for found in LINK.finditer(links):
        target = next(filter(None, found.groups()))
        if re.match(r"[a-z]+:|//", target) or "NNNN" in target:
            continue
        file, _, anchor = target.partition("#")
        file = os.path.normpath(os.path.join(os.path.dirname(path), file)) if file else path
        if not tree.has(file):
            add("links", found.start(), f"{target}: there is no {file}")
        elif anchor and is_doc(file) and anchor not in tree.headings(file)[1]:
            add("links", found.start(), f"{target}: {file} has no heading #{anchor}")
    if path.startswith(("docs/decisions/", "CHANGELOG")):
        return  # what was written then names what was there then
    for found in SOURCE.finditer(prose):
        file, name = found.groups()
        if not tree.has(file):
            add("references", found.start(), f"there is no {file}")
        elif name and not re.search(rf"\b{name}\b", tree.text(file)):
            add("references", found.start(), f"{file} has no {name}")
    if path == "ARCHITECTURE.md":
        walks(tree, prose, add)
    references(tree, path, blanked(URL, blanked(LINK, prose)), add, 0)


def scan_code(tree, path, text, add):
    """Code: its lines, and its comments and strings."""
    position = 0
    for line in text.split("\n"):
        if len(line) > CODE_COLUMNS and columns(line) > CODE_COLUMNS and not URL.search(line):
            add("columns-code", position)
        position += len(line) + 1
    if path.endswith(".rs"):
        language = RUST
        for found in TEST.finditer(text):
            name = found.group(1)
            if len(name) > TEST_NAME:
                add("test-names", found.start(1), f"{name} ({len(name)})")
    elif path.endswith(".py"):
        language = PYTHON
    else:
        language = SHELL
    if not WHO.search(text) and ".md" not in text:
        return
    for found in language.finditer(text):
        kind = found.lastgroup
        if kind == "comment":
            comment = found.group()
            for who in WHO.finditer(comment):
                add("who-comments", found.start() + who.start())
            if ".md" in comment:
                # With what follows, as a section may be on the next line.
                references(tree, path, text, add, found.start(), found.end())
        elif kind and language is RUST:
            content = found.group("string") or found.group("raw") or ""
            if " " in content and "/tests" not in path:
                for who in WHO.finditer(content):
                    add("who-messages", found.start() + who.start())


def walks(tree, prose, add):
    """Files below the `src` of some crate, with functions of them: `a/b.rs` `c`, `d`."""
    for found in re.finditer(r"`([a-z_/]+\.rs)`((?:[\s,]+`[a-z_]+`)*)", prose):
        file = found.group(1)
        texts = [tree.text(name) for name in tree.files if name.endswith("/src/" + file)]
        texts = texts or [tree.text(name) for name in tree.files if name.endswith("/" + file)]
        if not texts:
            add("references", found.start(), f"there is no {file}")
        for name in re.findall(r"`([a-z_]+)`", found.group(2)):
            if not any(re.search(rf"\bfn {name}\b", text) for text in texts):
                add("references", found.start(), f"{file} has no function {name}")


def references(tree, path, text, add, begin, end=None):
    """Names of documents in a part of a text."""
    for found in DOCUMENT.finditer(text, begin):
        if end is not None and found.start() >= end:
            return
        name, section, title = found.groups()
        if re.search(r"https?://\S*$", text[max(0, found.start() - 200) : found.start()]):
            continue
        beside = os.path.normpath(os.path.join(os.path.dirname(path), name))
        file = next((one for one in (os.path.normpath(name), beside) if one in tree.files), None)
        if file is None:
            add("references", found.start(), f"there is no {name}")
            continue
        titles = tree.headings(file)[0]
        if section:
            number = re.compile(rf"§? ?{re.escape(section)}(?![\d]|\.\d)")
            if not any(number.match(one) for one in titles):
                add("references", found.start(), f"{file} has no section {section}")
        elif title and not is_doc(path):
            wanted = plain(" ".join(re.sub(r"\n\s*(?://[/!]?|#)", " ", title).split()))
            if not any(wanted in one for one in titles):
                add("references", found.start(), f'{file} has no section "{title}"')


PARTICIPLE = re.compile(r"(?!(?:\w*(?:need|eed|embed|shed|bring|string|ping))$)[a-z]+(?:ed|ing)$")


def subject_faults(subject):
    """What is wrong with the subject of a commit."""
    if subject.startswith(('Revert "', "Merge ", "fixup! ", "squash! ")):
        return []
    faults = []
    found = re.match(r"([a-z0-9][\w.,/ +-]*): (\S+)", subject)
    if not found:
        faults.append("it is not `area: imperative`")
    else:
        verb = found.group(2)
        if verb[0].isupper() and not verb[1:2].isupper():
            faults.append("the sentence after the area begins with a small letter")
        if PARTICIPLE.match(verb):
            faults.append(f"`{verb}` is no imperative")
    if subject.endswith("."):
        faults.append("it ends in a full stop")
    if len(subject) > SUBJECT:
        faults.append(f"it has {len(subject)} characters, {SUBJECT} are the limit")
    return faults


def check_commits(root, base):
    """Faults of the commits after `base`; nothing if git does not know it."""
    log = git(root, "log", "--no-merges", "--format=%h %s", f"{base}..HEAD") if base else None
    if log is None:
        print(f"style: no history since {base}; subjects of commits were not looked at")
        return []
    faults = []
    for line in log.splitlines():
        commit, _, subject = line.partition(" ")
        faults += [f"{commit} {subject}\n    {fault}" for fault in subject_faults(subject)]
    return faults


def area(path):
    """The directory that a count is shown for."""
    parts = path.split("/")
    if parts[0] == "crates":
        ends = [parts.index(one) for one in ("src", "tests", "examples", "benches") if one in parts]
        return "/".join(parts[: min(ends, default=len(parts) - 1)])
    return parts[0] if len(parts) > 1 else "."


# Findings of commits, by their names.
SCANNED = {}


def report_new(root, rule, found):
    """Prints what a rule finds now and did not find in the commit that wrote the baseline."""
    commit = (git(root, "log", "-1", "--format=%H", "--", BASELINE) or "").strip()
    before = collections.Counter()
    if commit:
        if commit not in SCANNED:
            SCANNED[commit] = scan(Tree.commit(root, commit))
        before.update(one.text for one in SCANNED[commit] if one.rule == rule)
    new = []
    for one in found:
        if before[one.text] > 0:
            before[one.text] -= 1
        else:
            new.append(one)
    for one in new[:40]:
        print(f"    {one.path}:{one.line}: {one.text[:160]}")
    if len(new) > 40:
        print(f"    and {len(new) - 40} more: scripts/lint-style.py --list {rule}")


def main():
    """See the head of this file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    rules = "every finding of a rule: " + ", ".join(RULES)
    parser.add_argument("--list", metavar="RULE", choices=RULES, help=rules)
    parser.add_argument("--areas", action="store_true", help="counts by directory")
    parser.add_argument("--update", action="store_true", help="lower the baseline")
    rises = "with --update: also where a count rises"
    parser.add_argument("--raise", action="store_true", dest="raises", help=rises)
    parser.add_argument("--root", default=ROOT, help=argparse.SUPPRESS)
    parser.add_argument("paths", nargs="*", help="with --list: only files below these")
    args = parser.parse_args()
    findings = scan(Tree.working(args.root))
    by_rule = {rule: [one for one in findings if one.rule == rule] for rule in RULES}
    if args.list:
        for one in by_rule[args.list]:
            if not args.paths or any(one.path.startswith(path) for path in args.paths):
                print(f"{one.path}:{one.line}: {one.text}")
        return 0
    if args.areas:
        for rule, found in by_rule.items():
            for name, count in sorted(collections.Counter(area(one.path) for one in found).items()):
                print(f"{rule:14} {name:32} {count:6}")
        return 0
    counts = {rule: len(found) for rule, found in by_rule.items()}
    baseline = read_baseline(args.root)
    before = {rule: baseline["counts"].get(rule, 0) for rule in RULES}
    risen = [rule for rule in RULES if counts[rule] > before[rule]]
    if args.update:
        return update(args.root, baseline, counts, [] if args.raises else risen)
    for rule in risen:
        what, advice = RULES[rule]
        print(f"FAIL {rule}: {counts[rule]} {what}; the baseline has {before[rule]}. New:")
        report_new(args.root, rule, by_rule[rule])
        print(f"  To do: {advice}.")
    faults = check_commits(args.root, baseline.get("commits_since"))
    for fault in faults:
        print(f"FAIL commit {fault}")
    if faults:
        print("  To do: `area: imperative`, the reason in the body (docs/style.md).")
    fallen = [rule for rule in RULES if counts[rule] < before[rule]]
    if fallen and not risen:
        lower = ", ".join(f"{rule} {before[rule]} -> {counts[rule]}" for rule in fallen)
        print(f"style: below the baseline: {lower}")
        print("  To do: scripts/lint-style.py --update, and commit what it writes.")
    totals = ", ".join(f"{counts[rule]} {rule}" for rule in RULES)
    print(f"style: {totals}, {len(faults)} faults of commits")
    return 1 if risen or faults else 0


def read_baseline(root):
    """The counts that may not rise, and the commit after which subjects are looked at."""
    try:
        with open(os.path.join(root, BASELINE), encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        return {"commits_since": None, "counts": {}}


def update(root, baseline, counts, risen):
    """Writes the counts, unless one of them has risen."""
    if baseline["counts"] and risen:
        for rule in risen:
            print(f"FAIL {rule} rises from {baseline['counts'].get(rule, 0)} to {counts[rule]}.")
        print("  To do: lower them; or --update --raise, and say in the commit why.")
        return 1
    baseline["counts"] = counts
    with open(os.path.join(root, BASELINE), "w", encoding="utf-8") as file:
        json.dump(baseline, file, indent=2)
        file.write("\n")
    print(f"style: wrote {BASELINE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Builds a site with search from the README, docs/ and their neighbours, by mdbook.

The site is target/docs-site/index.html. `make docs` installs mdbook first.

    scripts/docs-site.py             build the site
    scripts/docs-site.py --source    only what mdbook reads: target/docs-book

The table of contents is made from the files that are there, so no page can be left out: PARTS
gives the order, a page that PARTS does not name comes last. Titles are the pages' first headings.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BOOK, SITE = ROOT / "target" / "docs-book", ROOT / "target" / "docs-site"
SOURCE = BOOK / "src"
TOOLS = pathlib.Path(os.environ.get("KESTREL_TOOLS", pathlib.Path.home() / ".cache/kestrel-tools"))

# Parts of the book: patterns below docs/, in order. README.md stands in front of all.
PARTS = [
    ("Start", ["getting-started.md", "features.md", "datasets.md", "demos.md", "semantics.md",
               "performance.md"]),
    ("Operate", ["operations.md", "operations/**/*.md", "store.md", "cache.md", "encryption.md"]),
    ("Look up", ["cli.md", "cli/**/*.md", "metrics.md", "glossary.md", "../CHANGELOG.md"]),
    ("Inside", ["../ARCHITECTURE.md", "design/**/*.md", "shortcut.md", "decisions/**/*.md"]),
    ("Formats", ["format.md", "format/**/*.md", "protocol.md"]),
    ("Work on it", ["../CONTRIBUTING.md", "style.md", "testing.md", "../SECURITY.md"]),
    ("More", ["**/*.md"]),
]

SETTINGS = """\
[book]
title = "KestrelFS"
language = "en"

[build]
build-dir = "{site}"
create-missing = false

[output.html]
no-section-label = true
"""

LINK = re.compile(r"\]\(([^)\s#]+)")


def title(page):
    """The first heading of a page; its name if it has none."""
    for line in page.read_text().splitlines():
        if line.startswith("# "):
            return line[2:].strip().replace("[", r"\[").replace("]", r"\]")
    return page.stem


def order(page):
    """A folder's README.md first, then its other pages as README.md names them, then by name."""
    first = page.parent / "README.md"
    place = first.read_text().find(f"]({page.name}") if first.exists() else -1
    return (page.parent, page.name != "README.md", place if place >= 0 else sys.maxsize, page.name)


def contents():
    """Parts with their pages, each page once."""
    seen, parts = set(), []
    for part, patterns in PARTS:
        pages = []
        for pattern in patterns:
            found = sorted((page.resolve() for page in (ROOT / "docs").glob(pattern)), key=order)
            pages += [page for page in found if page not in seen]
            seen.update(found)
        if pages:
            parts.append((part, pages))
    return parts


def summary(parts):
    lines = ["# Summary", "", "[KestrelFS](README.md)", ""]
    for part, pages in parts:
        lines += [f"# {part}", ""]
        for page in pages:
            path = page.relative_to(ROOT)
            # Pages of a folder stand below the folder's README.md, if it has one.
            below = page.name != "README.md" and page.parent / "README.md" in pages
            lines.append(f"{'  ' if below else ''}- [{title(page)}]({path})")
        lines.append("")
    return "\n".join(lines)


def copy(path):
    """Copies a file of the repository to the same place in the source."""
    target = SOURCE / path.relative_to(ROOT)
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)


def copy_page(page):
    """Copies a page, and the pictures and files of the repository to which it leads."""
    copy(page)
    text = page.read_text()
    for link in LINK.findall(text):
        path = (page.parent / link).resolve()
        if "://" not in link and path.is_file() and path.is_relative_to(ROOT):
            copy(path)
    # mdbook makes index.html of README.md, and does not follow with the links that lead there.
    text = re.sub(r"(\]\((?!https?:)[^)\s#]*?)README\.md", r"\1index.md", text)
    (SOURCE / page.relative_to(ROOT)).write_text(text)


def make_source():
    shutil.rmtree(BOOK, ignore_errors=True)
    parts = contents()
    pages = [ROOT / "README.md"] + [page for _, pages in parts for page in pages]
    for page in pages:
        copy_page(page)
    (SOURCE / "SUMMARY.md").write_text(summary(parts))
    (BOOK / "book.toml").write_text(SETTINGS.format(site=os.path.relpath(SITE, BOOK)))
    return len(pages)


def main():
    count = make_source()
    if "--source" in sys.argv[1:]:
        return
    shutil.rmtree(SITE, ignore_errors=True)
    path = f"{TOOLS / 'bin'}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(["mdbook", "build", str(BOOK)], check=True, env={**os.environ, "PATH": path})
    print(f"{count} pages: {SITE.relative_to(ROOT)}/index.html")


if __name__ == "__main__":
    main()

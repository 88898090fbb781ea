#!/usr/bin/env python3
"""Builds a site with search from the README, docs/ and their neighbours, by mdbook: target/docs-site/index.html.

    scripts/docs-site.py             build the site
    scripts/docs-site.py --source    only what mdbook reads: target/docs-src

The table of contents is made from the files that are there, so no page can be left out: PARTS gives the order, a page
that PARTS does not name comes last. Titles are the pages' first headings. `make docs` installs mdbook first.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCE, SITE = ROOT / "target" / "docs-src", ROOT / "target" / "docs-site"
TOOLS = pathlib.Path(os.environ.get("KESTREL_TOOLS", pathlib.Path.home() / ".cache" / "kestrel-tools"))

# Parts of the book: patterns relative to the repository, in order. README.md stands in front of all.
PARTS = [
    ("Start", ["docs/getting-started.md", "docs/features.md", "docs/demos.md", "docs/semantics.md", "docs/performance.md"]),
    ("Operate", ["docs/operations.md", "docs/operations/**/*.md", "docs/store.md", "docs/cache.md", "docs/encryption.md"]),
    ("Look up", ["docs/cli.md", "docs/cli/**/*.md", "docs/metrics.md", "docs/glossary.md", "CHANGELOG.md"]),
    ("How it is built", ["ARCHITECTURE.md", "docs/design/**/*.md", "docs/shortcut.md", "docs/decisions/**/*.md"]),
    ("Formats", ["docs/format.md", "docs/format/**/*.md", "docs/protocol.md"]),
    ("Work on it", ["CONTRIBUTING.md", "docs/style.md", "docs/testing.md", "SECURITY.md"]),
    ("More", ["docs/**/*.md"]),
]

BOOK = """\
[book]
title = "KestrelFS"
language = "en"
src = "."

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
    """A folder's README.md before its other pages, which follow by name."""
    return (page.parent, page.name != "README.md", page.name)


def contents():
    """Parts with their pages, each page once."""
    seen, parts = set(), []
    for part, patterns in PARTS:
        pages = []
        for pattern in patterns:
            pages += [page for page in sorted(ROOT.glob(pattern), key=order) if page not in seen and page not in pages]
        seen.update(pages)
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


def make_source():
    shutil.rmtree(SOURCE, ignore_errors=True)
    parts = contents()
    pages = [ROOT / "README.md"] + [page for _, pages in parts for page in pages]
    for page in pages:
        copy(page)
        # Pictures, and files of the repository to which a page leads.
        for link in LINK.findall(page.read_text()):
            path = (page.parent / link).resolve()
            if "://" not in link and path.is_file() and path.is_relative_to(ROOT):
                copy(path)
    (SOURCE / "SUMMARY.md").write_text(summary(parts))
    (SOURCE / "book.toml").write_text(BOOK.format(site=os.path.relpath(SITE, SOURCE)))
    return len(pages)


def main():
    count = make_source()
    if "--source" in sys.argv[1:]:
        return
    shutil.rmtree(SITE, ignore_errors=True)
    path = f"{TOOLS / 'bin'}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(["mdbook", "build", str(SOURCE)], check=True, env={**os.environ, "PATH": path})
    print(f"{count} pages: {SITE.relative_to(ROOT)}/index.html")


if __name__ == "__main__":
    main()

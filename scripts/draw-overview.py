#!/usr/bin/env python3
"""Draws docs/img/overview.svg, the picture of the README.

    scripts/draw-overview.py            write the picture
    scripts/draw-overview.py --check    fail if the picture in the repository is another one

It shows machines that mount, metadata nodes, and the object store. The picture paints its own
background, so it is readable wherever it is shown; colours follow the scheme, light or dark.
"""

import pathlib
import sys
from xml.sax.saxutils import escape

OUT = pathlib.Path(__file__).resolve().parent.parent / "docs" / "img" / "overview.svg"
WIDTH, HEIGHT = 880, 470

CAPTION = [
    "Embedded volume: one mount is the metadata node too; no server runs.",
    "Rows of a node lie on its disk, or in PostgreSQL, where another machine can go on with them.",
]
STYLE = """
  .page { fill: #ffffff; }
  .group { fill: #f6f8fa; stroke: #afb8c1; }
  .box { fill: #ffffff; stroke: #57606a; }
  .ours { fill: #ddf4ff; stroke: #0969da; }
  .line { stroke: #57606a; stroke-width: 1.6; fill: none; }
  .head { fill: #57606a; }
  text { fill: #1f2328; font: 13px system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
  .title { font-weight: 600; font-size: 14px; }
  .small { fill: #57606a; font-size: 12px; }
  @media (prefers-color-scheme: dark) {
    .page { fill: #0d1117; }
    .group { fill: #161b22; stroke: #3d444d; }
    .box { fill: #0d1117; stroke: #8b949e; }
    .ours { fill: #0c2d4f; stroke: #58a6ff; }
    .line { stroke: #9198a1; }
    .head { fill: #9198a1; }
    text { fill: #e6edf3; }
    .small { fill: #9198a1; }
  }
"""


class Picture:
    """Shapes and text in the order in which they are drawn."""

    def __init__(self):
        self.parts = []

    def box(self, kind, x, y, width, height):
        place = f'x="{x}" y="{y}" width="{width}" height="{height}"'
        self.parts.append(f'<rect class="{kind}" {place} rx="6"/>')

    def text(self, x, y, text, kind="", anchor="middle"):
        place = f'x="{x}" y="{y}" text-anchor="{anchor}"'
        kind = f' class="{kind}"' if kind else ""
        self.parts.append(f"<text{kind} {place}>{escape(text)}</text>")

    def labelled(self, kind, x, y, width, height, *lines):
        """A box with lines of text in its middle."""
        self.box(kind, x, y, width, height)
        first = y + height / 2 + 5 - 8.5 * (len(lines) - 1)
        for number, line in enumerate(lines):
            self.text(x + width / 2, first + 17 * number, line)

    def line(self, x1, y1, x2, y2, heads=""):
        """A line; `heads` are the ends that have an arrowhead: "start", "end" or both."""
        markers = "".join(f' marker-{end}="url(#head)"' for end in heads.split())
        self.parts.append(f'<line class="line" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"{markers}/>')

    def svg(self):
        body = "\n".join("  " + part for part in self.parts)
        size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
        return f"""<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">
  <title>KestrelFS: mounts, metadata nodes, object store</title>
  <desc>Made by scripts/draw-overview.py. Do not edit.</desc>
  <style>{STYLE}  </style>
  <defs>
    <marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7"
        orient="auto">
      <path class="head" d="M0 0 L10 5 L0 10 z"/>
    </marker>
  </defs>
{body}
</svg>
"""


def client(picture, x, title):
    picture.box("group", x, 20, 240, 172)
    picture.text(x + 120, 42, title, "title")
    picture.labelled("box", x + 15, 54, 210, 34, "applications")
    picture.line(x + 75, 88, x + 75, 110)
    picture.labelled("ours", x + 15, 110, 120, 68, "kestrel mount", "(FUSE)")
    picture.labelled("box", x + 150, 110, 75, 68, "cache", "on disk")
    picture.line(x + 135, 144, x + 150, 144)


def draw():
    picture = Picture()
    picture.box("page", 0, 0, WIDTH, HEIGHT)
    client(picture, 40, "machine 1")
    client(picture, 320, "machine 2")
    picture.box("group", 600, 20, 240, 172)
    picture.text(720, 102, "machine 3, …", "title")
    picture.text(720, 122, "any number of mounts", "small")

    # The network: every machine reaches the metadata nodes and the store.
    for x in (160, 440, 720):
        picture.line(x, 192, x, 208)
    picture.line(160, 208, 720, 208)
    picture.line(200, 208, 200, 268, "end")
    picture.text(212, 234, "names, attributes, locks", anchor="start")
    picture.text(212, 252, "open, stat, create: one request each", "small", anchor="start")
    picture.line(690, 208, 690, 268, "end")
    picture.text(678, 234, "file data", anchor="end")
    picture.text(678, 252, "a checksum on every 64 KiB", "small", anchor="end")

    picture.box("group", 40, 270, 470, 140)
    picture.text(275, 292, "metadata nodes", "title")
    for number in (1, 2, 3):
        x = 55 + 155 * (number - 1)
        picture.labelled("ours", x, 304, 130, 46, "kestrel serve", f"node {number}")
        picture.labelled("box", x, 370, 130, 28, "log and rows")
        picture.line(x + 65, 350, x + 65, 370)
        if number < 3:
            picture.line(x + 130, 327, x + 155, 327)

    picture.box("group", 540, 270, 300, 140)
    picture.text(690, 292, "object store: S3 or a directory", "title")
    picture.labelled("box", 555, 304, 130, 94, "packs of", "small files")
    picture.labelled("box", 695, 304, 130, 94, "blocks of", "large files")

    for number, line in enumerate(CAPTION):
        picture.text(440, 436 + 18 * number, line, "small")
    return picture.svg()


def main():
    svg = draw()
    if "--check" in sys.argv[1:]:
        if not OUT.exists() or OUT.read_text() != svg:
            sys.exit(f"{OUT} is not what scripts/draw-overview.py draws; run it")
        return
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(svg)


if __name__ == "__main__":
    main()

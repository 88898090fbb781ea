#!/usr/bin/env python3
"""Tests of scripts/lint-style.py, lint-crates.py and lint-modules.py. `make lint` runs them."""

import importlib.util
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.dont_write_bytecode = True


def script(name):
    """A script as a module."""
    path = os.path.join(ROOT, "scripts", name)
    spec = importlib.util.spec_from_file_location(name.replace("-", "_").removesuffix(".py"), path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


style = script("lint-style.py")
crates = script("lint-crates.py")
modules = script("lint-modules.py")

CARGO = '[package]\nname = "x"\n'


def found(files, rule):
    """Where a rule finds something, as path:line, and what."""
    files = {path: text.encode() for path, text in files.items()}
    return [
        (f"{one.path}:{one.line}", one.text)
        for one in style.scan(style.Tree(files))
        if one.rule == rule
    ]


def where(files, rule):
    """Where a rule finds something."""
    return [place for place, _ in found(files, rule)]


class Words(unittest.TestCase):
    """Pronouns of people."""

    def test_comments_and_not_code(self):
        text = 'fn who() {} // whoever asks\n/// Who holds it.\nlet x = \'"\'; // whose\n'
        places = where({"crates/x/Cargo.toml": CARGO, "crates/x/src/a.rs": text}, "who-comments")
        self.assertEqual(places, [f"crates/x/src/a.rs:{line}" for line in (1, 2, 3)])

    def test_strings_are_messages(self):
        files = {"crates/x/Cargo.toml": CARGO}
        files["crates/x/src/a.rs"] = 'let a = "who";\nlet b = "ask who has // it";\n'
        self.assertEqual(where(files, "who-messages"), ["crates/x/src/a.rs:2"])
        self.assertEqual(where(files, "who-comments"), [])

    def test_lifetimes_are_no_characters(self):
        files = {"crates/x/Cargo.toml": CARGO}
        files["crates/x/src/a.rs"] = "fn f<'a>(x: &'a str) {} // who\nlet c = '\\''; // who\n"
        self.assertEqual(len(where(files, "who-comments")), 2)

    def test_documents_without_blocks(self):
        text = "Who asks.\n\n    ```sh\n    who\n    ```\n\nNot *who*.\n"
        self.assertEqual(where({"docs/a.md": text}, "who-docs"), ["docs/a.md:1"])


class Columns(unittest.TestCase):
    """The rules columns-*."""

    def test_limits(self):
        files = {
            "scripts/a.py": "#" * 100 + "\n" + "#" * 101 + "\n",
            "docs/a.md": "x " * 60 + "\n" + "x " * 61 + "\n| " + "x " * 80 + "|\n",
        }
        self.assertEqual(where(files, "columns-code"), ["scripts/a.py:2"])
        self.assertEqual(where(files, "columns-docs"), ["docs/a.md:2"])


class Names(unittest.TestCase):
    """The rules test-names and type-names."""

    def test_names_of_tests(self):
        text = f"#[test]\n#[ignore]\n// why\nfn {'a' * 51}() {{}}\n\n"
        text += f"#[test]\nfn {'b' * 50}() {{}}\nfn {'c' * 60}() {{}}\n"
        files = {"crates/x/Cargo.toml": CARGO, "crates/x/tests/t.rs": text}
        self.assertEqual(where(files, "test-names"), ["crates/x/tests/t.rs:4"])

    def test_types_of_more_than_three_crates(self):
        files = {}
        for crate in "abcd":
            files[f"crates/{crate}/Cargo.toml"] = CARGO
            text = "pub struct Plan;\npub(crate) enum Error {}\nstruct Step;\n"
            files[f"crates/{crate}/src/lib.rs"] = text
        self.assertEqual([text.split(":")[0] for _, text in found(files, "type-names")], ["Plan"])
        del files["crates/d/src/lib.rs"]
        self.assertEqual(found(files, "type-names"), [])


class References(unittest.TestCase):
    """The rules references and links."""

    files = {"docs/a.md": "# A\n\n## 2. Rows\n\n### 2.1 Of files\n", "crates/x/Cargo.toml": CARGO}

    def check(self, text):
        files = {**self.files, "crates/x/src/a.rs": text}
        return [text for _, text in found(files, "references")]

    def test_documents_and_sections(self):
        for good in ("docs/a.md", "`docs/a.md` §2", "docs/a.md §2.1", '`docs/a.md`, "Rows"'):
            self.assertEqual(self.check(f"/// See {good}.\n"), [], good)
        self.assertEqual(self.check("//! See `docs/b.md`.\n"), ["there is no docs/b.md"])
        self.assertEqual(self.check("// docs/a.md §3\n"), ["docs/a.md has no section 3"])
        self.assertEqual(self.check('// (docs/a.md, "Old")\n'), ['docs/a.md has no section "Old"'])

    def test_sections_on_the_next_line(self):
        self.assertEqual(self.check("/// See `docs/a.md`\n/// §2.1.\n"), [])
        missing = self.check("/// See `docs/a.md`\n/// §9.\n")
        self.assertEqual(missing, ["docs/a.md has no section 9"])

    def test_other_peoples_documents(self):
        self.assertEqual(self.check("// https://example.org/doc/b.md\n"), [])
        self.assertEqual(self.check('let name = "b.md";\n'), [])

    def test_files_and_functions(self):
        text = "`crates/x/src/a.rs::go` `crates/x/src/*.rs`\n"
        text += "`crates/x/src/{a,b}.rs` `crates/x/src/a.rs::stop` `crates/*/src`\n"
        files = {**self.files, "crates/x/src/a.rs": "fn go() {}\n", "docs/b.md": text}
        missing = [
            "there is no crates/x/src/{a,b}.rs",
            "crates/x/src/a.rs has no stop",
            "there is no crates/*/src",
        ]
        self.assertEqual([text for _, text in found(files, "references")], missing)

    def test_walks_of_the_architecture(self):
        text = "1. `a.rs` `go`, `stop`: and `b.rs` `go`.\n"
        files = {**self.files, "crates/x/src/a.rs": "fn go() {}\n", "ARCHITECTURE.md": text}
        missing = ["a.rs has no function stop", "there is no b.rs", "b.rs has no function go"]
        self.assertEqual([text for _, text in found(files, "references")], missing)

    def test_links_and_anchors(self):
        text = "[a](a.md) [b](a.md#2-rows) [c](#no) [d](c.md) [e](https://x.org/c.md) `[f](g)`\n"
        text += "\n# Here\n[g](#here)\n"
        places = found({**self.files, "docs/b.md": text}, "links")
        self.assertEqual([text.split(":")[0] for _, text in places], ["#no", "c.md"])

    def test_anchors_below_indented_blocks(self):
        text = "- a\n\n  ```\n  x\n  ```\n\n## Below\n\n[a](#below)\n"
        self.assertEqual(found({"docs/b.md": text}, "links"), [])


class Subjects(unittest.TestCase):
    """Subjects of commits."""

    def test_good(self):
        for subject in ("rpc: retry once", "docs, ha: say why", "tests/ha: feed", 'Revert "x"'):
            self.assertEqual(style.subject_faults(subject), [], subject)

    def test_bad(self):
        bad = ("retry", "rpc: Retry", "rpc: retried it", "rpc: retry.", "rpc: " + "a" * 70)
        for subject in bad:
            self.assertEqual(len(style.subject_faults(subject)), 1, subject)


class Run(unittest.TestCase):
    """The script on a repository."""

    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.addCleanup(self.dir.cleanup)
        self.git("init", "-q")
        self.write("docs/a.md", "Who asks.\n")
        self.baseline("null")
        self.commit("docs: begin")

    def write(self, path, text):
        path = os.path.join(self.dir.name, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def baseline(self, commit):
        text = '{"commits_since": %s, "counts": {"who-docs": 1}}' % commit
        self.write("scripts/lint-baseline.json", text)

    def git(self, *args):
        names = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        subprocess.run(["git", *names, *args], cwd=self.dir.name, check=True, capture_output=True)

    def commit(self, subject):
        self.git("add", "-A")
        self.git("commit", "-qm", subject)

    def lint(self, *args):
        command = [os.path.join(ROOT, "scripts/lint-style.py"), "--root", self.dir.name, *args]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    def test_as_the_baseline_says(self):
        self.assertEqual(self.lint()[0], 0)

    def test_what_is_new_is_named(self):
        self.write("docs/a.md", "Begins.\n\nWho asks.\n\nWhoever answers.\n")
        code, said = self.lint()
        self.assertEqual(code, 1)
        self.assertIn("docs/a.md:5: Whoever answers.", said)
        self.assertNotIn("Who asks.", said)

    def test_the_baseline_falls_only(self):
        self.write("docs/a.md", "A client asks.\n")
        self.assertEqual(self.lint()[0], 0)
        self.assertEqual(self.lint("--update")[0], 0)
        self.write("docs/a.md", "Who asks.\n")
        self.assertEqual(self.lint()[0], 1)
        self.assertEqual(self.lint("--update")[0], 1)
        self.assertEqual(self.lint("--update", "--raise")[0], 0)
        self.assertEqual(self.lint()[0], 0)

    def test_subjects_since_a_commit(self):
        self.baseline('"HEAD~1"')
        self.commit("docs: Begin.")
        code, said = self.lint()
        self.assertEqual((code, said.count("FAIL commit")), (1, 2))


class Arrows(unittest.TestCase):
    """lint-crates.py."""

    text = "[top]\na: b c\n\n[bottom]\n# b is below\nb: c\nc:\n"

    def faults(self, **found):
        layers, listed = crates.parse(self.text)
        found = {crate: set(targets.split()) for crate, targets in found.items()}
        return [line.split(".")[0] for line in crates.faults(layers, listed, found)]

    def test_the_list_as_it_is(self):
        self.assertEqual(self.faults(a="b c", b="c", c=""), [])

    def test_new_gone_and_upward_arrows(self):
        self.assertEqual(self.faults(a="b", b="c", c=""), ["a -> c is gone"])
        self.assertIn("c -> a points up", self.faults(a="b c", b="c", c="a")[0])
        self.assertIn("b -> b points up", self.faults(a="b c", b="b c", c="")[0])
        self.text = "[top]\na: b\nb: c\nc:\n"
        self.assertEqual(self.faults(a="b c", b="c", c=""), ["a -> c is new"])

    def test_new_and_removed_crates(self):
        self.assertIn("d is not in", self.faults(a="b c", b="c", c="", d="")[0])
        self.assertIn("c is in", self.faults(a="b", b="")[0])

    def test_picture_without_what_follows(self):
        layers, listed = crates.parse(self.text)
        lines = crates.picture(layers, listed)
        self.assertEqual(lines, ["top     a  ─▶ b", "bottom  b  ─▶ c", "        c"])
        page = f"before\n{crates.BEGIN}\nold\n{crates.END}\nafter\n"
        new = crates.drawn(page, lines)
        self.assertEqual(crates.drawn(new, lines), new)
        self.assertTrue(new.startswith("before\n") and new.endswith("\nafter\n"))
        self.assertNotIn("old", new)

    def test_acceptance_keeps_the_order(self):
        new = crates.accepted(self.text, {"a": {"c", "b"}, "b": set(), "c": set()})
        self.assertEqual(new, self.text.replace("b: c", "b:"))

    def test_what_cargo_says(self):
        data = {
            "packages": [
                {
                    "name": "k-a",
                    "manifest_path": "/w/crates/x/a/Cargo.toml",
                    "dependencies": [
                        {"name": "k-b", "kind": None},
                        {"name": "serde", "kind": None},
                        {"name": "k-c", "kind": "dev"},
                    ],
                },
                {"name": "k-b", "manifest_path": "/w/crates/b/Cargo.toml", "dependencies": []},
                {"name": "k-c", "manifest_path": "/w/crates/c/Cargo.toml", "dependencies": []},
            ]
        }
        self.assertEqual(crates.arrows_of(data, "/w"), {"x/a": {"b"}, "b": set(), "c": set()})


class Modules(unittest.TestCase):
    """lint-modules.py."""

    def circles(self, **files):
        """What circles a crate with these files has, by directory."""
        with tempfile.TemporaryDirectory() as root:
            for name, text in files.items():
                path = os.path.join(root, "crates/x/src", name.replace("__", "/") + ".rs")
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
            graphs = modules.Crate(root, "x").graphs()
        found = {where: modules.circles(graph) for where, graph in graphs.items()}
        return {where: all_of for where, all_of in found.items() if all_of}

    def test_two_modules(self):
        files = {"a": "use crate::b::B;", "b": "fn f() { crate::a::f() }", "c": "use crate::a;"}
        self.assertEqual(self.circles(**files), {"x": [["a", "b"]]})
        self.assertEqual(self.circles(**{**files, "b": "fn f() {}"}), {})

    def test_no_code(self):
        for text in (
            "// crate::a\n",
            'const A: &str = "crate::a::f()";',
            "#[cfg(test)]\nmod tests { use crate::a; }",
            "#[cfg(test)] use crate::a::{A,\n B};",
            "pub(in crate::a) fn f() {}",
        ):
            self.assertEqual(self.circles(a="use crate::b;", b=text), {}, text)

    def test_files_of_tests(self):
        files = {"a": "use crate::b;", "b": "#[cfg(test)]\nmod tests;", "b__tests": "use crate::a;"}
        self.assertEqual(self.circles(**files), {})

    def test_a_directory_and_its_root(self):
        files = {"a": "mod b; mod c; use self::b::B; pub struct A;", "a__b": "use super::A;"}
        self.assertEqual(self.circles(**files, a__c="use super::b::B;"), {})
        found = self.circles(**{**files, "a__b": "use super::c::C;"}, a__c="use super::b::B;")
        self.assertEqual(found, {"x/a": [["b", "c"]]})

    def test_reexports_and_imported_names(self):
        root = "pub use b::{self, B as Name}; use crate::c::*;"
        found = self.circles(lib=root, a="use crate::Name;", b="use crate::a::{x, y::Z};", c="")
        self.assertEqual(found, {"x": [["a", "b"]]})
        files = {"a": "use crate::d; fn f() { d::e::g() }", "d": "mod e;"}
        found = self.circles(**files, d__e="use super::super::a;")
        self.assertEqual(found, {"x": [["a", "d"]]})
        files = {"d": "use crate::d;", "d__a": "use crate::d; fn f() { d::b::g() }"}
        self.assertEqual(self.circles(**files, d__b="use super::a;"), {"x/d": [["a", "b"]]})

    def test_globs_lead_where_names_lead(self):
        files = {"a": "pub use crate::c::C;", "c": "use crate::b;"}
        found = self.circles(**files, b="use crate::a::*; fn f(_: C) {}")
        self.assertEqual(found, {"x": [["a", "b", "c"]]})
        self.assertEqual(self.circles(**files, b="fn f(_: C) {}"), {})


if __name__ == "__main__":
    unittest.main()

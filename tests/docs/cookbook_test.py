"""Runs the commands of pages, each page as a shell session in a folder of its own, and compares
what they print with what the page says.

    cookbook_test.py --programs FOLDER [--root DIR] [--update] [PAGE...]

FOLDER has the programs at the places where Bazel puts them. --update writes what is printed now
into the pages, where it differs by more than numbers, times and ids. See CONTRIBUTING.md for what
stands above a block.
"""

import argparse
import collections
import difflib
import os
import pathlib
import shutil
import sys
import tempfile
import unittest

import pages
import shell

ROOT = None
PROGRAMS = None
UPDATE = False
ONLY = ()

# The pages that are run. The blocks of all others are looked at only.
PAGES = ("README.md", "docs/cookbook.md", "docs/operations.md", "docs/quickstart.md")

# What pages call the runtime directory of root.
RUNTIME = "/run/torpor"
SELF_CONTAINED = {"cookbook.md", "operations.md"}  # say --driver=host themselves


def documents():
    for name in ONLY or PAGES:
        yield ROOT / name


def has_gpu():
    return any(pathlib.Path("/dev").glob("nvidia[0-9]*"))


class Run:
    """One page, in one way."""

    def __init__(self, page, way, folder):
        self._page = page
        self._way = way
        self._runtime = f"{folder}/run"
        work = pathlib.Path(folder) / "work"
        work.mkdir()
        for name in ("client", "deploy", "docs", "tests", ".deps"):
            (work / name).symlink_to(ROOT / name)
        (work / "bazel-bin").symlink_to(PROGRAMS)
        places = [PROGRAMS / place for place in ("daemon", "daemon/keeper", "client/ctl", "client/demo")]
        path = ":".join([*map(str, places), str(ROOT / ".deps/bin"), os.environ["PATH"]])
        environment = {"PATH": path, "HOME": str(work), "TORPOR_RUNTIME_DIR": self._runtime,
                       "TMPDIR": folder, "LC_ALL": "C.UTF-8", "USER": os.environ.get("USER", "root")}
        self.counts = collections.Counter()
        self.differences = []  # (block, documented, actual)
        self._shell = shell.Shell(work, environment)

    def close(self):
        self._shell.close()

    def run(self, blocks):
        output = None  # of the last `sh` block, which the next `text` block may show
        for block in blocks:
            if block.way not in ("", self._way):
                continue
            if block.language in pages.COMMANDS:
                if "setup" in block.marks:
                    self._shell.run(self._here(block.marks["setup"]))
                if "not run" in block.marks:
                    self.counts["not run: " + block.marks["not run"]] += 1
                    output = None
                    continue
                self.counts["run"] += 1
                try:
                    output = self._run(block)
                except shell.Failed as error:
                    raise AssertionError(f"{block.place}: {error}") from None
            elif block.language == "text" and "not output" not in block.marks and output is not None:
                self._compare(block, block.text, output)
                output = None

    def _run(self, block):
        """The output of a `sh` block; that of a `console` block is compared here."""
        if block.language == "sh":
            if "until" in block.marks:
                return self._there(
                    self._shell.run_in_background(self._here(block.text), block.marks["until"])
                )
            return self._there(self._shell.run(self._here(block.text), "fails" in block.marks))
        written = ""
        all_of_it = pages.commands(block.text)
        for number, (command, _) in enumerate(all_of_it, 1):
            fails = "fails" in block.marks and number == len(all_of_it)
            prompt = "$ " + command.replace("\n", "\n> ") + "\n"
            written += prompt + self._there(self._shell.run(self._here(command), fails))
        self._compare(block, block.text, written)
        return None

    def _compare(self, block, documented, actual):
        self.counts["outputs"] += 1
        if not pages.matches(documented, actual):
            self.differences.append((block, documented, actual))

    def _here(self, text):
        return text.replace(RUNTIME, self._runtime)

    def _there(self, text):
        return text.replace(self._runtime, RUNTIME)


def told(block, documented, actual):
    lines = difflib.unified_diff(
        pages.masked(documented).splitlines(), pages.masked(actual).splitlines(),
        "documented", "printed", lineterm="",
    )
    return f"{block.place}:\n" + "\n".join(lines)


def update(page, differences):
    lines = page.read_text(encoding="utf-8").split("\n")
    for block, documented, actual in sorted(differences, key=lambda it: -it[0].line):
        count = documented.count("\n")
        lines[block.line:block.line + count] = actual.rstrip("\n").split("\n")
    page.write_text("\n".join(lines), encoding="utf-8")


class Matching(unittest.TestCase):
    """What counts as the documented output."""

    def test_numbers_units_and_widths_may_differ(self):
        self.assertTrue(pages.matches("w-1  64.00 MiB  1.2 GB/s  83ms ok", "w-12 1.00 GiB 5 B/s 1m30s ok"))
        self.assertTrue(pages.matches('"size": "12", "of": "a:b"', '"size":  "7",  "of": "a:b"'))
        self.assertTrue(pages.matches("at 0x7f00", "at 0x1234abcd"))
        self.assertTrue(pages.matches("16.00\nGiB asked", "1 B asked"))

    def test_words_may_not(self):
        self.assertFalse(pages.matches("w-1 ok", "w-1 failed"))
        self.assertFalse(pages.matches('"device_bytes": "1"', '"host_bytes": "1"'))
        self.assertFalse(pages.matches("a b", "a b c"))
        self.assertFalse(pages.matches("a b", ""))
        self.assertFalse(pages.matches("1.2 a", "- a"))

    def test_dots_stand_for_anything(self):
        for documented in ("...", "a ... d", "a b ... c d", "... c d", "a ... ... d", "a ... b ... d"):
            self.assertTrue(pages.matches(documented, "a b c d"), documented)
        for documented in ("a ... c", "b ... d", "a ... c b ... d", "a b c ... c d", "... e ..."):
            self.assertFalse(pages.matches(documented, "a b c d"), documented)


class Commands(unittest.TestCase):
    def test_every_block_is_known(self):
        for page in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]):
            for block in pages.blocks(page):
                with self.subTest(block=block.place):
                    self.assertIsNone(pages.problem_of(block))

    def test_commands_run(self):
        total = collections.Counter()
        for page in documents():
            name = page.relative_to(ROOT).as_posix()
            blocks = pages.blocks(page)
            if not any(block.language in pages.COMMANDS for block in blocks):
                continue
            ways = sorted({block.way for block in blocks} - {""}) or [""]
            for way in ways:
                with self.subTest(page=name, way=way):
                    # Read again: the other way's run may have updated it.
                    total += self.run_page(page, pages.blocks(page), way)
        for what, count in sorted(total.items()):
            print(f"{count:4} {what}")

    def run_page(self, page, blocks, way):
        if has_gpu() and page.name not in SELF_CONTAINED:
            self.skipTest("its commands take the GPU here, its outputs are those of the host driver")
        folder = tempfile.mkdtemp(prefix="torpor.")
        run = Run(page, way, folder)
        try:
            run.run(blocks)
        finally:
            run.close()
            shutil.rmtree(folder, ignore_errors=True)
        if UPDATE:
            update(page, run.differences)
        elif run.differences:
            self.fail(
                "\n".join(told(*difference) for difference in run.differences)
                + "\nif that is right: tests/docs/update.sh"
            )
        return run.counts


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", default=pathlib.Path(__file__).resolve().parents[2])
    parser.add_argument("--programs", required=True)
    parser.add_argument("--update", action="store_true")
    parser.add_argument("pages", nargs="*")
    options = parser.parse_args()
    global ROOT, PROGRAMS, UPDATE, ONLY
    ROOT = pathlib.Path(options.root)
    PROGRAMS = pathlib.Path(options.programs).resolve()
    UPDATE = options.update
    ONLY = tuple(options.pages)
    unittest.main(argv=[sys.argv[0]], verbosity=2)


if __name__ == "__main__":
    main()

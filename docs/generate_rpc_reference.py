#!/usr/bin/env python3
"""Makes docs/rpc.md from proto/torpor/v1/memory_service.proto and its comments.

    generate_rpc_reference.py [--check]     --check: exit status 1 if the page is not up to date

It reads the .proto file as buf formats it: a declaration on a line, comments on lines above it.
"""

import argparse
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
SOURCE = "proto/torpor/v1/memory_service.proto"
PAGE = "docs/rpc.md"
HEAD = """# RPCs

Made by `docs/generate_rpc_reference.py` from [the .proto file](../{source}): change that one.
What the calls mean together is in the [reference](reference.md#rpcs), reasons of errors are in [errors](errors.md),
calls to try in the [cookbook](cookbook.md).
"""
FIELD = re.compile(r"(?:(repeated) )?([\w.]+|map<\w+, [\w.]+>) (\w+) = (\d+);")
RPC = re.compile(r"rpc (\w+)\(([\w.]+)\) returns \((stream )?([\w.]+)\);")
VALUE = re.compile(r"(\w+) = (\d+);")


class Parser:
    """Turns declarations into rows and sections, in the file's order."""

    def __init__(self, text):
        self.sections = []  # (kind, name, comment, rows)
        self._comment = []
        self._open = []  # blocks that are not closed yet
        for number, line in enumerate(text.splitlines(), 1):
            self._take(line.strip(), number)

    def _take(self, line, number):
        if line.startswith("//"):
            self._comment.append(line[2:].removeprefix(" "))
            return
        comment, self._comment = self._comment, []
        if not line or re.match(r"(syntax|package|import|option) ?", line):
            return
        if line == "}":
            self._open.pop()
            return
        block = re.fullmatch(r"(service|message|enum|oneof) (\w+) \{(\})?", line)
        if block:
            kind, name, closed = block.groups()
            if kind != "oneof":
                self.sections.append((kind, name, comment, []))
            if not closed:
                self._open.append((kind, name))
            return
        kind = self._open[-1][0] if self._open else ""
        match = {"service": RPC, "message": FIELD, "oneof": FIELD, "enum": VALUE}.get(kind, RPC)
        found = match.fullmatch(line)
        if not found:
            sys.exit(f"{SOURCE}:{number}: not understood: {line}")
        of = self._open[-1][1] if kind == "oneof" else ""
        self.sections[-1][3].append((found.groups(), comment, of))


def paragraph(comment):
    return " ".join(comment)


def cell(comment, of=""):
    return " ".join(([f"One of `{of}`."] if of else []) + comment).replace("|", "\\|")


class Writer:
    def __init__(self, sections):
        self._names = {name for kind, name, _, _ in sections if kind != "service"}

    def _type(self, name):
        key_and_value = re.fullmatch(r"map<(\w+), ([\w.]+)>", name)
        if key_and_value:
            return f"map of {key_and_value[1]} to {self._type(key_and_value[2])}"
        return f"[{name}](#{name.lower()})" if name in self._names else f"`{name}`"

    def section(self, kind, name, comment, rows):
        yield f"\n## {name}\n"
        if comment:
            yield paragraph(comment) + "\n" if kind != "service" else "\n".join(comment) + "\n"
        if kind == "service":
            yield "| RPC | request | response |\n| --- | --- | --- |"
            for (rpc, request, stream, response), _, _ in rows:
                yield (f"| [{rpc}](#{rpc.lower()}) | {self._type(request)} | "
                       f"{'stream of ' if stream else ''}{self._type(response)} |")
            for (rpc, *_), about, _ in rows:
                yield f"\n### {rpc}\n\n" + "\n".join(about)
        elif kind == "enum":
            yield "| value | number | meaning |\n| --- | ---: | --- |"
            for (value, number), about, _ in rows:
                yield f"| `{value}` | {number} | {cell(about)} |"
        elif rows:
            yield "| field | type | number | meaning |\n| --- | --- | ---: | --- |"
            for (repeated, of_type, field, number), about, of in rows:
                kind_of = ("repeated " if repeated else "") + self._type(of_type)
                yield f"| `{field}` | {kind_of} | {number} | {cell(about, of)} |"
        else:
            yield "No fields."


def page():
    sections = Parser((ROOT / SOURCE).read_text(encoding="utf-8")).sections
    writer = Writer(sections)
    lines = [HEAD.format(source=SOURCE).rstrip("\n")]
    for section in sections:
        lines += writer.section(*section)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)) + "\n"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    made = page()
    if not parser.parse_args().check:
        (ROOT / PAGE).write_text(made, encoding="utf-8")
    elif not (ROOT / PAGE).exists() or (ROOT / PAGE).read_text(encoding="utf-8") != made:
        sys.exit(f"{PAGE} is not up to date: run docs/generate_rpc_reference.py")


if __name__ == "__main__":
    main()

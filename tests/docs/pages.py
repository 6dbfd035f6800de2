"""Pages in Markdown: their blocks, their links' anchors, and whether an output is the documented one."""

import dataclasses
import pathlib
import re

# What a block may be fenced with. `sh` is run, `console` is run and its output compared, `text`
# behind a `sh` that was run is that one's output.
LANGUAGES = {"console", "cpp", "ini", "json", "proto", "python", "sh", "text", "yaml"}
COMMANDS = ("sh", "console")

# Why a block with commands may stay unrun: what stands behind `not run:`, word for word.
NOT_RUN = {
    "builds the repository",
    "installs software",
    "needs a cluster",
    "needs a GPU",
    "needs root and changes the system",
    "needs systemd",
    "takes hours",
    "has its own test",
    "a form, not a command",
}

# `capture` is of docs/capture_top.py.
MARK = re.compile(r"(not run|until|setup|fails|not output|capture)(?::\s*(.*))?", re.DOTALL)


class Malformed(Exception):
    """A page that says something that is not known here."""


@dataclasses.dataclass
class Block:
    """One fenced block; `line` is that of its first fence, counted from 1."""

    page: pathlib.Path
    line: int
    language: str
    way: str  # the word behind the language: the block is run only in the run of that name
    text: str
    marks: dict  # of the comments above it: {"not run": "needs a GPU"}

    @property
    def place(self):
        return f"{self.page.name}:{self.line}"


def blocks(page):
    """All fenced blocks of a page. Comments between blocks are marks of the next one."""
    found, marks = [], {}
    lines = page.read_text(encoding="utf-8").split("\n")
    index = 0
    while index < len(lines):
        start = index
        if lines[index].startswith("<!--"):
            while "-->" not in lines[index]:
                index += 1
            comment = "\n".join(lines[start:index + 1]).strip()[4:-3].strip()
            match = MARK.fullmatch(comment)
            if not match:
                raise Malformed(f"{page.name}:{start + 1}: unknown comment: {comment}")
            marks[match.group(1)] = match.group(2) or ""
        elif lines[index].lstrip().startswith("```"):
            words = lines[index].strip()[3:].split()
            indent = len(lines[index]) - len(lines[index].lstrip())
            index += 1
            while lines[index].strip() != "```":
                index += 1
            text = "".join(line[indent:] + "\n" for line in lines[start + 1:index])
            found.append(Block(page, start + 1, *(words + ["", ""])[:2], text, marks))
            marks = {}
        index += 1
    if marks:
        raise Malformed(f"{page.name}: {marks} stands above no block")
    return found


def problem_of(block):
    """Why a block cannot be handled, or None."""
    if block.language not in LANGUAGES:
        return f"fenced with {block.language or 'no language'}"
    if block.language in COMMANDS and block.marks.get("not run", next(iter(NOT_RUN))) not in NOT_RUN:
        return f"not run for an unknown reason: {block.marks['not run']}"
    if block.language not in COMMANDS and block.marks.keys() - {"not output", "capture"}:
        return f"{block.language} is not run anyway"
    return None


def commands(text):
    """[(command, its documented output)] of a `console` block; `$ ` begins a command, `> ` goes on."""
    found = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append([line[2:], ""])
        elif not found:
            raise Malformed(f"a console block begins with an output: {line}")
        elif line.startswith("> ") and not found[-1][1]:
            found[-1][0] += "\n" + line[2:]
        else:
            found[-1][1] += line + "\n"
    return found


# What differs from run to run, and what stands for it.
MASKS = (
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?Z?", "#time"),
    (r"\b\d\d:\d\d:\d\d(\.\d+)?\b", "#time"),
    (r"\b[0-9a-f]{16}:\d+", "#cursor"),
    (r"\b(GPU-|MIG-)?[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "#uuid"),
    (r"\b0x[0-9a-f]+\b", "#address"),
    (r"/tmp/[\w./-]+", "#path"),
    # A number and its unit, the unit maybe on the next line, and durations as 1m30s.
    (r"(?<![\w.])-?(\d+(\.\d+)?(\s?([KMGT]iB|[kMGT]?B(/s)?)\b|(?:[nmu]?s|m|h|d|%)(?![a-z]))?)+", "#"),
    (r"(?<=[a-z]-)\d+", "#"),
)


def masked(text):
    for pattern, word in MASKS:
        text = re.sub(pattern, word, text)
    return text


def matches(documented, actual):
    """Whether `actual` is what is documented: but for what differs from run to run, for white space,
    and for what `...` stands for in place of words or lines."""
    wanted, words = masked(documented).split(), masked(actual).split()
    parts = [[]]
    for word in wanted:
        if word == "...":
            parts.append([])
        else:
            parts[-1].append(word)
    if len(parts) == 1:
        return wanted == words
    first, last = parts[0], parts[-1]
    if len(first) + len(last) > len(words):
        return False
    if words[:len(first)] != first or words[len(words) - len(last):] != last:
        return False
    position, end = len(first), len(words) - len(last)
    for part in parts[1:-1]:
        while words[position:position + len(part)] != part:
            position += 1
            if position + len(part) > end:
                return False
        position += len(part)
    return position <= end

"""The documents say what the sources say: reasons, flags, fields, links, examples.

    docs_test.py [--torpord PROGRAM] [--torporctl PROGRAM] [--root DIR]

With the programs, their --help is compared with docs/reference.md as well.
"""

import argparse
import pathlib
import re
import subprocess
import sys
import unittest

ROOT = None
PROGRAMS = {}

# Upper-case strings of the sources that are no reasons.
NO_REASONS = {
    "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "DATA_LOSS", "POLICY_DISCARD",
    "GRPC_VERBOSITY", "NO_COLOR", "SCM_RIGHTS",
}
ENVIRONMENT = re.compile(
    r"(CUDA_MPS|CUDA_VISIBLE|KUBERNETES|LD|NOTIFY|NVIDIA|TMS|TORPOR|WATCHDOG|XDG)_[A-Z_]+"
)
# Reasons with a section for all of them.
FAMILIES = {"CUDA_ERROR_": "CUDA_ERROR_*", "ERRNO_": "ERRNO_*"}

NOT_PRODUCT = re.compile(
    r"_test\.cc$|_test\.c$|fake_daemon|_fixture|/driver_contract|/contract_worker|_matchers\.h$"
    r"|^client/demo/"
)
CODE_OF = {
    "InvalidArgument": "INVALID_ARGUMENT", "NotFound": "NOT_FOUND",
    "FailedPrecondition": "FAILED_PRECONDITION", "ResourceExhausted": "RESOURCE_EXHAUSTED",
    "Aborted": "ABORTED", "DeadlineExceeded": "DEADLINE_EXCEEDED", "Unavailable": "UNAVAILABLE",
    "PermissionDenied": "PERMISSION_DENIED", "Internal": "INTERNAL", "Cancelled": "CANCELLED",
    "Unimplemented": "UNIMPLEMENTED",
}


def read(path):
    return (ROOT / path).read_text(encoding="utf-8")


def sources():
    for folder in ("lib", "daemon", "client"):
        for path in sorted((ROOT / folder).rglob("*")):
            name = path.relative_to(ROOT).as_posix()
            if path.suffix in (".cc", ".h", ".hpp") and not NOT_PRODUCT.search(name):
                yield name, re.sub(r"(?m)//.*$", "", path.read_text(encoding="utf-8"))


def first_argument(text, start):
    """The text from `start`, which is behind a parenthesis, to the next comma of its level."""
    depth = 0
    for end in range(start, len(text)):
        if text[end] in "([{":
            depth += 1
        elif text[end] in ")]}":
            depth -= 1
        if depth < 0 or (depth == 0 and text[end] == ","):
            return text[start:end]
    return text[start:]


def reasons():
    """{reason: the codes that it is made with, where that can be told}"""
    found = {}

    def add(reason, code=None):
        for prefix, family in FAMILIES.items():
            if reason.startswith(prefix):
                reason = family
        codes = found.setdefault(reason, set())
        if code:
            codes.add(code)

    for _, text in sources():
        for reason in re.findall(r'"([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)"', text):
            if reason not in NO_REASONS and not ENVIRONMENT.fullmatch(reason):
                add(reason)
        for helper, code in CODE_OF.items():
            for match in re.finditer(rf"\b{helper}\(", text):
                for reason in re.findall(r'"([A-Z][A-Z0-9_]+)"', first_argument(text, match.end())):
                    add(reason, code)
        for code, reason in re.findall(r'Status\(\s*(?:Code::k)?(\w+),\s*"([A-Z][A-Z0-9_]+)"', text):
            if code != "code":
                add(reason, re.sub(r"(?<=[a-z])(?=[A-Z])", "_", code).upper())
            else:
                add(reason)
        if '"ERRNO_"' in text:
            add("ERRNO_")
    for path in sorted((ROOT / "client/python").rglob("*.py")):
        for made, reason in re.findall(
            r'\berrors\.(\w+)\(\s*(?:[\w.]+,\s*)?"([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)"',
            path.read_text(encoding="utf-8"),
        ):
            add(reason, CODE_OF.get(made))
    return found


def sections(path, level="###"):
    """{heading: text below it}"""
    parts = re.split(rf"(?m)^{level} (.+)$", read(path))
    return dict(zip(parts[1::2], parts[2::2]))


def part(path, heading):
    """The text below `## heading`."""
    return sections(path, "##")[heading]


def documents():
    for path in sorted(ROOT.rglob("*.md")):
        name = path.relative_to(ROOT)
        if not name.parts[0].startswith((".", "bazel-")) and "node_modules" not in name.parts:
            yield path


def without_code(text):
    return re.sub(r"(?ms)^```.*?^```$", "", text)


def anchors(path):
    found = set()
    for heading in re.findall(r"(?m)^#+ (.+)$", without_code(path.read_text(encoding="utf-8"))):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        found.add(re.sub(r"[^\w\- ]", "", text).replace(" ", "-"))
    return found


def table_flags(text):
    """{flag: the cells of its row, without backticks}"""
    rows = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        match = cells and re.match(r"`--([a-z_-]+)", cells[0])
        if match:
            rows[match.group(1)] = [cell.replace("`", "").replace("\\|", "|") for cell in cells]
    return rows


class Index(unittest.TestCase):
    def test_rpc_reference_is_up_to_date(self):
        done = subprocess.run(
            [sys.executable, "-B", ROOT / "docs/generate_rpc_reference.py", "--check"],
            capture_output=True, text=True,
        )
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_rpc_reference_has_each_call_and_field(self):
        proto = re.sub(r"//.*", "", read("proto/torpor/v1/memory_service.proto"))
        calls = re.findall(r"rpc (\w+)", proto)
        self.assertGreater(len(calls), 7)
        self.assertEqual(set(calls), set(sections("docs/rpc.md")))
        documented = sections("docs/rpc.md", "##")
        for name, body in re.findall(r"(?ms)^(?:message|enum) (\w+) \{\n(.*?)^\}", proto):
            with self.subTest(name=name):
                rows = re.findall(r"(?m)^\| `(\w+)` \|", documented[name])
                self.assertEqual(re.findall(r"(\w+) = \d+;", body), rows)

    def test_every_page_is_in_the_index(self):
        linked = set(re.findall(r"\]\(([^)#]+)", read("docs/README.md")))
        for path in sorted((ROOT / "docs").rglob("*.md")):
            name = path.relative_to(ROOT / "docs").as_posix()
            if name != "README.md" and not name.startswith("measurements/"):
                self.assertIn(name, linked)


class Reasons(unittest.TestCase):
    def test_each_has_a_section_and_each_section_a_reason(self):
        documented = set(sections("docs/errors.md"))
        known = set(reasons())
        self.assertGreater(len(known), 60)
        self.assertEqual(known - documented, set(), "reasons without a section in docs/errors.md")
        self.assertEqual(documented - known, set(), "sections of docs/errors.md without a reason")

    def test_sections_tell_the_codes(self):
        documented = sections("docs/errors.md")
        for reason, codes in reasons().items():
            for code in codes:
                with self.subTest(reason=reason):
                    self.assertIn(f"`{code}`", documented.get(reason, ""))


class Flags(unittest.TestCase):
    def compare(self, heading, text, pattern):
        named = set(re.findall(pattern, text))
        documented = set(table_flags(part("docs/reference.md", heading)))
        self.assertGreater(len(named), 5)
        self.assertEqual(named, documented)

    def test_torpord(self):
        self.compare("torpord", read("daemon/flags.cc"), r'set\.Add\w*\(\s*"([a-z_]+)"')

    def test_torporctl(self):
        self.compare(
            "torporctl", read("client/ctl/command.cc"),
            r'(?:Common|Special|SpecialSwitch|set_\.Add\w*)\(\s*"([a-z-]+)"',
        )

    def test_help(self):
        for name, program in PROGRAMS.items():
            text = subprocess.run([program, "--help"], capture_output=True, text=True, check=True)
            rows = table_flags(part("docs/reference.md", name))
            lines = re.findall(r"(?m)^  --([a-z_-]+)(.*(?:\n {6,}.*)*)", text.stdout)
            self.assertEqual({flag for flag, _ in lines}, set(rows), name)
            for flag, line in lines:
                for default in re.findall(r"\(default ([^)]*)\)", line):
                    with self.subTest(program=name, flag=flag):
                        self.assertIn(default, " ".join(rows[flag][1:]).replace("default: ", ""))


class Interface(unittest.TestCase):
    def test_every_field_and_call_is_in_the_reference(self):
        proto = re.sub(r"//.*", "", read("proto/torpor/v1/memory_service.proto"))
        names = re.findall(r"(?m)^\s+(?:repeated )?[\w.<>, ]+ (\w+) = \d+;", proto)
        names += re.findall(r"(?m)^  ([A-Z_]+)(?<!_UNSPECIFIED) = \d+;", proto)
        self.assertGreater(len(names), 60)
        reference = read("docs/reference.md")
        missing = {name for name in names if f"`{name}`" not in reference}
        self.assertEqual(missing, set())
        for call in re.findall(r"rpc (\w+)", proto):
            self.assertIn(call, sections("docs/reference.md"))

    def test_environment_of_workers(self):
        named = set()
        for _, text in sources():
            named |= set(re.findall(r'(?:getenv|Environment)\("(\w+)"\)', text))
        for path in (ROOT / "client/python").rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            named |= set(re.findall(r'environ\.get\("(TORPOR_\w+)"\)', text))
        text = sections("docs/reference.md")["Environment of workers"]
        self.assertEqual(named, set(re.findall(r"(?m)^\| `(\w+)`", text)))

    def test_reasons_in_comments_exist(self):
        known = set(reasons())
        for path in ("client/torpor.h", "proto/torpor/v1/memory_service.proto"):
            for code, words in re.findall(
                r"(INVALID_ARGUMENT|NOT_FOUND|FAILED_PRECONDITION|RESOURCE_EXHAUSTED|ABORTED"
                r"|DEADLINE_EXCEEDED|UNAVAILABLE) ([A-Z]+(?:_[A-Z]+)*)\b", read(path)
            ):
                with self.subTest(path=path, code=code):
                    self.assertIn(words, known)


class Doctor(unittest.TestCase):
    def test_each_check_has_a_row_in_its_group(self):
        catalog = re.findall(r'\{"([^"]+)", "([a-z-]+)",', read("client/ctl/doctor/catalog.cc"))
        self.assertGreater(len(catalog), 30)
        documented = [
            (group, name)
            for group, text in sections("docs/doctor.md").items()
            for name in re.findall(r"(?m)^\| `([a-z-]+)` \|", text.split("\n## ")[0])
        ]
        self.assertEqual(catalog, documented)

    def test_each_check_is_made(self):
        made = set()
        for path in (ROOT / "client/ctl/doctor").glob("check_*.cc"):
            made |= set(re.findall(r'"([a-z-]+)"', path.read_text(encoding="utf-8")))
        names = re.findall(r'\{"[^"]+", "([a-z-]+)",', read("client/ctl/doctor/catalog.cc"))
        self.assertEqual(set(names) - made, set())

    def test_fields_of_json(self):
        text = part("docs/doctor.md", "JSON")
        printed = re.findall(r'\\"(\w+)\\": ', read("client/ctl/doctor/report.cc"))
        self.assertEqual(set(printed), set(re.findall(r"`([a-z]+)`", "".join(
            re.findall(r"(?m)^\| (`[^|]+) \|", text)))))


class Documents(unittest.TestCase):
    def test_links_resolve(self):
        for path in documents():
            text = without_code(path.read_text(encoding="utf-8"))
            for target in re.findall(r"\]\(([^)\s]+)\)", text):
                if re.match(r"[a-z]+:", target):
                    continue
                file, _, anchor = target.partition("#")
                to = (path.parent / file).resolve() if file else path
                with self.subTest(document=path.relative_to(ROOT).as_posix(), link=target):
                    self.assertTrue(to.exists())
                    if anchor and to.suffix == ".md":
                        self.assertIn(anchor, anchors(to))

    def test_every_page_is_linked(self):
        linked = set()
        for path in documents():
            for target in re.findall(r"\]\(([^)#\s]+)", path.read_text(encoding="utf-8")):
                linked.add((path.parent / target).resolve())
        for path in (ROOT / "docs").rglob("*.md"):
            with self.subTest(page=path.name):
                self.assertIn(path.resolve(), linked)

    def test_examples_are_those_that_compile(self):
        quickstart = read("docs/quickstart.md")
        blocks = re.findall(r"(?ms)^```cpp\n(.*?)^```$", quickstart)
        self.assertEqual(blocks, [read("docs/examples/worker.cc")])
        self.assertIn(read("docs/examples/python/worker.py"), read("docs/integration/python.md"))
        for path in documents():
            text = path.read_text(encoding="utf-8")
            for block in re.findall(r"(?ms)^```python\n(.*?)^```$", text):
                compile(block, str(path.relative_to(ROOT)), "exec")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", default=pathlib.Path(__file__).resolve().parents[2])
    parser.add_argument("--torpord")
    parser.add_argument("--torporctl")
    options, rest = parser.parse_known_args()
    global ROOT
    ROOT = pathlib.Path(options.root)
    PROGRAMS.update(
        {n: p for n in ("torpord", "torporctl") if (p := getattr(options, n)) is not None}
    )
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)


if __name__ == "__main__":
    main()

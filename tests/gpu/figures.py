"""Figures that a run measured, as JSON and as a Markdown table."""

import json
import pathlib


class Figures:
    def __init__(self, title):
        self.title = title
        self.facts = {}  # about the machine and the run
        self.rows = []
        self.checks = []

    def fact(self, name, value):
        self.facts[name] = value
        print(f"  {name}: {value}", flush=True)

    def row(self, step, *, size=None, seconds=None, note=""):
        row = {"step": step, "bytes": size, "seconds": seconds, "note": note}
        if size and seconds:
            row["gb_per_s"] = size / seconds / 1e9
        self.rows.append(row)
        print("  " + " | ".join(cell for cell in _cells(row) if cell), flush=True)

    def check(self, what, good, detail=""):
        """Records whether something holds; goes on either way."""
        detail = "" if detail in ("", [], None) else str(detail)
        self.checks.append({"check": what, "ok": bool(good), "detail": detail})
        print(f"  {'ok  ' if good else 'FAIL'} {what} {detail}".rstrip(), flush=True)
        return bool(good)

    def failed(self):
        return [check for check in self.checks if not check["ok"]]

    def write(self, folder, name):
        folder = pathlib.Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        data = {
            "title": self.title,
            "facts": self.facts,
            "rows": self.rows,
            "checks": self.checks,
        }
        (folder / f"{name}.json").write_text(json.dumps(data, indent=2) + "\n")
        (folder / f"{name}.md").write_text(self.markdown())

    def markdown(self):
        lines = [f"# {self.title}"]
        if self.facts:
            lines += ["", "| what | value |", "| --- | --- |"]
            lines += [f"| {name} | {value} |" for name, value in self.facts.items()]
        if self.rows:
            lines += ["", "| step | bytes | seconds | GB/s | note |"]
            lines += ["| --- | ---: | ---: | ---: | --- |"]
            lines += ["| " + " | ".join(_cells(row)) + " |" for row in self.rows]
        lines += ["", "| check | result |", "| --- | --- |"]
        for check in self.checks:
            detail = " ".join(check["detail"].split())
            result = ("ok" if check["ok"] else "FAILED") + (f": {detail}" if detail else "")
            lines.append(f"| {check['check']} | {result} |")
        return "\n".join(lines) + "\n"


def _cells(row):
    return [
        row["step"],
        "" if row["bytes"] is None else f"{row['bytes']:,}",
        "" if row["seconds"] is None else f"{row['seconds']:.4f}",
        f"{row['gb_per_s']:.2f}" if "gb_per_s" in row else "",
        row["note"],
    ]

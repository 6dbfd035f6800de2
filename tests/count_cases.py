"""Counts the test cases of one `bazel test` and prints the totals as last line.

Usage: count_cases.py BUILD_EVENT_JSON_FILE EXIT_STATUS_OF_BAZEL

Exits with 1 unless something passed, nothing failed and Bazel succeeded.
"""

import collections
import json
import sys
import urllib.parse
import urllib.request
import xml.etree.ElementTree


def last_results(event_file):
    """The last attempt of each (label, run, shard): {key: testResult event}."""
    results = {}
    with open(event_file, encoding="utf-8") as lines:
        for line in lines:
            event = json.loads(line)
            key = event["id"].get("testResult")
            if key is None:
                continue
            name = (key["label"], key.get("run", 1), key.get("shard", 1))
            attempt = key.get("attempt", 1)
            if name not in results or attempt >= results[name][0]:
                results[name] = (attempt, event["testResult"])
    return {name: result for name, (_, result) in results.items()}


def outcome(case):
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    if case.find("skipped") is not None or case.get("status") in ("notrun", "skipped"):
        return "skipped"
    return "passed"


def count(label, result):
    """The outcomes of one test program, a Counter."""
    counts = collections.Counter()
    for output in result.get("testActionOutput", []):
        if output["name"] != "test.xml":
            continue
        path = urllib.request.url2pathname(urllib.parse.urlparse(output["uri"]).path)
        try:
            cases = xml.etree.ElementTree.parse(path).iter("testcase")
        except xml.etree.ElementTree.ParseError:
            continue
        for case in cases:
            verdict = outcome(case)
            counts[verdict] += 1
            if verdict == "failed":
                print(f"failed: {label} {case.get('classname', '')} {case.get('name')}")
    if result.get("status") != "PASSED" and not counts["failed"]:
        print(f"failed: {label}: {result.get('status')}")
        counts["failed"] += 1
    return counts


def main():
    event_file, status = sys.argv[1], int(sys.argv[2])
    totals = collections.Counter()
    for (label, _, _), result in sorted(last_results(event_file).items()):
        totals += count(label, result)
    if status != 0 and not totals["failed"]:
        print(f"failed: bazel ended with status {status}")
        totals["failed"] += 1
    line = f"{totals['passed']} passed, {totals['failed']} failed"
    if totals["skipped"]:
        line += f", {totals['skipped']} skipped"
    print(line, flush=True)
    sys.exit(0 if totals["passed"] and not totals["failed"] else 1)


if __name__ == "__main__":
    main()

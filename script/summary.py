#!/usr/bin/env python3
"""Counts the results of runs of `meson test`: one line per failed case, the reasons for skips, and last
"N passed, N failed, N skipped". A gtest program counts by its cases, any other as one; of Python's unittest those that
it skipped count too. Exits 1 if anything failed or nothing ran.

usage: summary.py BUILD_DIR... | meson introspect --tests DIR | summary.py --select PATTERN"""
import fnmatch
import json
import re
import sys
import xml.etree.ElementTree as xml
from collections import Counter
from pathlib import Path

Case = tuple[str, str, str]  # outcome, name, reason

OUTCOMES = {"OK": "passed", "EXPECTEDFAIL": "passed", "SKIP": "skipped"}  # meson's; all others are failures
UNITTEST_SKIPS = re.compile(r"^(?:OK|FAILED) \(.*\bskipped=(\d+).*\)$", re.MULTILINE)


def skip_reason(skip: xml.Element) -> str:
    """The last line of a skip message; the first has its place in the source."""
    return ((skip.get("message") or skip.text or "").strip().splitlines() or [""])[-1]


def gtest_cases(report: Path) -> list[Case]:
    """The cases in a gtest program's report; none if it died before writing one."""
    try:
        root = xml.parse(report).getroot()
    except (OSError, xml.ParseError):
        return []
    cases = []
    for case in root.iter("testcase"):
        name = f"{case.get('classname')}.{case.get('name')}"
        skip = case.find("skipped")
        if case.find("failure") is not None:
            cases.append(("failed", name, ""))
        elif skip is not None:
            cases.append(("skipped", name, skip_reason(skip)))
        elif case.get("status") == "notrun":
            cases.append(("skipped", name, "disabled"))
        else:
            cases.append(("passed", name, ""))
    return cases


def program_cases(test: dict, build: Path) -> list[Case]:
    """The test cases of one entry of meson's log."""
    outcome = OUTCOMES.get(test["result"], "failed")
    cases = gtest_cases(build / (test["name"].rpartition(" / ")[2] + ".xml"))
    if not cases or outcome == "failed" and not any(case[0] == "failed" for case in cases):
        said = (test.get("stdout") or "").strip().splitlines()[-1:] if outcome == "skipped" else []
        cases.append((outcome, "the program", "".join(said) or test["result"].lower()))  # a crash, a time-out, a leak
    if skips := UNITTEST_SKIPS.search(test.get("stderr") or ""):
        cases += [("skipped", "a case", "by unittest, which does not say why")] * int(skips[1])
    return cases


def summarize(builds: list[Path]) -> int:
    counts: Counter[str] = Counter()
    skips: Counter[str] = Counter()
    for build in builds:
        log = build / "meson-logs" / "testlog.json"
        for line in log.read_text().splitlines() if log.exists() else []:
            test = json.loads(line)
            for outcome, name, reason in program_cases(test, build):
                counts[outcome] += 1
                if outcome == "failed":
                    print(f"FAILED {test['name']}: {name} {reason}".rstrip())
                elif outcome == "skipped":
                    skips[f"{test['name']}: {reason}"] += 1
    for skip, count in sorted(skips.items()):
        print(f"skipped {count} in {skip}")
    if not counts["passed"] + counts["failed"]:
        print("no test ran")
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    return int(counts["failed"] > 0 or counts["passed"] == 0)


def select(pattern: str) -> int:
    for test in json.load(sys.stdin):
        if pattern in test["name"] or fnmatch.fnmatch(test["name"], pattern):
            print(test["name"])
    return 0


def main(arguments: list[str]) -> int:
    if len(arguments) == 2 and arguments[0] == "--select":
        return select(arguments[1])
    if not arguments or arguments[0].startswith("-"):
        print(__doc__)
        return 0 if arguments == ["--help"] else 2
    return summarize([Path(build) for build in arguments])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

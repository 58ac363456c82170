"""Deliberate faults: apply each to a copy of the project, and run the test that must fail.

    python tests/mutants.py [FAULT ...]

mutants.toml lists the faults. Each has a name, and

    what    the fault in words
    file    the file that is changed, or the folder that holds it
    old     text that occurs there exactly once
    new     text that replaces it
    test    pytest's id of the test that must fail

The tests first have to pass without a fault. A fault is then caught, SURVIVED, or stale: its text or its test is no
longer there. The exit code is 1 if a fault survived or broke the test run, and 2 if a test fails without a fault.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

PROJECT = Path(__file__).parents[1]
PYTEST = (sys.executable, "-m", "pytest", "-x", "-q", "-n0", "-m", "", "-p", "no:cacheprovider", "--tb=line")
AT_ONCE = 2  # tests that run at the same time


class Fault(NamedTuple):
    """A fault of mutants.toml; see the top of this file."""

    name: str
    what: str
    file: str
    old: str
    new: str
    test: str

    def files(self, project: Path) -> list[Path]:
        """Return the files in which the old text occurs, once for each occurrence."""
        place = project / self.file
        files = sorted(place.rglob("*.py")) if place.is_dir() else [place] if place.exists() else []
        return [file for file in files for _ in range(file.read_text().count(self.old))]

    def staleness(self, project: Path) -> str:
        """Return why the fault cannot be tried; "" if it can."""
        if (found := len(self.files(project))) != 1:
            return f"stale: its text occurs {found} times in {self.file}"
        path = project / self.test.partition("::")[0]
        name = self.test.rpartition("::")[2].partition("[")[0]
        if not path.exists() or not re.search(rf"\bdef {name}\(", path.read_text()):
            return f"stale: no test {self.test}"
        return ""


def read() -> list[Fault]:
    """Return the faults of mutants.toml."""
    content = tomllib.loads((PROJECT / "tests" / "mutants.toml").read_text())
    return [Fault(name, **fields) for name, fields in content.items()]


def run_tests(project: Path, tests: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    """Run tests in a copy of the project."""
    environment = os.environ | {"PYTHONPATH": str(project)}
    return subprocess.run([*PYTEST, *tests], cwd=project, env=environment, capture_output=True, text=True)


def attempt(fault: Fault, original: Path) -> str:
    """Apply a fault to a copy of the project, run its test there, and return the verdict."""
    if stale := fault.staleness(original):
        return stale
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        project = Path(shutil.copytree(original, Path(folder) / "project"))
        [file] = fault.files(project)
        file.write_text(file.read_text().replace(fault.old, fault.new))
        code = run_tests(project, [fault.test]).returncode
    verdicts = {0: "SURVIVED", 1: "caught"}
    return verdicts.get(code, f"BROKEN: pytest ended with exit code {code}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("faults", nargs="*", metavar="FAULT", help="names of the faults (default: all)")
    wanted = parser.parse_args().faults
    faults = [fault for fault in read() if not wanted or fault.name in wanted]
    if unknown := sorted(set(wanted) - {fault.name for fault in faults}):
        parser.error(f"mutants.toml does not have {', '.join(unknown)}")
    width = max(len(fault.name) for fault in faults)
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(AT_ONCE) as pool:
        left_out = shutil.ignore_patterns(".*", "runs")
        original = Path(shutil.copytree(PROJECT, Path(folder) / "project", ignore=left_out))  # compiled files, too
        tests = sorted({fault.test for fault in faults if not fault.staleness(original)})
        unchanged = run_tests(original, tests) if tests else None
        if unchanged is not None and unchanged.returncode:
            print(f"{unchanged.stdout}\nThe tests fail without a fault, so no fault was tried.")
            return 2
        for fault, verdict in zip(faults, pool.map(partial(attempt, original=original), faults), strict=True):
            counts[verdict.partition(":")[0]] += 1
            print(f"{fault.name:<{width}}  {verdict:<8}  {fault.what}", flush=True)
    print(", ".join(f"{number} {verdict}" for verdict, number in counts.items()))
    return int(counts["SURVIVED"] + counts["BROKEN"] > 0)


if __name__ == "__main__":
    sys.exit(main())

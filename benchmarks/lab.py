"""What the benchmarks share: stamped CSV files, and tables in the documents made from them."""

import csv
import functools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import pandas as pd

from lib import runs

PROJECT = runs.PROJECT
RESULTS = PROJECT / "benchmarks" / "results"


@functools.cache
def stamp() -> dict[str, Any]:
    """Where and with what a figure was measured; taken once, as the results themselves change the checkout."""
    now = datetime.now().astimezone().isoformat(timespec="seconds")
    return {"measured": now, "commit": runs.commit(), "versions": runs.versions(), "machine": runs.machine()}


class Results:
    """A CSV file in benchmarks/results; its first line is its stamp, and a row is on the disk once it is added."""

    def __init__(self, name: str, columns: Sequence[str], stamped: Mapping[str, Any] | None = None):
        self.path = RESULTS / f"{name}.csv"
        self.columns = columns
        RESULTS.mkdir(exist_ok=True)
        self.path.write_text(f"# {json.dumps(stamped or stamp())}\n{','.join(columns)}\n")

    def add(self, **row: Any) -> None:
        with self.path.open("a", newline="") as file:
            csv.DictWriter(file, self.columns).writerow(row)


def read(name: str) -> tuple[pd.DataFrame, dict[str, Any]]:
    """A results file and its stamp."""
    path = RESULTS / f"{name}.csv"
    with path.open() as file:
        stamped = json.loads(file.readline().removeprefix("# "))
    return pd.read_csv(path, comment="#"), stamped


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def where(stamped: Mapping[str, Any]) -> str:
    """A stamp in one sentence."""
    machine, versions = stamped["machine"], stamped["versions"]
    return (
        f"Measured {stamped['measured'][:10]} at commit {str(stamped['commit'])[:10]} on {machine['processor']}, "
        f"{machine['cores']} cores, {machine['torch_threads']} torch threads, {machine['device']}; "
        f"torch {versions['torch']}, ale-py {versions['ale-py']}."
    )


def put(document: str, marker: str, content: str) -> None:
    """Replace what stands between `<!-- marker -->` and `<!-- /marker -->` in a document of the project."""
    path = PROJECT / document
    text = path.read_text()
    block = re.compile(rf"(<!-- {marker} -->\n).*?(<!-- /{marker} -->)", re.S)
    if not block.search(text):
        raise ValueError(f"{document} has no place <!-- {marker} --> ... <!-- /{marker} -->")
    path.write_text(block.sub(lambda match: f"{match[1]}{content}\n{match[2]}", text))

#!/usr/bin/env python3
"""The ladder: each rung's parent, the lines that it changes, what it keeps, and how fast it was measured to be.

./ladder.py prints the table; `./chapter09.py tables` puts it into docs/chapter09.md, with all others.
"""

import ast
import difflib
import re
from pathlib import Path

import lab

SCRIPTS = sorted(lab.PROJECT.glob("chapter0*/[0-9][0-9]_*.py")) + sorted(
    lab.PROJECT.glob("distributed/[0-9][0-9]_*.py")
)


def header(script: Path) -> dict[str, str]:
    """The fields of a script's docstring: Idea, Parent, Keeps, Paper, Run, Read."""
    doc = ast.get_docstring(ast.parse(script.read_text())) or ""
    fields = re.findall(r"^([A-Z][a-z]+)  +(\S.*(?:\n {8,}\S.*)*)", doc, re.M)
    return {name: re.sub(r"\s+", " ", text) for name, text in fields}


def body(script: Path) -> list[str]:
    """The lines of a script below its docstring."""
    tree = ast.parse(script.read_text())
    return script.read_text().splitlines()[tree.body[0].end_lineno :]


def parent(script: Path) -> Path | None:
    """The script that another one was made from; None for the root."""
    name = re.match(r"\S+\.py", header(script)["Parent"])
    return (script.parent / name[0]).resolve() if name else None


def changed_lines(old: Path, new: Path) -> list[str]:
    """Lines that one of two scripts has and the other has not, headers aside."""
    return [line for line in difflib.ndiff(body(old), body(new)) if line[0] in "+-"]


def rows() -> list[tuple[str, ...]]:
    """A row a script; a rung that was measured with several options has its figures in one cell."""
    figures: dict[str, list[str]] = {}
    if lab.path_of("chapter09-speed").exists():
        speeds = lab.rounds(lab.read("chapter09-speed")[0], "rung", "steps_per_second")
        ratios = lab.ratios(speeds, lab.BASELINE)
        for rung in speeds:
            ratio = ratios[rung].median()
            script, _, options = rung.partition(" ")
            figures.setdefault(script, []).append(f"{speeds[rung].median():.1f} ({ratio:.2f}) {options}".strip())
    table = []
    for script in SCRIPTS:
        old = parent(script)
        keeps = re.split(r"[:;,]", header(script)["Keeps"])[0]
        lines = str(len(changed_lines(old, script))) if old else ""
        name = str(old.relative_to(lab.PROJECT)) if old else "none"
        table.append(
            (str(script.relative_to(lab.PROJECT)), name, lines, keeps, "; ".join(figures.get(script.stem, ())))
        )
    return table


HEADER = ("rung", "parent", "changed lines", "keeps", "agent steps/s (ratio to 01)")


def write() -> None:
    """Put the table into docs/chapter09.md."""
    lab.put("docs/chapter09.md", "ladder", lab.table(HEADER, [(f"`{row[0]}`", *row[1:]) for row in rows()]))


if __name__ == "__main__":
    table = [HEADER, *rows()]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())

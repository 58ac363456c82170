#!/usr/bin/env python3
"""Print a table of the scripts: how each differs from its parent, how much code it needs, and how fast it is.

"Lines of lib" counts all modules of lib that importing a script imports. "Lines to read" counts the script and what
its Read line names: files of lib, or one thing in them. Whoever reads a script has read its parent. Comments count.
`./bench.py tables` puts lines and speeds into the README.
"""

import ast
import difflib
import re
from collections.abc import Iterator
from pathlib import Path

import results
from experiments import EXPERIMENTS
from results import PROJECT

SCRIPTS = sorted(PROJECT.glob("chapter0*/[0-9][0-9]_*.py")) + sorted(PROJECT.glob("distributed/[0-9][0-9]_*.py"))
LINES = ("lines of `lib`", "lines to read")
IDEAS = {
    "00_slow_grads": "autograd also records acting and targets",
    "01_baseline": "textbook DQN with the book's wrappers",
    "02_n_envs": "several environments, one larger batch",
    "03_parallel": "play and learn in separate processes",
    "04_wrappers": "wrappers that do less work",
    "04_wrappers --envs 3 --parallel": "both",
    "05_native_envs": "native games, stepped in threads",
    "06_fast_learner": "bfloat16, channels last, fused Adam",
    "07_pong_in_minutes": "three-step double DQN, smaller network, fewer samples",
    "distributed/01_ppo": "textbook PPO",
    "distributed/02_ppo_fast": "smaller network, normalised values, updates that shrink",
    "distributed/03_ppo_actors": "the same, played in two processes",
}


def header(script: Path) -> dict[str, str]:
    """Return the fields of a script's docstring: Idea, Parent, Keeps, Paper, Run, Read."""
    doc = ast.get_docstring(ast.parse(script.read_text())) or ""
    fields = re.findall(r"^([A-Z][a-z]+)  +(\S.*(?:\n {8,}\S.*)*)", doc, re.M)
    return {name: re.sub(r"\s+", " ", text) for name, text in fields}


def body(script: Path) -> list[str]:
    """Return the lines of a script below its docstring."""
    text = script.read_text()
    return text.splitlines()[ast.parse(text).body[0].end_lineno :]


def parent(script: Path) -> Path | None:
    """Return the script that another one was made from; None for a root."""
    name = re.match(r"\S+\.py", header(script)["Parent"])
    return (script.parent / name[0]).resolve() if name else None


def changed_lines(old: Path, new: Path) -> list[str]:
    """Return the lines that only one of two scripts has, without their docstrings."""
    return [line for line in difflib.ndiff(body(old), body(new)) if line[0] in "+-"]


def imported_files(script: Path) -> set[Path]:
    """Return the files of lib that importing a script imports. Imports inside functions are not made then."""
    found: set[Path] = set()
    waiting = [script]
    while waiting:
        for name in _imported_names(ast.parse(waiting.pop().read_text())):
            parts = name.split(".")
            for end in range(1, len(parts) + 1 if parts[0] == "lib" else 1):
                path = PROJECT.joinpath(*parts[:end])
                new = {file for file in (path / "__init__.py", path.with_suffix(".py")) if file.is_file()} - found
                found |= new
                waiting += new
    return found


def _imported_names(node: ast.AST) -> Iterator[str]:
    """Yield the dotted names that a module imports when it is imported itself, such as lib.nets.losses.td_targets."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    is_later = isinstance(node, ast.FunctionDef | ast.Lambda)
    is_for_types = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    if not (is_later or is_for_types):
        for child in ast.iter_child_nodes(node):
            yield from _imported_names(child)


def count_lines(file: Path, name: str = "") -> int:
    """Return the number of lines of a file, or of a class, function or constant in it.

    Raises:
        ValueError: if the file has nothing of this name.
    """
    text = file.read_text()
    if not name:
        return len(text.splitlines())
    for node in ast.parse(text).body:
        names = [child.id for child in ast.iter_child_nodes(node) if isinstance(child, ast.Name)]
        if name in (getattr(node, "name", None), *names[:1]) and node.end_lineno is not None:
            return node.end_lineno - node.lineno + 1
    raise ValueError(f"{file} has no {name}, which a script's Read line names")


def lines_of(script: Path) -> tuple[int, int]:
    """Return the number of lines of lib that a script imports, and of those that its reader reads."""
    named = re.findall(r"(?:(\w+(?: and \w+)*) in )?(lib/[\w/]+\.py)", header(script)["Read"])
    to_read = sum(count_lines(PROJECT / file, name) for names, file in named for name in names.split(" and "))
    return sum(map(count_lines, imported_files(script))), count_lines(script) + to_read


def row(script: Path) -> tuple[str, str, str, str]:
    """Return a script's path, its parent, the number of lines that differ, and what stays the same."""
    name, keeps = str(script.relative_to(PROJECT)), re.split(r"[:;,]", header(script)["Keeps"])[0]
    old = parent(script)
    if old is None:
        return name, "none", "", keeps
    return name, str(old.relative_to(PROJECT)), str(len(changed_lines(old, script))), keeps


HEADER = ("script", "parent", "changed lines", "keeps")


def script_of(rung: str) -> str:
    """Return the path of a rung's script in the project."""
    script = rung.partition(" ")[0]
    return f"{script}.py" if "/" in script else f"chapter09/{script}.py"


def speeds() -> dict[str, list[str]]:
    """Return the median steps per second of each script, one for each measured combination of options."""
    found: dict[str, list[str]] = {}
    measured = results.rounds(results.runs("ladder"), "steps_per_second", EXPERIMENTS["ladder"].variants)
    for rung, speed in measured.median().items():
        options = str(rung).partition(" ")[2]
        found.setdefault(script_of(str(rung)), []).append(f"{speed:,.0f} ({options})" if options else f"{speed:,.0f}")
    return found


def main() -> None:
    measured = speeds()
    lines = [(*HEADER, *LINES, "agent steps/s")]
    for script in SCRIPTS:
        cells = row(script)
        lines.append((*cells, *(f"{number:,}" for number in lines_of(script)), ", ".join(measured.get(cells[0], []))))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for each in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(each, widths, strict=True)).rstrip())


if __name__ == "__main__":
    main()

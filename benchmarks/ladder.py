#!/usr/bin/env python3
"""Print the ladder: each script's parent, its changed lines, what it keeps of its parent, and its measured speed.

`./chapter09.py tables` puts chapter 9's part into docs/chapter09.md, and the speeds into the README.
"""

import ast
import difflib
import re
from collections.abc import Iterator
from pathlib import Path

import lab
import launch
import markup

SCRIPTS = sorted(lab.PROJECT.glob("chapter0*/[0-9][0-9]_*.py")) + sorted(
    lab.PROJECT.glob("distributed/[0-9][0-9]_*.py")
)
SPEED = "solve/ladder-speed"  # results of `time_to_solve.py speed`
IDEAS = {
    "00_slow_grads": "autograd also records acting and targets",
    "01_baseline": "textbook DQN with the book's wrappers",
    "02_n_envs": "several environments, one larger batch",
    "03_parallel": "actor processes play while the learner learns",
    "04_wrappers": "wrappers that do less work",
    "04_wrappers --envs 3 --parallel": "the same wrappers, with an actor process",
    "05_native_envs": "native games, stepped in threads",
    "06_fast_learner": "bfloat16, channels last, fused Adam",
    "07_pong_in_minutes": "three-step double DQN, a smaller network, fewer samples",
    "distributed/01_ppo": "textbook PPO",
    "distributed/02_ppo_fast": "small network, normalised values, adaptive and annealed updates",
    "distributed/03_ppo_actors": "the same, with two actor processes",
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


def rows() -> Iterator[tuple[str, str, str, str, str]]:
    """Yield the row of each script: its name, its parent, its changed lines, what it keeps, and its speed."""
    measured = speeds_by_script()
    for script in SCRIPTS:
        old = parent(script)
        keeps = re.split(r"[:;,]", header(script)["Keeps"])[0]
        name = str(script.relative_to(lab.PROJECT))
        speed = ", ".join(measured.get(name, []))
        if old is None:
            yield name, "none", "", keeps, speed
        else:
            yield name, str(old.relative_to(lab.PROJECT)), str(len(changed_lines(old, script))), keeps, speed


HEADER = ("script", "parent", "changed lines", "keeps", "agent steps/s")


def ladder_table(folder: str) -> str:
    """Return a row per script of a folder, without its speed, which other tables have."""
    chosen = [(f"`{name}`", *rest) for name, *rest, _ in rows() if name.startswith(folder)]
    return markup.table(HEADER[:-1], chosen)


def medians() -> Iterator[tuple[str, float, float]]:
    """Yield the measured rungs: script with options, median agent steps per second, median ratio to the baseline."""
    measured = lab.rounds(lab.read(SPEED)[0], "rung", "steps_per_second")
    ratios = lab.ratios(measured, launch.BASELINE)
    for rung in measured:
        if rung.split()[0] in IDEAS:  # and not the emulator alone
            yield rung, measured[rung].median(), ratios[rung].median()


def speeds_by_script() -> dict[str, list[str]]:
    """Return the median speeds of each script, one for each measured combination of options."""
    found: dict[str, list[str]] = {}
    for rung, speed, _ in medians():
        script, _, options = rung.partition(" ")
        path = f"{script}.py" if "/" in script else f"chapter09/{script}.py"
        found.setdefault(path, []).append(f"{speed:,.0f} ({options})" if options else f"{speed:,.0f}")
    return found


def speed_table() -> str:
    """Return a row per script of chapter 9 and of PPO: its idea, its speed and its ratio to the baseline."""
    rows = []
    for rung, speed, ratio in medians():
        rows.append(
            (
                f"`{rung}`",
                IDEAS.get(rung) or IDEAS[rung.split()[0]],
                f"{speed:,.0f}",
                f"{ratio:.{1 if ratio >= 10 else 2}f}",
            )
        )
    header = ("script", "idea", "agent steps/s", "ratio to `01_baseline`, median of rounds")
    frame, stamped = lab.read(SPEED)
    return f"{markup.table(header, rows)}\n\n{markup.measured_on([stamped], lab.count_rounds(frame))}"


def blocks() -> Iterator[markup.Block]:
    """Yield the tables of the pages."""
    yield markup.Block("docs/chapter09.md", "ladder", ladder_table("chapter09/"))
    yield markup.Block("README.md", "ladder", speed_table())


def main() -> None:
    lines = [HEADER, *rows()]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for row in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Check the pages: tables made from CSV files, tags, commands, links, named files, and the number of words.

./check_docs.py    # fails and names the page if something is wrong; ./bench.py tables makes all tables again
"""

import csv
import re
import sys
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from results import PROJECT
from tables import Block, block_pattern, blocks

MOST_WORDS = {"README.md": 600, "docs/*.md": 10_500}  # tables included
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.*)$", re.M)
COMMAND = re.compile(r"^    [^#\n]*?(\w+\.py)([^#\n]*)", re.M)  # a script and its options
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
OTHERS = {"--help", "--index-url", "--signal", "--rdzv-conf", "--build-arg", "--gpus"}  # of argparse and other programs
FILE = re.compile(r"`((?:lib|tests|tools|benchmarks|chapter0[89]|distributed|examples|docs)/[\w./-]+)`")


def without_results(page: Path, blocks: Collection[Block]) -> Iterator[str]:
    """Yield a line for each filled block of a page that no benchmark makes, because its results are missing."""
    name = str(page.relative_to(PROJECT))
    made = {block.marker for block in blocks if block.page == name}
    for marker, text in block_pattern().findall(page.read_text()):
        if text and marker not in made:
            yield f"{name}: block {marker!r} has no results; measure it again, or empty it"


def outdated(blocks: Iterable[Block]) -> Iterator[str]:
    """Yield a line for each block whose text in the page differs from the results."""
    for block in blocks:
        content = (PROJECT / block.page).read_text()
        if block.put_into(content) != content:
            yield f"{block.page}: block {block.marker!r} differs from the results; run benchmarks/bench.py tables"


def pages() -> list[Path]:
    """Return all pages of the project."""
    folders = ("docs", "benchmarks/notes", "runs")
    return sorted([*PROJECT.glob("*.md"), *(page for folder in folders for page in (PROJECT / folder).glob("*.md"))])


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub builds them."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(page.read_text())}


def broken_links(page: Path) -> Iterator[str]:
    """Yield a line for each link to a file or a heading that does not exist."""
    for target in LINK.findall(page.read_text()):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        linked = (page.parent / name).resolve() if name else page
        if not linked.exists():
            yield f"{page.relative_to(PROJECT)}: {target} does not exist"
        elif anchor and anchor not in anchors(linked):
            yield f"{page.relative_to(PROJECT)}: {name or 'the page'} has no heading for #{anchor}"


def missing_files(page: Path) -> Iterator[str]:
    """Yield a line for each file or folder of the project that a page names and that does not exist.

    The changelog and the notes are left out, because they are about the past.
    """
    if page.name == "CHANGELOG.md" or page.parent.name == "notes":
        return
    for name in FILE.findall(page.read_text()):
        path = PROJECT / name
        if not path.exists() and not path.with_suffix(".py").exists():
            yield f"{page.relative_to(PROJECT)}: {name} does not exist"


def options() -> set[str]:
    """Return the options of all scripts and tools, as their sources name them."""
    folders = ("lib", "lib/run", "chapter08", "chapter09", "distributed", "tools", "benchmarks", "examples")
    sources = "".join(path.read_text() for folder in folders for path in PROJECT.glob(f"{folder}/*.py"))
    return set(re.findall(r'"(--[a-z-]+)"', sources))


def wrong_commands(page: Path, known: Collection[str]) -> Iterator[str]:
    """Yield a line for each script in a command of a page, and each option there or in the text, that is unknown."""
    text = page.read_text()
    given = re.findall(r"`(--[a-z-]+)", text)
    for script, arguments in COMMAND.findall(text):
        if not any([*PROJECT.glob(f"*/{script}"), *PROJECT.glob(f"lib/*/{script}")]):
            yield f"{page.relative_to(PROJECT)}: there is no {script}"
        given += OPTION.findall(arguments)
    for option in sorted(set(given) - OTHERS):
        if option not in known and option.replace("--no-", "--") not in known:
            yield f"{page.relative_to(PROJECT)}: no script has the option {option}"


def wrong_tags() -> Iterator[str]:
    """Yield a line for each TensorBoard tag that docs/metrics.md lacks or should not have.

    A test compares tests/golden/tags.csv with the tags that scripts write.
    """
    with (PROJECT / "tests" / "golden" / "tags.csv").open(newline="") as file:
        written = {row["tag"]: row["everywhere"] == "1" for row in csv.DictReader(file)}
    rows = re.findall(r"^\| (`.*?`) \| (.*?) \|", (PROJECT / "docs" / "metrics.md").read_text(), re.M)
    documented = {tag: scripts == "all" for tags, scripts in rows for tag in re.findall("`(.*?)`", tags)}
    for tag, everywhere in sorted(set(written.items()) ^ set(documented.items())):
        where = "scripts write it" if (tag, everywhere) in written.items() else "the page has it"
        yield f"docs/metrics.md: {tag} ({'all scripts' if everywhere else 'some scripts'}): only {where}"


def words(pattern: str) -> int:
    """Return the number of words of the pages that a pattern matches."""
    return sum(len(page.read_text().split()) for page in PROJECT.glob(pattern))


def main() -> None:
    made = blocks()
    problems = [*outdated(made), *wrong_tags()]
    known = options()
    for page in pages():
        problems += [*without_results(page, made), *broken_links(page), *missing_files(page)]
        problems += wrong_commands(page, known) if page.parent.name != "notes" else []
    counts = {pattern: words(pattern) for pattern in MOST_WORDS}
    for pattern, most in MOST_WORDS.items():
        if counts[pattern] > most:
            problems.append(f"{pattern}: {counts[pattern]:,} words; at most {most:,} are allowed")
    if problems:
        sys.exit("\n".join(problems))
    print(f"The pages agree with the results. Words: {', '.join(f'{key} {value:,}' for key, value in counts.items())}.")


if __name__ == "__main__":
    main()

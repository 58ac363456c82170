"""Blocks of Markdown that the benchmarks make from their results."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import lab

import pandas as pd

PICTURES = lab.PROJECT / "docs" / "pictures"
MEASUREMENTS = "benchmarks/notes/measurements.md"  # the tables that are too long for docs/


class Block(NamedTuple):
    """Markdown made from results: the text between `<!-- marker -->` and `<!-- /marker -->` in a page.

    Attributes:
        page: path of the page, relative to the project.
        marker: name of the block in the page.
        text: Markdown of the block.
    """

    page: str
    marker: str
    text: str

    def put_into(self, content: str) -> str:
        """Return the page's content with this block replaced.

        Raises:
            ValueError: if the page has no such block.
        """
        pattern = block_pattern(self.marker)
        if not pattern.search(content):
            raise ValueError(f"{self.page} has no block <!-- {self.marker} --> ... <!-- /{self.marker} -->")
        return pattern.sub(lambda match: f"<!-- {match[1]} -->\n{self.text}\n<!-- /{match[1]} -->", content)


def block_pattern(marker: str = r"[\w-]+") -> re.Pattern[str]:
    """Return the pattern of a page's blocks, with the groups marker and text. Without a marker, it matches all."""
    return re.compile(rf"<!-- ({marker}) -->\n(.*?)<!-- /\1 -->", re.S)


def write(blocks: Iterable[Block]) -> None:
    """Replace the blocks in their pages."""
    for block in blocks:
        path = lab.PROJECT / block.page
        path.write_text(block.put_into(path.read_text()))


def spread(values: pd.Series, digits: int = 1, unit: str = "", single: str = "") -> str:
    """Return median and range as text: "155 s (98 to 272)".

    Args:
        values: measured values; an infinite one stands for a run that did not reach its goal. Unknown ones, NaN, are
            left out.
        digits: digits after the decimal point.
        unit: unit of the median, with a space before it.
        single: noun for a single value: "seed" gives "1,616 s (one seed)".
    """

    def text(value: float, unit: str = "") -> str:
        return f"{value:,.{digits}f}{unit}" if math.isfinite(value) else "never"

    values = values.dropna()
    if values.empty:
        return ""
    if values.min() == math.inf:
        return "never"
    median = text(values.median(), unit)
    if len(values) == 1:
        return f"{median} (one {single})" if single else median
    return f"{median} ({text(values.min())} to {text(values.max())})"


def spread_of_seeds(values: pd.Series, seeds: int) -> str:
    """Return median and range over all seeds, and how many reached a goal: "300 (200 to never), 2 of 3 seeds".

    Args:
        values: steps or seconds of the seeds that reached it.
        seeds: number of all seeds. Those that did not reach it count as slower than all others.
    """
    if values.empty:
        return f"0 of {seeds} seeds"
    every = pd.Series([*values, *[math.inf] * (seeds - len(values))])
    text = spread(every, 0, single="seed")
    return text if len(values) == seeds else f"{text}, {len(values)} of {seeds} seeds"


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def measured_on(stamps: Iterable[Mapping[str, Any]], rounds: int = 0) -> str:
    """Return one sentence with the machines, versions and dates of some stamps, and of the later sessions of runs.

    Args:
        stamps: stamps of the results.
        rounds: number of rounds, if all were measured in rounds.
    """
    stamps = list(stamps)
    places = "; and on ".join(dict.fromkeys(map(_place, _sessions(stamps))))
    in_rounds = f"; {rounds} round{'s' * (rounds != 1)}" if rounds else ""
    return f"Measured on {places}; {days(stamps)}{in_rounds}."


def days(stamps: Iterable[Mapping[str, Any]]) -> str:
    """Return the first and the last date of some stamps."""
    dates = sorted({stamped["measured"][:10] for stamped in _sessions(stamps)})
    return dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"


def processors(stamps: Iterable[Mapping[str, Any]]) -> str:
    """Return the processors of some stamps."""
    return " and ".join(dict.fromkeys(map(_processor, _sessions(stamps))))


def _sessions(stamps: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [each for stamped in stamps for each in (stamped, *stamped.get("later", ()))]


def _processor(stamped: Mapping[str, Any]) -> str:
    name: str = stamped["machine"]["processor"]
    return name.replace("(R)", "").removesuffix(" Processor")


def _place(stamped: Mapping[str, Any]) -> str:
    machine, versions = stamped["machine"], stamped["versions"]
    gpu = "no GPU" if machine["device"] == "cpu" else machine["device"]
    threads = machine["torch_threads"]
    limited = "" if threads == machine["cores"] else f", {threads} torch thread{'s' * (threads != 1)}"
    known = machine.get("fast_bfloat16")  # older stamps lack it
    precision = "" if known is None else ", bfloat16" if known else ", no bfloat16"
    cores = f"{machine['cores']} core{'s' * (machine['cores'] != 1)}"
    torch = versions["torch"].removesuffix("+cpu")
    return f"{cores} ({_processor(stamped)}), {gpu}{precision}{limited}, torch {torch}, ale-py {versions['ale-py']}"

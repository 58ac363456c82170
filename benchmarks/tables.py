"""Tables of README and docs/, made from the results. `./bench.py tables` writes them."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import ladder
import results
from experiments import (
    ACTORS,
    BASELINE,
    CHAPTER08,
    CHAPTER09,
    CONTROL,
    ENGINES,
    EQUAL,
    EXPERIMENTS,
    LADDER,
    LAGS,
    MINUTES,
)
from results import PROJECT, curves, rounds, runs
from significance import rank_test

import pandas as pd

# The book's frames a second, from a GTX 1080 Ti and an i5-6600K.
BOOK = dict(zip(CHAPTER09, (157, 159, 228, 402, 330, 409), strict=True))


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


def spread(values: Iterable[float], digits: int = 1, unit: str = "", single: str = "") -> str:
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

    known = pd.Series(values, dtype=float).dropna()
    if known.empty:
        return ""
    if known.min() == math.inf:
        return "never"
    median = text(known.median(), unit)
    if len(known) == 1:
        return f"{median} (one {single})" if single else median
    return f"{median} ({text(known.min())} to {text(known.max())})"


def spread_of_seeds(values: Sequence[float], seeds: int) -> str:
    """Return median and range over all seeds, and how many reached a goal: "300 (200 to never), 2 of 3 seeds".

    Args:
        values: steps or seconds of the seeds that reached it.
        seeds: number of all seeds. Those that did not reach it count as slower than all others.
    """
    if not len(values):
        return f"0 of {seeds} seeds"
    text = spread([*values, *[math.inf] * (seeds - len(values))], 0, single="seed")
    return text if len(values) == seeds else f"{text}, {len(values)} of {seeds} seeds"


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def measured_on(frame: pd.DataFrame, rounds: int = 0) -> str:
    """Return one sentence with the machines and dates of measurements; machines.json has the other conditions.

    Args:
        frame: rows of runs.csv.
        rounds: number of rounds, if all were measured in rounds.
    """
    known = results.machines()
    stamps = [known[key] for key in frame["machine"].unique()]
    places = " and ".join(dict.fromkeys(_place(stamp["machine"]) for stamp in stamps))
    in_rounds = f"; {rounds} round{'s' * (rounds != 1)}" if rounds else ""
    return f"Measured on {places}; {_days(frame)}{in_rounds}."


def _days(frame: pd.DataFrame) -> str:
    first, last = frame["measured"].min()[:10], frame["measured"].max()[:10]
    return first if first == last else f"{first} to {last}"


def _processor(machine: Mapping[str, Any]) -> str:
    name: str = machine["processor"]
    return name.replace("(R)", "").removesuffix(" Processor")


def _place(machine: Mapping[str, Any]) -> str:
    cores = f"{machine['cores']} core{'s' * (machine['cores'] != 1)} ({_processor(machine)})"
    return cores if machine["device"] == "cpu" else f"{cores}, {machine['device']}"


def by_variant(frame: pd.DataFrame, names: Iterable[str] = ()) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the measured variants with their rows: first those named, in this order, then all others."""
    groups = dict(tuple(frame.groupby("variant", sort=False)))
    for name in (*(name for name in names if name in groups), *(name for name in groups if name not in names)):
        yield name, groups[name]


def with_source(text: str, frame: pd.DataFrame, rounds: int = 0) -> str:
    """Return a table and, below it, where and when it was measured."""
    return f"{text}\n\n{measured_on(frame, rounds)}"


# Time to solve Pong


def solved_seconds(own: pd.DataFrame) -> pd.Series:
    """Return the seconds to the goal of each seed of a variant; infinity if they are more than the time limit."""
    return own["seconds_to_goal"].where(own["seconds_to_goal"] <= time_limit(own), math.inf)


def time_limit(own: pd.DataFrame) -> int:
    """Return the time limit of a variant's runs."""
    [limit] = re.findall(r"--time-limit (\d+)", own["settings"].iloc[0])[-1:]
    return int(limit)


def time_to_goal(own: pd.DataFrame) -> str:
    """Return the median and the range of the seconds to the goal over a script's seeds, as text.

    An unsolved run counts as slower than all others. If it were left out, the median would be too low.
    """
    seconds = solved_seconds(own)
    solved = seconds < math.inf
    if not solved.any():
        limit = f"in {time_limit(own):,} s"
        return f"not {limit}" if len(own) == 1 else f"none of {len(own)} seeds {limit}"
    text = spread(seconds, 0, unit=" s", single="seed")
    return text if len(own) == 1 else f"{text}, {solved.sum()} of {len(own)} seeds"


def steps_to_goal(own: pd.DataFrame) -> pd.Series:
    """Return the agent steps to the goal of each seed; infinity if its seconds are more than the time limit."""
    return own["steps_to_goal"].where(solved_seconds(own) < math.inf, math.inf)


def emulator_steps(own: pd.DataFrame) -> pd.Series:
    """Return the seconds to the goal in million steps that the emulator alone makes in that time.

    This depends less on the machine. The emulator's speed is the mean of that before and after the run.
    """
    speed = own.reindex(columns=["emulator_before", "emulator_after"]).mean(axis=1)
    return solved_seconds(own) * speed / 1e6


def solve_table(frame: pd.DataFrame) -> str:
    """Return a row per script: seconds and steps of its seeds, its speed, and the worst evaluation."""
    rows = []
    for script, own in by_variant(frame, EXPERIMENTS["solve"].variants):
        is_solved = solved_seconds(own) < math.inf
        speed = spread(own["steps_per_second"], 0)
        cells = ["", "", speed, ""]
        if is_solved.any():
            steps = spread(steps_to_goal(own) / 1000, 0)
            cells = [spread(emulator_steps(own), 2), steps, speed, f"{own['evaluation_mean'][is_solved].min():.1f}"]
        rows.append((f"`{script}`", time_to_goal(own), *cells))
    header = (
        "script",
        "time to solve Pong",
        "emulator alone, million steps",
        "thousand agent steps",
        "agent steps/s",
        "lowest greedy mean",
    )
    return with_source(table(header, rows), frame)


def trials_table(frame: pd.DataFrame) -> str:
    """Return a row per script with its options: its seeds, its steps to the goal, and the comparison with no options.

    p is that of a rank test of the steps.
    """
    groups = dict(by_variant(frame, EXPERIMENTS["trials"].variants))
    rows = []
    for script, own in groups.items():
        plain, options = script.split()[0], " ".join(script.split()[1:])
        p = ""
        if options and plain in groups:
            p = f"{rank_test(own['steps_to_goal'], groups[plain]['steps_to_goal']):.2g}"
        first, last = own["seed"].min(), own["seed"].max()
        rows.append(
            (
                f"`{_short(script)}`",
                str(first) if first == last else f"{first} to {last}",
                f"{(own['steps_to_goal'] < math.inf).sum()} of {len(own)}",
                spread(own["steps_to_goal"] / 1000, 0),
                "" if own["evaluation_mean"].isna().all() else f"{own['evaluation_mean'].min():.1f}",
                p,
            )
        )
    header = ("script", "seeds", "solved", "thousand agent steps", "lowest greedy mean", "p")
    return with_source(table(header, rows), frame)


def _short(script: str) -> str:
    """Return a script without its folder."""
    return script.rpartition("/")[2] if "/" in script.split()[0] else script


# Speeds


def readme_table() -> str:
    """Return the README's table: a row per rung with its idea, its lines to read, its speed and its time to solve Pong.

    The time is that of `solve` on a CPU, with the script's own settings; empty if it was not measured.
    """
    speeds = rounds(runs("ladder"), "steps_per_second", EXPERIMENTS["ladder"].variants).median()
    known = results.machines()
    solved = runs("solve")
    solved = solved[[known[key]["machine"]["device"] == "cpu" for key in solved["machine"]]]
    times = {script: _minutes(own) for script, own in by_variant(solved)}
    rows = [
        (
            f"`{rung}`",
            ladder.IDEAS.get(rung) or ladder.IDEAS[rung.split()[0]],
            f"{ladder.lines_of(PROJECT / ladder.script_of(rung))[1]:,}",
            f"{speeds[rung]:,.0f}",
            times.get(rung, ""),
        )
        for rung in LADDER
        if rung in speeds and rung not in ("00_slow_grads", "04_wrappers --envs 3 --parallel")  # docs/chapter09.md
    ]
    return table(("script", "idea", "lines to read", "steps/s", "solves Pong in"), rows)


def _minutes(own: pd.DataFrame) -> str:
    """Return the median time of a script's seeds to the goal in minutes."""
    median = solved_seconds(own).median()
    return f"{median / 60:.0f} min" if median < math.inf else f"over {time_limit(own) / 60:.0f} min"


def ladder_source() -> str:
    """Return where and when the README's speeds were measured."""
    frame = runs("ladder")
    return measured_on(frame, len(rounds(frame, "steps_per_second", EXPERIMENTS["ladder"].variants)))


def chapter09_table() -> str:
    """Return a row per rung: its speed, its ratio to the baseline, and the book's figures."""
    frame = runs("chapter09")
    speeds = rounds(frame, "last_1000_steps_per_second", CHAPTER09)
    rows = []
    for rung in speeds:
        book = f"{BOOK[rung]} ({BOOK[rung] / BOOK[BASELINE]:.2f})"
        ratio = spread(speeds[rung] / speeds[BASELINE], 2)
        rows.append((f"`{rung}`", f"{speeds[rung].median():.0f}", ratio, book))
    header = ("script", "agent steps/s", "ratio to 01", "book f/s (ratio)")
    return with_source(table(header, rows), frame, len(speeds))


def minutes() -> tuple[dict[str, pd.DataFrame], pd.DataFrame]:
    """Return the rows of the runs of chapter 9's rungs, and the speeds of the rungs by round."""
    trained = runs("minutes")
    speeds = rounds(runs("minutes-speed"), "last_1000_steps_per_second", MINUTES)
    rungs = {rung: trained[trained["variant"] == EQUAL.get(rung, rung)] for rung in speeds}
    return {rung: own for rung, own in rungs.items() if len(own)}, speeds


def minutes_table() -> str:
    """Return a row per rung with the book's columns. A rung with one seed has no change.

    Several runs trained at once, so minutes are agent steps divided by the speed of a rung that has the machine to
    itself.
    """
    rungs, speeds = minutes()
    to_18 = {rung: own["steps_to_goal"] / speeds[rung].median() / 60 for rung, own in rungs.items()}
    rows = []
    for rung, own in rungs.items():
        change = 100 * (to_18[rung].median() / to_18[BASELINE].median() - 1)
        is_compared = rung != BASELINE and len(own) > 1 and math.isfinite(change)
        rows.append(
            (
                f"`{rung}`",
                len(own),
                spread(to_18[rung], 0),
                f"{change:+.0f} %" if is_compared else "",
                spread(own["steps_to_goal"] / 1000, 0),
            )
        )
    header = (
        "script",
        "seeds",
        "minutes to 18",
        "change",
        "thousand steps",
    )
    trained, known = runs("minutes"), results.machines()
    processors = " and ".join(dict.fromkeys(_processor(known[key]["machine"]) for key in trained["machine"]))
    source = f"{measured_on(runs('minutes-speed'), len(speeds))} Training: {processors}; {_days(trained)}."
    return f"{table(header, rows)}\n\n{source}"


def engines_table() -> str:
    """Return the steps/s of each engine by number of actors."""
    frame = runs("engines")
    speeds = rounds(frame, "steps_per_second", EXPERIMENTS["engines"].variants)
    rows = [(engine, *(f"{speeds[f'{engine} {n}'].median():,.0f}" for n in ACTORS)) for engine in ENGINES]
    header = ("agent steps/s", *(f"{n} actor{'s' * (n > 1)}" for n in ACTORS))
    return with_source(table(header, rows), frame, len(speeds))


def latency_table() -> str:
    """Return the steps/s of each engine by number of actors, and the ratio of the most actors to one."""
    frame = runs("latency")
    speeds = rounds(frame, "steps_per_second", EXPERIMENTS["latency"].variants)
    rows = []
    for engine in ENGINES:
        ratio = speeds[f"{engine} {ACTORS[-1]}"] / speeds[f"{engine} {ACTORS[0]}"]
        medians = (f"{speeds[f'{engine} {n}'].median():,.0f}" for n in ACTORS)
        rows.append((engine, *medians, f"{ratio.median():.1f}"))
    header = ("agent steps/s", *(f"{n} actor{'s' * (n > 1)}" for n in ACTORS), f"ratio of {ACTORS[-1]} to 1")
    return with_source(table(header, rows), frame, len(speeds))


# Learning


def chapter08_table() -> str:
    """Return a row per variant: mean return over the whole run, and the steps to a mean of 0.

    Bins in which no episode ended are interpolated linearly.
    """
    frame, points = runs("chapter08"), curves("chapter08", "return")
    rows = []
    for variant, own in by_variant(frame, CHAPTER08):
        means = points[points["variant"] == variant].pivot(index="step", columns="seed", values="value")
        means = means.interpolate(limit_area="inside")
        whole = means.mean()
        reached = own["steps_to_goal"][own["steps_to_goal"] < math.inf]
        rows.append(
            (
                variant,
                f"{whole.mean():.2f} ({whole.min():.2f} to {whole.max():.2f})",
                spread_of_seeds(reached, len(own)),
            )
        )
    header = (
        "variant",
        "mean return (range)",
        "steps until 100 episodes average 0",
    )
    return with_source(table(header, rows), frame)


def lag_table() -> str:
    """Return a row per lag: returns with PPO's ratio alone, and with V-trace."""
    frame = runs("lag")
    returns = {variant: spread(own["mean_return"], 0) for variant, own in by_variant(frame)}
    rows = [(behind, returns[f"{behind} ratio"], returns[f"{behind} V-trace"]) for behind in LAGS]
    return with_source(table(("updates behind", "PPO's ratio alone", "V-trace"), rows), frame)


def games_table() -> str:
    """Return a row per game that 02_ppo_fast learnt with its default settings."""
    frame = runs("games")
    frame = frame[frame["variant"].str.startswith("02_ppo_fast ")]
    rows = []
    for variant, own in by_variant(frame, EXPERIMENTS["games"].variants):
        reached = own["steps_to_goal"][own["steps_to_goal"] < math.inf]
        rows.append(
            (
                f"`{variant.split()[1].rpartition(':')[2]}`",
                f"{own['goal'].iloc[0]:g}",
                spread_of_seeds(reached, len(own)),
                f"{own['seconds_to_goal'].median():,.0f}",
                f"{own['greedy'].median():.2f}",
            )
        )
    header = ("game", "goal", "steps to the goal", "seconds", "greedy return")
    return with_source(table(header, rows), frame)


def control_table() -> str:
    """Return a row per task of `control`: the returns of its seeds, and published ones."""
    frame, rows = runs("control"), []
    for variant, own in by_variant(frame, EXPERIMENTS["control"].variants):
        digits = sum(own["greedy"].abs().median() < limit for limit in (1000, 10))
        returns = (spread(own[column], digits) for column in ("greedy", "mean_100"))
        steps, *published = CONTROL[variant]
        rows.append((variant.removeprefix("02_ppo_fast "), f"{steps:,}", *returns, *published))
    header = ("task", "steps", "greedy return", "last 100 training episodes", "rl-zoo", "CleanRL")
    return with_source(table(header, rows), frame)


TABLES: tuple[tuple[str, str, Callable[[], str]], ...] = (  # page, marker and function
    ("README.md", "ladder", readme_table),
    ("docs/speed.md", "ladder", ladder_source),
    ("docs/speed.md", "solve", lambda: solve_table(runs("solve"))),
    ("docs/ppo.md", "trials", lambda: trials_table(runs("trials"))),
    ("docs/chapter08.md", "pong", chapter08_table),
    ("docs/chapter09.md", "speed", chapter09_table),
    ("docs/chapter09.md", "minutes", minutes_table),
    ("docs/distributed.md", "lag", lag_table),
    ("docs/distributed.md", "speed", engines_table),
    ("docs/distributed.md", "latency", latency_table),
    ("docs/your-environment.md", "own-games", games_table),
    ("benchmarks/notes/README.md", "control", control_table),
)


def blocks() -> list[Block]:
    """Return all tables."""
    return [Block(page, marker, make()) for page, marker, make in TABLES]


def write() -> None:
    """Put all tables into their pages."""
    for block in blocks():
        path = PROJECT / block.page
        path.write_text(block.put_into(path.read_text()))

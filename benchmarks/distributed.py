#!/usr/bin/env python3
"""Measure the cost and the gain of remote actors: engines and numbers of actors side by side.

./distributed.py                        # all: about an hour on two cores
./distributed.py speed --rounds 5       # Pong: steps/s of every engine and number of actors
./distributed.py latency                # an environment of 5 ms a step
./distributed.py lag --seeds 5          # learning from segments of older weights, on CartPole
./distributed.py curve --seeds 3        # 8 actors and 1 actor on that environment: return against time
./distributed.py tables                 # only the tables and the picture of docs/distributed.md
"""

import dataclasses
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator
from statistics import fmean

import lab
import launch
import markup
from lib import cli
from lib.actors.fleet import ENGINES
from lib.ppo.actor import ActorSettings, PPOActor, Segment
from lib.ppo.fast import FastModel, FastSettings, FastTrainer
from lib.ppo.learner import PPOLearner
from lib.ppo.segments import Segments

import pandas as pd
import torch
from matplotlib import pyplot as plt
from tqdm import tqdm

PAGE = "docs/distributed.md"
GROUPS = tuple(itertools.product(ENGINES, (1, 2, 4, 8)))  # measured engines and numbers of actors
TIMED_STEPS = 10_240  # agent steps of a timed run of Pong
ROLLOUT_STEPS = 1_024  # agent steps of an update of Pong
LATENCY_SECONDS = 4.0  # seconds of a measurement of latency
LATENCY_ROLLOUT = 64  # steps of an actor's segment in that measurement
LAGS = (0, 4, 12)  # updates by which the weights of a segment are behind
LAG_UPDATES = 80
CURVE_OPTIONS = (
    "--game",
    "pong",
    "--env-id",
    "slow:SlowCartPole-v0",
    *launch.assignments({"rollout": 64, "minibatch": 64, "gamma": 0.99}),
)
CURVE_SECONDS = 90  # seconds of a run of curve
CURVE_BIN = 5  # seconds between two points of the curve
# Planned setups: actors with a core each, and whether the learner has a GPU.
SETUPS = (("16 cores", 14, False), ("8 machines of 32 cores, a GPU", 256, True), ("1,000 actors, a GPU", 1000, True))
MEASURED_CORES = 2  # on which one inline actor plays
# The whole of 03_ppo_actors with 8 actors and an H200 (results/solve/gpu-speed.csv); its learner alone is faster.
GPU_SPEED = 4_582
# The newest screen, a share of the three before a segment of 64 steps, an action, four float32 and two booleans.
STEP_BYTES = 84 * 84 * (1 + 3 / 64) + 8 + 4 * 4 + 2
SETTINGS = FastSettings(minibatch=64, epochs=1, gamma=0.99, lam=0.95, clip=0.2, entropy=0.01, gradient_norm=1.0)


def speed(rounds: int, go_on: bool) -> None:
    """Measure agent steps per second on Pong, learning included, and the learner's seconds of waiting and learning."""
    columns = ("round", "engine", "actors", "steps_per_second", "wait", "learn")
    results = lab.Results("distributed/speed", columns, lab.stamp(steps=TIMED_STEPS), go_on)
    for number, (engine, actors) in tqdm(list(lab.turns(rounds, GROUPS))):
        if results.has(round=number, engine=engine, actors=actors):
            continue
        rung = f"distributed/03_ppo_actors --engine {engine} --actors {actors}"
        report = launch.timed(rung, "--stop-after", str(TIMED_STEPS))
        results.add(
            round=number,
            engine=engine,
            actors=actors,
            steps_per_second=f"{report['steps_per_second']:.1f}",
            wait=f"{report['parts']['wait']:.3f}",
            learn=f"{report['parts']['learn']:.3f}",
        )


def latency(rounds: int, go_on: bool) -> None:
    """Measure agent steps per second of actors with one environment each, whose step takes 5 ms."""
    columns = ("round", "engine", "actors", "steps_per_second")
    results = lab.Results("distributed/latency", columns, lab.stamp(rollout=LATENCY_ROLLOUT), go_on)
    for number, (engine, actors) in tqdm(list(lab.turns(rounds, GROUPS))):
        if results.has(round=number, engine=engine, actors=actors):
            continue
        acting = ActorSettings("slow:SlowCartPole-v0", actors, actors, LATENCY_ROLLOUT, seed=number, engine=engine)
        model = FastModel(acting.facts.space, acting.facts.n_actions)
        trainer = FastTrainer(model, torch.optim.Adam(model.parameters()), SETTINGS)
        source = Segments(acting, PPOLearner(trainer))
        batches = iter(source)
        next(batches)
        start, gathered = time.perf_counter(), 0
        while time.perf_counter() - start < LATENCY_SECONDS:
            gathered += sum(segment.steps for segment in next(batches))
        taken = time.perf_counter() - start
        source.close()
        results.add(
            round=number,
            engine=engine,
            actors=actors,
            steps_per_second=f"{gathered / taken:.3f}",
        )


def lag(seeds: int, go_on: bool) -> None:
    """Measure what 80 updates on CartPole reach if each learns from a segment that is LAGS updates old."""
    columns = ("seed", "lag", "corrected", "mean_return")
    results = lab.Results("distributed/lag", columns, lab.stamp(updates=LAG_UPDATES), go_on)
    for seed, behind, corrected in tqdm(list(itertools.product(range(1, seeds + 1), LAGS, (False, True)))):
        if not results.has(seed=seed, lag=behind, corrected=corrected):
            mean = return_with_lag(behind, corrected, seed)
            results.add(seed=seed, lag=behind, corrected=corrected, mean_return=f"{mean:.1f}")


def return_with_lag(behind: int, corrected: bool, seed: int) -> float:
    """Return the mean of the last 20 returns of such a run, with V-trace or with PPO's ratio alone."""
    torch.manual_seed(seed)
    acting = ActorSettings("CartPole-v1", envs=8, actors=1, rollout=64, seed=seed)
    model = FastModel(acting.facts.space, acting.facts.n_actions)
    optimizer = torch.optim.Adam(model.parameters(), 5e-4, eps=1e-5)
    settings = dataclasses.replace(SETTINGS, minibatch=128, epochs=3, kl_target=0.01)
    learner, actor = PPOLearner(FastTrainer(model, optimizer, settings)), PPOActor(acting, 0)
    waiting: deque[Segment] = deque()
    returns: list[float] = []
    actor.set_model(learner.get_model())
    learner.normalise_by([actor.get_trajectory_segment()])
    first = learner.version
    while learner.version < first + LAG_UPDATES:
        actor.set_model(learner.get_model())
        waiting.append(actor.get_trajectory_segment())
        returns += [episode.total for episode in waiting[-1].episodes]
        if len(waiting) > behind:
            segment = waiting.popleft()
            if not corrected:
                segment.version = learner.version
            learner.train([segment])
    return fmean(returns[-20:])


def curves(seeds: int, go_on: bool) -> None:
    """Measure the mean return against seconds since the process started, for 8 actors and for 1.

    Each actor has two environments.
    """
    columns = ("seed", "actors", "second", "mean_return", "steps")
    results = lab.Results("distributed/curve", columns, lab.stamp(seconds=CURVE_SECONDS), go_on)
    environment = {"PYTHONPATH": f"{lab.PROJECT}/benchmarks:{lab.PROJECT}"}
    for seed, actors in tqdm(list(itertools.product(range(1, seeds + 1), (1, 8)))):
        if results.has(seed=seed, actors=actors):
            continue
        limits = ("--set", f"envs={2 * actors}", "--seed", str(seed), "--time-limit", str(CURVE_SECONDS))
        rung = f"distributed/03_ppo_actors --actors {actors}"
        with launch.finished_run(rung, *CURVE_OPTIONS, *limits, **environment) as run:
            frame = pd.read_csv(run / "episodes.csv")
        for number, own in frame.groupby((frame["seconds"] // CURVE_BIN).astype(int)):
            results.add(
                seed=seed,
                actors=actors,
                second=(number + 1) * CURVE_BIN,
                mean_return=f"{own['return'].mean():.3f}",
                steps=int(own["step"].max()),
            )


def by_group(frame: pd.DataFrame, value: str) -> pd.DataFrame:
    """Return a measurement with a row per round and a column per engine and number of actors: "process 8"."""
    group = frame["engine"] + " " + frame["actors"].astype(str)
    return lab.rounds(frame.assign(group=group), "group", value)


def speed_table(frame: pd.DataFrame) -> str:
    """Return a row per engine and number of actors: steps/s, and the ratio to inline actors in the same round."""
    speeds = by_group(frame, "steps_per_second")
    rows = []
    for group in speeds:
        engine, actors = group.split()
        to_inline = speeds[group] / speeds[f"inline {actors}"]
        rows.append((engine, actors, markup.spread(speeds[group], 0), markup.spread(to_inline, 2)))
    return markup.table(("engine", "actors", "agent steps/s", "ratio to inline, same number of actors"), rows)


def latency_table(frame: pd.DataFrame) -> str:
    """Return a row per engine and number of actors: steps/s, segments/s, and the ratio to one actor."""
    speeds = by_group(frame, "steps_per_second")
    rows = []
    for group in speeds:
        engine, actors = group.split()
        times = speeds[group] / speeds[f"{engine} 1"]
        segments = markup.spread(speeds[group] / LATENCY_ROLLOUT)
        rows.append((engine, actors, markup.spread(speeds[group], 0), segments, markup.spread(times, 2)))
    return markup.table(("engine", "actors", "agent steps/s", "segments/s", "ratio to one actor"), rows)


def curve_table(frame: pd.DataFrame) -> str:
    """Return a row per number of actors: final return, seconds to a return of 100, and steps."""
    rows = []
    for actors, own in frame.groupby("actors"):
        late = own[own["second"] > CURVE_SECONDS - 20].groupby("seed")["mean_return"].mean()
        reached = own[own["mean_return"] >= 100].groupby("seed")["second"].min()
        steps = own.groupby("seed")["steps"].max()
        times = markup.spread_of_seeds(reached, len(late))
        rows.append((actors, markup.spread(late, 0), times, markup.spread(steps, 0)))
    return markup.table(
        ("actors", "mean return, last 20 s", "seconds to a return of 100", "agent steps in total"), rows
    )


def lag_table(frame: pd.DataFrame) -> str:
    """Return a row per lag: returns with PPO's ratio alone, and with V-trace."""
    rows = []
    for behind, own in frame.groupby("lag"):
        alone, corrected = (own[own["corrected"] == choice]["mean_return"] for choice in (False, True))
        rows.append((behind, markup.spread(alone, 0), markup.spread(corrected, 0)))
    return markup.table(("updates behind", "PPO's ratio alone", "V-trace"), rows)


def draw_curve(frame: pd.DataFrame) -> None:
    """Draw the mean return against seconds as docs/pictures/distributed-curve.png."""
    figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    for actors, own in frame.groupby("actors"):
        table = own.pivot(index="second", columns="seed", values="mean_return")
        [line] = axes.plot(table.index, table.mean(axis=1), label="1 actor" if actors == 1 else f"{actors} actors")
        axes.fill_between(table.index, table.min(axis=1), table.max(axis=1), color=line.get_color(), alpha=0.15)
    axes.set(xlabel="seconds since the process started", ylabel="mean return")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(markup.PICTURES / "distributed-curve.png", dpi=110)


def plan_table(frame: pd.DataFrame) -> str:
    """Return the agent steps per second of Pong that actors, learner and network of each setup allow."""
    inline = frame[(frame["engine"] == "inline") & (frame["actors"] == 1)]
    # Timing begins with the first batch. By then, two rollouts have been played, and the second has not been used.
    acting = (TIMED_STEPS - 2 * ROLLOUT_STEPS) / inline["wait"].median() / MEASURED_CORES
    learning = (TIMED_STEPS - ROLLOUT_STEPS) / inline["learn"].median()
    rows = []
    for setup, actors, gpu in SETUPS:
        bounds = [actors * acting, GPU_SPEED if gpu else learning, 10e9 / 8 / STEP_BYTES]
        useful = max(1, round(bounds[1] / acting))
        rows.append((setup, f"{actors:,}", *(f"{bound:,.0f}" for bound in bounds), useful))
    columns = ("setup", "actors", "actors' bound", "learner's bound", "10 Gbit/s", "actors that one learner can use")
    return markup.table(columns, rows)


# Results file, page and table of each marker.
TABLES: dict[str, tuple[str, str, Callable[[pd.DataFrame], str]]] = {
    "speed": ("speed", PAGE, speed_table),
    "latency": ("latency", markup.MEASUREMENTS, latency_table),
    "lag": ("lag", PAGE, lag_table),
    "curve": ("curve", PAGE, curve_table),
    "plan": ("speed", markup.MEASUREMENTS, plan_table),
}
MEASURES: dict[str, Callable[[int, bool], None]] = {
    "speed": speed,
    "latency": latency,
}


def blocks() -> Iterator[markup.Block]:
    """Yield the tables of the pages."""
    for marker, (file, page, make_table) in TABLES.items():
        frame, stamped = lab.read(f"distributed/{file}")
        name = marker if page == PAGE else f"distributed-{marker}"
        rounds = lab.count_rounds(frame) if file in ("speed", "latency") else 0
        yield markup.Block(page, name, f"{make_table(frame)}\n\n{markup.measured_on([stamped], rounds)}")


def pictures() -> None:
    """Draw the picture of the page."""
    draw_curve(lab.read("distributed/curve")[0])


def main() -> None:
    parser = lab.parser(__doc__)
    lab.add_experiments(parser, *MEASURES, "lag", "curve", "tables")
    parser.add_argument(
        "--rounds", type=cli.positive, default=3, help="rounds of all experiments except curve (default: 3)"
    )
    parser.add_argument("--seeds", type=cli.positive, default=3, help="seeds of lag and curve (default: 3)")
    lab.add_go_on(parser)
    args = parser.parse_args()
    chosen = args.what or [*MEASURES, "lag", "curve"]
    for name, measure in MEASURES.items():
        if name in chosen:
            measure(args.rounds, args.go_on)
    if "lag" in chosen:
        lag(args.seeds, args.go_on)
    if "curve" in chosen:
        curves(args.seeds, args.go_on)
    markup.write(blocks())
    pictures()


if __name__ == "__main__":
    main()

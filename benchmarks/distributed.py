#!/usr/bin/env python3
"""Measure the cost and the gain of remote actors: engines and numbers of actors side by side.

./distributed.py                        # all: about an hour on two cores
./distributed.py speed --rounds 5       # Pong: steps/s of every engine and number of actors
./distributed.py latency broadcast sgd  # an environment of 5 ms a step; weights to 8 actors; several learners
./distributed.py curve --seeds 3        # 8 actors and 1 actor on that environment: return against time
./distributed.py tables                 # only the tables and the picture of docs/distributed.md
"""

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator

import lab
import launch
import markup
from lib import cli, dqn_model
from lib.actors.contract import Weights
from lib.actors.engines import ENGINES, start_actors
from lib.ppo.actor import ActorSettings
from lib.ppo.data_parallel import DataParallelTrainer
from lib.ppo.fast import FastModel, FastSettings, FastTrainer
from lib.ppo.learner import PPOLearner
from lib.ppo.rollout import Rollout
from lib.ppo.segments import Segments

import numpy as np
import pandas as pd
import torch
from gymnasium import spaces
from matplotlib import pyplot as plt
from tqdm import tqdm

PAGE = "docs/distributed.md"
GROUPS = tuple(itertools.product(ENGINES, (1, 2, 4, 8)))  # measured engines and numbers of actors
TIMED_STEPS = 10_240  # agent steps of a timed run of Pong
ROLLOUT_STEPS = 1_024  # agent steps of an update of Pong
LATENCY_SECONDS = 4.0  # seconds of a measurement of latency
LATENCY_ROLLOUT = 64  # steps of an actor's segment in that measurement
CURVE_OPTIONS = (
    "--game",
    "pong",
    "--env-id",
    "slow:SlowCartPole-v0",
    *launch.assignments({"rollout": 64, "minibatch": 64, "gamma": 0.99}),
)
CURVE_SECONDS = 90  # seconds of a run of curve
CURVE_BIN = 5  # seconds between two points of the curve
PLANNED_ACTORS = (1, 8, 64, 512)
# A stack of four screens, an int64 action, four float32 numbers and two booleans.
STEP_BYTES = 4 * 84 * 84 + 8 + 4 * 4 + 2
SETTINGS = FastSettings(minibatch=64, epochs=1, gamma=0.99, lam=0.95, clip=0.2, entropy=0.01, gradient_norm=1.0)


class Receiver:
    """Actor that only copies the weights that it receives."""

    def __init__(self, number: int, state: object = None):
        self.number = number

    def set_model(self, model: Weights) -> None:
        self.tensors = {name: tensor.clone() for name, tensor in model.tensors.items()}

    def get_trajectory_segment(self) -> int:
        return self.number


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
        model = FastModel(acting.space, acting.n_actions)
        trainer = FastTrainer(model, torch.optim.Adam(model.parameters()), SETTINGS)
        source = Segments(acting, PPOLearner(trainer))
        batches = iter(source)
        next(batches)
        start, gathered = time.perf_counter(), 0
        while time.perf_counter() - start < LATENCY_SECONDS:
            gathered += len(next(batches))
        taken = time.perf_counter() - start
        source.close()
        results.add(
            round=number,
            engine=engine,
            actors=actors,
            steps_per_second=f"{LATENCY_ROLLOUT * gathered / taken:.3f}",
        )


def broadcast(rounds: int, go_on: bool) -> None:
    """Measure the milliseconds until 8 actors of this machine have copied the weights of the Nature network."""
    results = lab.Results("distributed/broadcast", ("engine", "round", "milliseconds"), lab.stamp(actors=8), go_on)
    tensors = dqn_model.DQN((4, 84, 84), 6).state_dict()
    for engine in ENGINES:
        if results.has(engine=engine, round=8 * rounds - 1):
            continue
        with start_actors(engine, Receiver, 8, Weights(1, tensors)) as actors:
            for version in range(2, 8 * rounds + 7):
                start = time.perf_counter()
                actors.broadcast(Weights(version, tensors))
                actors.gather()
                milliseconds = 1000 * (time.perf_counter() - start)
                number = version - 7  # the first five are not counted
                if number >= 0 and not results.has(engine=engine, round=number):
                    results.add(engine=engine, round=number, milliseconds=f"{milliseconds:.3f}")


def sgd(rounds: int, go_on: bool) -> None:
    """Measure the seconds of an epoch over 1,024 images, in minibatches of 256, by one learner and by two."""
    columns = ("round", "learners", "threads", "seconds")
    results = lab.Results("distributed/sgd", columns, lab.stamp(minibatch=256), go_on)
    two_learners = DataParallelTrainer(image_trainer(), 2)
    trainers: dict[tuple[int, int], FastTrainer | DataParallelTrainer] = {
        (1, 1): image_trainer(),
        (1, 2): image_trainer(),
        (2, 1): two_learners,
    }
    rollout = random_rollout()
    for trainer in trainers.values():
        trainer.update(rollout)
    for number, (learners, threads) in tqdm(list(lab.turns(rounds, list(trainers)))):
        if results.has(round=number, learners=learners, threads=threads):
            continue
        torch.set_num_threads(threads)
        start = time.perf_counter()
        trainers[learners, threads].update(rollout)
        taken = time.perf_counter() - start
        results.add(round=number, learners=learners, threads=threads, seconds=f"{taken:.4f}")
    two_learners.close()


def image_trainer() -> FastTrainer:
    """Return a trainer of a model for Pong."""
    torch.manual_seed(0)
    model = FastModel(spaces.Box(0, 255, (4, 84, 84), np.uint8), 6)
    optimizer = torch.optim.Adam(model.parameters(), 1e-5)
    return FastTrainer(model, optimizer, dataclasses.replace(SETTINGS, minibatch=256))


def random_rollout() -> Rollout:
    """Return a rollout of 64 steps of 16 games with random content."""
    generator, size = torch.Generator().manual_seed(1), (64, 16)
    log_probs, values, next_values, rewards = (torch.randn(size, generator=generator) - 2.0 for _ in range(4))
    return Rollout(
        states=torch.randint(0, 255, (*size, 84, 84, 4), dtype=torch.uint8, generator=generator),
        actions=torch.randint(0, 6, size, generator=generator),
        log_probs=log_probs,
        values=values,
        next_values=next_values,
        rewards=rewards,
        terminated=torch.zeros(size, dtype=torch.bool),
        ended=torch.zeros(size, dtype=torch.bool),
    )


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


def broadcast_table(frame: pd.DataFrame) -> str:
    """Return a row per engine."""
    rows = [(name, markup.spread(own["milliseconds"])) for name, own in frame.groupby("engine", sort=False)]
    return markup.table(("engine", "ms until 8 actors have the weights"), rows)


def sgd_table(frame: pd.DataFrame) -> str:
    """Return a row per number of learners and threads."""
    rows = []
    for (learners, threads), own in frame.groupby(["learners", "threads"]):
        rows.append((learners, threads, markup.spread(own["seconds"], 2)))
    return markup.table(("learners", "torch threads each", "seconds per epoch"), rows)


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
    """Return the steps per second that more actors, this learner and a network would allow, by calculation."""
    inline = frame[(frame["engine"] == "inline") & (frame["actors"] == 1)]
    # Timing begins with the first batch. By then, two rollouts have been played, and the second has not been used.
    acting = (TIMED_STEPS - 2 * ROLLOUT_STEPS) / inline["wait"].median()
    learning = (TIMED_STEPS - ROLLOUT_STEPS) / inline["learn"].median()
    slow_network, fast_network = (gigabits * 1e9 / 8 / STEP_BYTES for gigabits in (1, 10))
    rows = []
    for actors in PLANNED_ACTORS:
        bounds = [actors * acting, learning, slow_network, fast_network]
        rows.append((actors, *(f"{bound:,.0f}" for bound in bounds)))
    return markup.table(("actors", "actors' bound", "learner's bound", "1 Gbit/s", "10 Gbit/s"), rows)


# Results file, page and table of each marker.
TABLES: dict[str, tuple[str, str, Callable[[pd.DataFrame], str]]] = {
    "speed": ("speed", PAGE, speed_table),
    "latency": ("latency", markup.MEASUREMENTS, latency_table),
    "broadcast": ("broadcast", markup.MEASUREMENTS, broadcast_table),
    "sgd": ("sgd", markup.MEASUREMENTS, sgd_table),
    "curve": ("curve", PAGE, curve_table),
    "plan": ("speed", markup.MEASUREMENTS, plan_table),
}
MEASURES: dict[str, Callable[[int, bool], None]] = {
    "speed": speed,
    "latency": latency,
    "broadcast": broadcast,
    "sgd": sgd,
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
    lab.add_experiments(parser, *MEASURES, "curve", "tables")
    parser.add_argument(
        "--rounds", type=cli.positive, default=3, help="rounds of all experiments except curve (default: 3)"
    )
    parser.add_argument("--seeds", type=cli.positive, default=3, help="seeds of curve (default: 3)")
    lab.add_go_on(parser)
    args = parser.parse_args()
    chosen = args.what or [*MEASURES, "curve"]
    for name, measure in MEASURES.items():
        if name in chosen:
            measure(args.rounds, args.go_on)
    if "curve" in chosen:
        curves(args.seeds, args.go_on)
    markup.write(blocks())
    pictures()


if __name__ == "__main__":
    main()

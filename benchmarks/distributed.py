#!/usr/bin/env python3
"""What acting elsewhere costs and brings: engines and numbers of actors beside each other.

./distributed.py                       # all: about an hour on two cores
./distributed.py speed --rounds 5      # Pong: steps/s of every engine and number of actors, in turn
./distributed.py latency broadcast sgd # an environment of 5 ms a step; weights to 8 actors; several learners
./distributed.py curve --seeds 3       # 8 actors beside 1 on that environment: reward against time
./distributed.py tables                # only the tables and the picture of docs/distributed.md anew
"""

import argparse
import dataclasses
import itertools
import time

import matplotlib
import numpy as np
import pandas as pd
import torch
from gymnasium import spaces
from tqdm import tqdm

import lab

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from lib import dqn_model
from lib.actors.contract import ENGINES, Weights
from lib.actors.engines import start_actors
from lib.ppo.actor import Acting
from lib.ppo.data_parallel import DataParallelTrainer
from lib.ppo.learner import PPOLearner
from lib.ppo.model import Model
from lib.ppo.rollout import Rollout
from lib.ppo.segments import Segments
from lib.ppo.update import Trainer, UpdateSettings

PAGE = "docs/distributed.md"
ENGINES = ENGINES
CREWS = tuple(itertools.product(ENGINES, (1, 2, 4, 8)))  # that are measured: engine, number of actors
TIMED, ROLLOUT = 10_240, 1_024  # agent steps of a run of Pong that is timed, and of an update
CURVE = ("--env-id", "slow:SlowCartPole-v0", "--set", "rollout=64", "--set", "minibatch=64", "--set", "gamma=0.99")
SECONDS = 90  # of a run of curve
PLANNED = (1, 8, 64, 512)
# A stack of four screens, the action, four float32 numbers and two truth values.
STEP_BYTES = 4 * 84 * 84 + 8 + 4 * 4 + 2
BIN = 5  # seconds of a point in its picture


class Receiver:
    """An actor that does nothing but copy the weights that it is given."""

    def __init__(self, number: int, state: object = None):
        self.number = number

    def set_model(self, model: Weights) -> None:
        self.tensors = {name: tensor.clone() for name, tensor in model.tensors.items()}

    def get_trajectory_segment(self) -> int:
        return self.number


def speed(rounds: int, go_on: bool) -> None:
    """Agent steps a second of Pong, learning included, after the start; and what an actor does in a step."""
    columns = ("round", "engine", "actors", "steps_per_second", "wait", "learn")
    results = lab.Results("distributed-speed", columns, lab.stamp(steps=TIMED), go_on)
    for number, (engine, k) in tqdm(list(lab.turns(rounds, CREWS))):
        if not results.has(round=number, engine=engine, actors=k):
            rung = f"distributed/02_ppo_actors --engine {engine} --actors {k}"
            said = lab.timed(rung, "--stop-after", str(TIMED))
            parts = {name: f"{said['parts'][name]:.3f}" for name in ("wait", "learn")}
            speed = f"{said['steps_per_second']:.1f}"
            results.add(round=number, engine=engine, actors=k, steps_per_second=speed, **parts)


def latency(rounds: int, go_on: bool) -> None:
    """Agent steps and segments a second of actors alone, an environment each, whose step takes 5 ms."""
    columns = ("round", "engine", "actors", "steps_per_second", "segments_per_second", "megabytes_per_second")
    results = lab.Results("distributed-latency", columns, lab.stamp(rollout=64), go_on)
    for number, (engine, k) in tqdm(list(lab.turns(rounds, CREWS))):
        if results.has(round=number, engine=engine, actors=k):
            continue
        acting = Acting("slow:SlowCartPole-v0", k, k, 64, seed=number, engine=engine)
        model = Model(acting.space, acting.n_actions)
        trainer = Trainer(model, torch.optim.Adam(model.parameters()), SETTINGS)
        source = Segments(acting, PPOLearner(trainer))
        batches = iter(source)
        next(batches)
        start, gathered, size = time.perf_counter(), 0, 0
        while time.perf_counter() - start < 4.0:
            batch = next(batches)
            gathered += len(batch)
            size += sum(array.nbytes for segment in batch for array in segment.arrays.values())
        taken = time.perf_counter() - start
        source.close()
        rates = {"steps": 64 * gathered / taken, "segments": gathered / taken, "megabytes": size / taken / 1e6}
        told = {f"{name}_per_second": f"{rate:.3f}" for name, rate in rates.items()}
        results.add(round=number, engine=engine, actors=k, **told)


SETTINGS = UpdateSettings(minibatch=64, epochs=1, gamma=0.99, lam=0.95, clip=0.2, entropy=0.01)


def broadcast(rounds: int, go_on: bool) -> None:
    """Milliseconds until 8 actors of this machine have copied the weights of the Nature network."""
    results = lab.Results("distributed-broadcast", ("engine", "round", "milliseconds"), lab.stamp(actors=8), go_on)
    tensors = dqn_model.DQN((4, 84, 84), 6).state_dict()
    for engine in ENGINES:
        if results.has(engine=engine, round=8 * rounds - 1):
            continue
        with start_actors(engine, Receiver, 8, Weights(1, tensors)) as crew:
            for version in range(2, 8 * rounds + 7):
                start = time.perf_counter()
                crew.broadcast(Weights(version, tensors))
                crew.gather()
                if version > 6 and not results.has(engine=engine, round=version - 7):
                    milliseconds = 1000 * (time.perf_counter() - start)
                    results.add(engine=engine, round=version - 7, milliseconds=f"{milliseconds:.3f}")


def sgd(rounds: int, go_on: bool) -> None:
    """Seconds of an update of 1,024 images in minibatches of 256 by one learner and by two, in turn."""
    columns = ("round", "learners", "threads", "seconds")
    results = lab.Results("distributed-sgd", columns, lab.stamp(minibatch=256), go_on)
    several = DataParallelTrainer(images(), 2)
    trainers: dict[tuple[int, int], Trainer | DataParallelTrainer] = {
        (1, 1): images(),
        (1, 2): images(),
        (2, 1): several,
    }
    rollout = random_rollout()
    for trainer in trainers.values():
        trainer.update(rollout)
    for number, (learners, threads) in tqdm(list(lab.turns(rounds, list(trainers)))):
        if not results.has(round=number, learners=learners, threads=threads):
            torch.set_num_threads(threads)
            start = time.perf_counter()
            trainers[learners, threads].update(rollout)
            taken = time.perf_counter() - start
            results.add(round=number, learners=learners, threads=threads, seconds=f"{taken:.4f}")
    several.close()


def images() -> Trainer:
    """A trainer of a model for Pong."""
    torch.manual_seed(0)
    model = Model(spaces.Box(0, 255, (4, 84, 84), np.uint8), 6)
    optimizer = torch.optim.Adam(model.parameters(), 1e-5)
    return Trainer(model, optimizer, dataclasses.replace(SETTINGS, minibatch=256))


def random_rollout() -> Rollout:
    """64 steps of 16 games that nobody has played."""
    generator, size = torch.Generator().manual_seed(1), (64, 16)
    names = ("log_probs", "values", "next_values", "rewards")
    return Rollout(
        states=torch.randint(0, 255, (*size, 84, 84, 4), dtype=torch.uint8, generator=generator),
        actions=torch.randint(0, 6, size, generator=generator),
        terminated=torch.zeros(size, dtype=torch.bool),
        ended=torch.zeros(size, dtype=torch.bool),
        **{name: torch.randn(size, generator=generator) - 2.0 for name in names},
    )


def curves(seeds: int, go_on: bool) -> None:
    """Mean return by seconds of process time: 8 actors with two environments each, beside 1 with two."""
    columns = ("seed", "actors", "second", "mean_return", "steps")
    results = lab.Results("distributed-curve", columns, lab.stamp(seconds=SECONDS), go_on)
    for seed, k in tqdm(list(itertools.product(range(1, seeds + 1), (1, 8)))):
        if results.has(seed=seed, actors=k):
            continue
        limits = ("--set", f"envs={2 * k}", "--seed", str(seed), "--time-limit", str(SECONDS))
        environment = {"PYTHONPATH": f"{lab.PROJECT}/benchmarks:{lab.PROJECT}"}
        with lab.finished_run(f"distributed/02_ppo_actors --actors {k}", *CURVE, *limits, **environment) as run:
            frame = pd.read_csv(run / "episodes.csv")
        for number, found in frame.groupby((frame["seconds"] // BIN).astype(int)):
            told = {"mean_return": f"{found['return'].mean():.3f}", "steps": int(found["step"].max())}
            results.add(seed=seed, actors=k, second=(number + 1) * BIN, **told)


def speed_table(frame: pd.DataFrame) -> str:
    """A row an engine and number of actors: steps/s, and the ratio to as many inline in the same round."""
    frame = frame.assign(turn=frame["engine"] + " " + frame["actors"].astype(str))
    speeds = lab.rounds(frame, "turn", "steps_per_second")
    rows = []
    for turn in speeds:
        engine, k = turn.split()
        to_inline = speeds[turn] / speeds[f"inline {k}"]
        overhead = 1000 / speeds[turn] - 1000 / speeds[f"inline {k}"]
        rows.append((engine, k, lab.spread(speeds[turn], 0), lab.spread(to_inline, 2), lab.spread(overhead, 3)))
    header = ("engine", "actors", "steps/s", "ratio to inline", "ms more a step than inline")
    return f"{lab.table(header, rows)}\n\nMinimum / median / maximum of {len(speeds)} rounds."


def latency_table(frame: pd.DataFrame) -> str:
    """A row an engine and number of actors: steps/s, and how many times those of one actor."""
    frame = frame.assign(turn=frame["engine"] + " " + frame["actors"].astype(str))
    speeds, megabytes = (lab.rounds(frame, "turn", f"{what}_per_second") for what in ("steps", "megabytes"))
    rows = []
    for turn in speeds:
        engine, k = turn.split()
        times = speeds[turn] / speeds[f"{engine} 1"]
        per_second = (lab.spread(speeds[turn], 0), lab.spread(speeds[turn] / 64, 1), lab.spread(megabytes[turn], 2))
        rows.append((engine, k, *per_second, lab.spread(times, 2)))
    header = ("engine", "actors", "steps/s", "segments/s", "MB/s of segments", "times one actor's steps")
    return f"{lab.table(header, rows)}\n\nMinimum / median / maximum of {len(speeds)} rounds."


def broadcast_table(frame: pd.DataFrame) -> str:
    """A row an engine."""
    rows = [(name, lab.spread(found["milliseconds"])) for name, found in frame.groupby("engine", sort=False)]
    return lab.table(("engine", "ms, minimum / median / maximum"), rows)


def sgd_table(frame: pd.DataFrame) -> str:
    """A row a number of learners and threads."""
    rows = []
    for (learners, threads), found in frame.groupby(["learners", "threads"]):
        rows.append((learners, threads, lab.spread(found["seconds"], 3)))
    return lab.table(("learners", "torch threads of each", "seconds an update, minimum / median / maximum"), rows)


def curve_table(frame: pd.DataFrame) -> str:
    """A row a number of actors: where it came to; and the picture."""
    figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    rows = []
    for k, found in frame.groupby("actors"):
        table = found.pivot(index="second", columns="seed", values="mean_return")
        [line] = axes.plot(table.index, table.mean(axis=1), label=f"{k} actor{'s' * (k > 1)}")
        axes.fill_between(table.index, table.min(axis=1), table.max(axis=1), color=line.get_color(), alpha=0.15)
        late = found[found["second"] > SECONDS - 20].groupby("seed")["mean_return"].mean()
        reached = found[found["mean_return"] >= 100].groupby("seed")["second"].min()
        steps = found.groupby("seed")["steps"].max()
        times = f"{len(reached)} of {len(late)}" + (f": {lab.spread(reached, 0)}" if len(reached) else "")
        rows.append((k, len(late), lab.spread(late, 0), times, lab.spread(steps, 0)))
    axes.set(xlabel="seconds since the process started", ylabel="mean return")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(lab.PICTURES / "distributed-curve.png", dpi=110)
    header = ("actors", "seeds", "mean return of the last 20 s", "seconds to a mean of 100", "agent steps")
    return lab.table(header, rows)


def plan_table(frame: pd.DataFrame) -> str:
    """On paper: what so many actors, each as fast as one here, the learner as it is here, and a network would allow."""
    inline = frame[(frame["engine"] == "inline") & (frame["actors"] == 1)]
    # The seconds begin with the first batch: two rollouts have been played by then, one of which is still to be learnt.
    acting = (TIMED - 2 * ROLLOUT) / inline["wait"].median()
    learning = (TIMED - ROLLOUT) / inline["learn"].median()
    rows = []
    for k in PLANNED:
        bounds = [k * acting, learning, *(gigabits * 1e9 / 8 / STEP_BYTES for gigabits in (1, 10))]
        rows.append((k, *(f"{bound:,.0f}" for bound in bounds), f"{min(bounds[0], bounds[1], bounds[3]):,.0f}"))
    header = (
        "actors",
        "they could make",
        "this learner could take",
        "1 Gbit/s",
        "10 Gbit/s",
        "so, with 10 Gbit/s",
    )
    return f"{lab.table(header, rows)}\n\nAgent steps a second; {STEP_BYTES:,} bytes a step."


TABLES = {
    "speed": speed_table,
    "latency": latency_table,
    "broadcast": broadcast_table,
    "sgd": sgd_table,
    "curve": curve_table,
    "plan": plan_table,
}
FILES = {"plan": "speed"}  # of a table that is made of another one's measurement


def file_of(name: str) -> str:
    """The results that a table is made of."""
    return f"distributed-{FILES.get(name, name)}"


def stamped_table(name: str) -> str:
    """A table of docs/distributed.md, and where it was measured."""
    frame, stamped = lab.read(file_of(name))
    return f"{TABLES[name](frame)}\n\n{lab.where(stamped)}"


def tables() -> None:
    """The page's tables and picture from the CSV files that there are."""
    for name in TABLES:
        if lab.path_of(file_of(name)).exists():
            lab.put(PAGE, name, stamped_table(name))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    lab.experiments(parser, *(name for name in TABLES if name not in FILES), "tables")
    parser.add_argument("--rounds", type=int, default=3, help="of all but curve (default: 3)")
    parser.add_argument("--seeds", type=int, default=3, help="of curve (default: 3)")
    parser.add_argument("--go-on", action="store_true", help="keep what an interrupted measurement has")
    args = parser.parse_args()
    what = args.what or [name for name in TABLES if name not in FILES]
    for name, measure in (("speed", speed), ("latency", latency), ("broadcast", broadcast), ("sgd", sgd)):
        if name in what:
            measure(args.rounds, args.go_on)
    if "curve" in what:
        curves(args.seeds, args.go_on)
    tables()


if __name__ == "__main__":
    main()

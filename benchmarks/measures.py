"""What one measurement does: train a script, time it, time a part of the program, or play a peer.

A function takes a job and returns its figures, and its curves by name with the columns step, seconds and value.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import results
from lib.analysis.run_data import Run
from lib.analysis.trained_agent import TrainedAgent
from lib.envs import vector_env
from lib.hyperparameters import PPO_FAST_HYPERPARAMS
from lib.ppo.actor import ActorSettings, PPOActor, Segment
from lib.ppo.fast import FastModel, FastTrainer
from lib.ppo.learner import PPOLearner
from lib.ppo.segments import Segments
from lib.run.curve import rolling_mean
from lib.run.folder import read_params
from lib.run.stopping import NOT_FINITE, SOLVED, STEPS, TIME
from lib.system.files import PROJECT

import numpy as np
import pandas as pd
import torch

Measured = tuple[dict[str, Any], Mapping[str, pd.DataFrame]]
Measure = Callable[[results.Job], Measured]

HERE = Path(__file__).parent
MODULES = os.pathsep.join(map(str, (HERE, PROJECT / "tests", PROJECT)))  # environments that jobs name by module
PARTS = ("act", "environment", "store", "wait", "sample", "learn")  # of a run's seconds
POINTS = 200  # most points of a curve of means of 100 episodes
EMULATOR = "the emulator alone"


def command(settings: str, *options: str) -> list[str]:
    """Return the command that starts a script.

    Args:
        settings: a script of chapter 9, or "folder/name" for other folders, and its options.
        options: further options.
    """
    script, *own_options = settings.split()
    path = PROJECT / (f"{script}.py" if "/" in script else f"chapter09/{script}.py")
    return [sys.executable, str(path), *own_options, *options]


def environment(job: results.Job) -> dict[str, str]:
    """Return the environment variables of a job's processes."""
    threads = {} if job.threads is None else {"OMP_NUM_THREADS": str(job.threads)}
    return os.environ | {"PYTHONPATH": MODULES} | threads


def folder_of(job: results.Job) -> Path:
    """Return the folder of a job's runs. Other settings, another commit and another machine have other folders."""
    digest = hashlib.sha256(repr((job.settings, job.place)).encode()).hexdigest()[:8]
    name = re.sub(r"[^\w.]+", "-", f"{job.experiment}-{job.variant}-seed{job.seed}-{digest}")
    return PROJECT / "runs" / "bench" / name


def play_run(job: results.Job, goes_on: bool = True) -> Path:
    """Run a job's script to its end and return the run folder.

    Args:
        job: the job.
        goes_on: resume the job's interrupted run. Otherwise it starts again, because its seconds count.

    Raises:
        CalledProcessError: if the script failed or was stopped. A run with a non-finite loss counts as ended.
    """
    folder = folder_of(job)
    run = next((path.parents[1] for path in folder.glob("*/checkpoints/step-*.pt") if goes_on), None)
    if run is not None:
        words = command(job.settings, "--resume", str(run))
    else:
        shutil.rmtree(folder, ignore_errors=True)
        words = command(job.settings, "--seed", str(job.seed), "--runs-dir", str(folder))
    if run is None or stopped(run) not in (SOLVED, STEPS):
        words.append("--quiet")
        process = subprocess.run(words, check=False, env=environment(job), cwd=PROJECT, stdout=subprocess.DEVNULL)
        run = next(folder.glob("*"), None)
        if run is None or stopped(run) != NOT_FINITE:
            process.check_returncode()
    assert run is not None
    return run


def result_of(run: Path) -> dict[str, Any]:
    """Return the result.json of a run folder; empty if there is none."""
    path = run / "result.json"
    result: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return result


def stopped(run: Path) -> str | None:
    """Return why a run ended, or None if it has not."""
    reason: str | None = result_of(run).get("stopped")
    return reason


def figures(run: Path) -> dict[str, Any]:
    """Return a run's end, its steps and seconds to its goal and milestone, its speed and its evaluation.

    The goal is stop_reward, or the milestone if there is no stop_reward. What was not reached is infinite.
    """
    result, hyperparameters = result_of(run), read_params(run)["hyperparameters"]
    bounds = {"goal": hyperparameters["stop_reward"], "milestone": hyperparameters["milestone"]}
    if bounds["goal"] is None:
        bounds = {"goal": bounds["milestone"]}
    values = {name: result[name] for name in ("stopped", "steps", "seconds", "episodes", "mean_100")}
    values["goal"] = bounds["goal"]
    for name, bound in bounds.items():
        if bound is not None:
            reached = result["reached"].get(str(float(bound)), {})
            for figure, key in (("steps", "step"), ("seconds", "seconds"), ("episodes", "episode")):
                values[f"{figure}_to_{name}"] = reached.get(key, math.inf)
    if "evaluation" in result:
        evaluation = result["evaluation"]
        values |= {f"evaluation_{name}": evaluation[name] for name in ("mean", "std", "distinct")}
        values["evaluation_worst"] = min(evaluation["returns"])
    return values | speeds(result)


def speeds(result: dict[str, Any]) -> dict[str, Any]:
    """Return the speeds of a run's last process, and its seconds by part."""
    process = result["this_process"]
    names = ("learning_since", "steps_per_second", "last_1000_steps_per_second", "warm_up_steps_per_second")
    parts = {part: process["parts"].get(part, 0.0) for part in PARTS}
    return {name: process[name] for name in names} | parts | {"rest": process["training_seconds"] - sum(parts.values())}


def means_of_100(run: Path) -> pd.DataFrame:
    """Return the mean return of the last 100 episodes, at no more than POINTS of them."""
    episodes = pd.read_csv(run / "episodes.csv")
    episodes = episodes.assign(value=rolling_mean(episodes["return"])).dropna(subset="value")
    return thinned(episodes[["step", "seconds", "value"]])


def thinned(curve: pd.DataFrame) -> pd.DataFrame:
    """Return at most POINTS points of a curve, its first and last among them."""
    return curve.iloc[np.unique(np.linspace(0, len(curve) - 1, POINTS).astype(int))] if len(curve) else curve


def binned(run: Path, column: str, width: int, by: str = "step") -> pd.DataFrame:
    """Return the mean of a column of episodes.csv over the episodes that ended in each bin.

    Args:
        run: run folder.
        column: "return" or "length".
        width: agent steps or seconds of a bin.
        by: "step" or "seconds". A point has the end of its bin; the other of the two is the last episode's.
    """
    episodes = pd.read_csv(run / "episodes.csv")
    number = ((episodes["step"] - 1) // width if by == "step" else episodes["seconds"] // width).astype(int)
    bins = episodes.groupby(number).agg(step=("step", "max"), seconds=("seconds", "max"), value=(column, "mean"))
    return bins.assign(**{by: (bins.index + 1) * width})


def emulator_speed(seconds: float = 4.0) -> float:
    """Return the agent steps per second of 16 native games of Pong, without acting and learning."""
    envs = vector_env.make_vector_env("PongNoFrameskip-v4", 16)
    actions = np.random.default_rng(0).integers(0, 6, (1000, 16))
    envs.reset(seed=1)
    for action in actions[:100]:
        envs.step(action)
    start, steps = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        envs.step(actions[steps % len(actions)])
        steps += 1
    speed = 16 * steps / (time.perf_counter() - start)
    envs.close()
    return speed


def solve(job: results.Job) -> Measured:
    """Time a run from the start of its process. The emulator alone is timed before and after it."""
    before = emulator_speed()
    run = play_run(job, goes_on=False)
    emulator = {"emulator_before": before, "emulator_after": emulator_speed()}
    return figures(run) | emulator, {"mean_100": means_of_100(run)}


def train(job: results.Job) -> Measured:
    """Train a script to its end. Only its steps count, so it may share the machine, and be resumed."""
    run = play_run(job)
    return figures(run), {"mean_100": means_of_100(run)}


def train_in_bins(job: results.Job, width: int, by: str = "step", columns: Sequence[str] = ("return",)) -> Measured:
    """The same, with the mean return (and length) in each bin of steps or seconds; see `binned`."""
    run = play_run(job, goes_on=by == "step")
    return figures(run), {column: binned(run, column, width, by) for column in columns}


def train_and_evaluate(job: results.Job, episodes: int = 100) -> Measured:
    """Train a script to its end, and play greedy episodes with its last checkpoint."""
    run = play_run(job)
    words = command("tools/evaluate", str(run), "--checkpoint", "last", "--episodes", str(episodes))
    words += ["--seed", str(job.seed), "--env-id", read_params(run)["hyperparameters"]["env_name"]]
    subprocess.run(words, check=True, env=environment(job), stdout=subprocess.DEVNULL)
    evaluation = json.loads((run / "evaluation.json").read_text())
    return figures(run) | {"greedy": evaluation["mean"]}, {}


def overestimation(job: results.Job, width: int, games: int = 10) -> Measured:
    """Train a DQN, and compare the values that it predicts with what its greedy policy earns.

    A state's predicted value is its largest action value. What the policy earns from it is the discounted sum of the
    clipped rewards that follow; see van Hasselt et al. (2015), figure 3. The curve "values" is the mean predicted value
    of the run's fixed states.
    """
    run = play_run(job)
    agent = TrainedAgent(run, "last")
    gamma = read_params(run)["hyperparameters"]["gamma"]
    env = agent.make_env()
    predicted: list[float] = []
    earned: list[float] = []
    for game in range(games):
        state, _ = env.reset(seed=1000 * job.seed + game)
        rewards: list[float] = []
        over = False
        while not over:
            scores = agent.policy.scores(np.array(state)[None])[0]
            predicted.append(float(scores.max()))
            state, reward, terminated, truncated, _ = env.step(int(scores.argmax()))
            rewards.append(float(reward))
            over = terminated or truncated
        sums = itertools.accumulate(reversed(rewards), lambda after, reward: reward + gamma * after)
        earned += sums
    steps, values = Run.read(run).scalars["train/values"]
    number = (np.array(steps) - 1) // width
    held_out = pd.Series(values).groupby(number).mean()
    points = pd.DataFrame({"step": (held_out.index + 1) * width, "seconds": None, "value": held_out})
    own = {"predicted": fmean(predicted), "earned": fmean(earned)}
    return figures(run) | own, {"return": binned(run, "return", width), "values": points}


def speed(job: results.Job) -> Measured:
    """Time a short run, without start-up and warm-up; or the emulator alone."""
    if job.variant == EMULATOR:
        return {"steps_per_second": emulator_speed()}, {}
    return speeds(result_of(play_run(job, goes_on=False))), {}


SETTINGS = dataclasses.replace(PPO_FAST_HYPERPARAMS["own"], minibatch=64, epochs=1, kl_target=None)
ROLLOUT = 64  # steps of an actor's segment in `latency` and `lag`


def latency(job: results.Job, seconds: float = 4.0) -> Measured:
    """Measure the agent steps per second of actors with one environment each, whose step takes 5 ms, without learning.

    The settings are the engine and the number of actors: "ray 8".
    """
    engine, actors = job.settings.split()
    acting = ActorSettings("slow:SlowCartPole-v0", int(actors), int(actors), ROLLOUT, seed=job.seed, engine=engine)
    model = FastModel(acting.env.single_observation_space, acting.env.single_action_space)
    source = Segments(acting, PPOLearner(FastTrainer(model, torch.optim.Adam(model.parameters()), SETTINGS)))
    batches = iter(source)
    next(batches)
    start, gathered = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        gathered += sum(segment.steps for segment in next(batches))
    taken = time.perf_counter() - start
    source.close()
    return {"steps_per_second": gathered / taken}, {}


def lag(job: results.Job, updates: int = 80) -> Measured:
    """Learn CartPole from segments whose weights are some updates old; the figure is the mean of the last 20 returns.

    The settings are the number of updates and the correction: "12 V-trace", or "12 ratio" for PPO's ratio alone.
    """
    behind, correction = job.settings.split()
    torch.manual_seed(job.seed)
    acting = ActorSettings("CartPole-v1", envs=8, actors=1, rollout=ROLLOUT, seed=job.seed)
    model = FastModel(acting.env.single_observation_space, acting.env.single_action_space)
    optimizer = torch.optim.Adam(model.parameters(), 5e-4, eps=1e-5)
    settings = dataclasses.replace(SETTINGS, minibatch=128, epochs=3, kl_target=0.01)
    learner, actor = PPOLearner(FastTrainer(model, optimizer, settings)), PPOActor(acting, 0)
    waiting: deque[Segment] = deque()
    returns: list[float] = []
    actor.set_model(learner.get_model())
    first = learner.version
    while learner.version < first + updates:
        actor.set_model(learner.get_model())
        waiting.append(actor.get_trajectory_segment())
        returns += [episode.total for episode in waiting[-1].episodes]
        if len(waiting) > int(behind):
            segment = waiting.popleft()
            if correction == "ratio":
                segment.version = learner.version
            learner.train([segment])
    return {"mean_return": fmean(returns[-20:])}, {}


# Name of each peer's packages, peers/NAME.txt, and the package whose version is shown. CleanRL runs from a checkout.
PEERS = {"sb3": "stable-baselines3", "rl_games": "rl-games", "cleanrl": None}
EPISODE = re.compile(r"global_step=(\d+), episodic_return=\[?\s*(-?[\d.]+)")
Episode = tuple[int, float, float]  # agent steps so far, seconds since the start, return


def pins(peer: str) -> list[str]:
    """Return the pinned packages of a peer."""
    return (HERE / "peers" / f"{peer}.txt").read_text().split()


def pin(peer: str) -> str:
    """Return the pin of a peer's own package, such as "stable-baselines3==2.9.2"."""
    return next(pin for pin in pins(peer) if pin.startswith(f"{PEERS[peer]}=="))


def peer_python(peer: str) -> Path:
    """Return the Python of a peer's virtual environment, which is created again when its pins change."""
    folder = HERE / "peers" / f".venv-{peer}"
    created_from = folder / "created-from.txt"
    if not created_from.exists() or created_from.read_text().split() != pins(peer):
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        packages = ["--quiet", "--requirement", str(HERE / "peers" / f"{peer}.txt")]
        subprocess.run([str(folder / "bin" / "python"), "-m", "pip", "install", *packages], check=True)
        shutil.copy(HERE / "peers" / f"{peer}.txt", created_from)
    return folder / "bin" / "python"


def play_peer(job: results.Job) -> Measured:
    """Run another project until the mean return of 100 episodes reaches a goal, or to a time limit.

    The settings are "PIN: SCRIPT OPTIONS; until GOAL or SECONDS s". The clock starts with the process. A pin without a
    version names a checkout, whose folder is in an environment variable: CLEANRL.
    """
    package, words, goal, limit = re.fullmatch(r"(.*): (.*); until (.*) or (.*) s", job.settings).groups()
    script, *options = words.split()
    peer = next(name for name, own in PEERS.items() if package.split("==")[0] in (name, own))
    is_packaged = PEERS[peer] is not None
    folder = HERE / "peers" if is_packaged else Path(os.environ.get(peer.upper(), peer))
    if not (folder / script).exists():
        raise SystemExit(f"{folder / script} does not exist; name the checkout: {peer.upper()}=PATH ./bench.py run ...")
    command = [str(peer_python(peer)), str((folder / script).resolve()), *options, "--seed", str(job.seed)]
    git = ["git", "-C", str(folder), "rev-parse", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=True).stdout
    before = emulator_speed()
    reason, episodes = follow(command, float(goal), float(limit))
    frame = pd.DataFrame(episodes, columns=["step", "seconds", "return"])
    last = frame.iloc[-1] if episodes else pd.Series({"step": 0, "seconds": float(limit)})
    values = {
        "version": package.replace("==", " ") if is_packaged else f"{package} {commit[:10]}",
        "stopped": reason,
        "steps": int(last["step"]),
        "seconds": float(last["seconds"]),
        "episodes": len(episodes),
        "mean_100": float(frame["return"].tail(100).mean()),
        "seconds_to_goal": float(last["seconds"]) if reason == SOLVED else math.inf,
        "steps_per_second": learning_speed(frame, RANDOM_STEPS.get(job.variant, 0)),
        "emulator_before": before,
        "emulator_after": emulator_speed(),
    }
    curve = frame.assign(value=rolling_mean(frame["return"])).dropna(subset="value")
    return values, {"mean_100": thinned(curve[["step", "seconds", "value"]])}


def speed_beside(job: results.Job) -> Measured:
    """Measure steps a second: this project's as `speed` does, a peer's from its episodes."""
    return play_peer(job) if "; until " in job.settings else speed(job)


RANDOM_STEPS = {"sb3-dqn": 100_000}  # agent steps of random play before learning


def learning_speed(episodes: pd.DataFrame, random_steps: int) -> float:
    """Return the agent steps per second from the first episode after random play to the last; NaN if there are none."""
    learning = episodes[episodes["step"] >= random_steps]
    if len(learning) < 2:
        return math.nan
    difference = learning.iloc[-1] - learning.iloc[0]
    return float(difference["step"] / difference["seconds"])


def follow(command: Sequence[str], goal: float, time_limit: float) -> tuple[str, list[Episode]]:
    """Run a peer until its game is solved or the time is over, then kill it with all its processes.

    It sees no GPU, because this project uses none here.

    Returns:
        "solved", "time limit" or "ended by itself", and its episodes.

    Raises:
        SystemExit: if it failed.
    """
    began = time.perf_counter()
    episodes: list[Episode] = []
    output: deque[str] = deque(maxlen=20)
    with tempfile.TemporaryDirectory() as folder:  # working directory, for the files that the peer writes
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=folder,
            env=os.environ | {"PYTHONUNBUFFERED": "1", "PYTHONPATH": "", "CUDA_VISIBLE_DEVICES": ""},
            start_new_session=True,
        )
        assert process.stdout is not None
        end = threading.Timer(time_limit, kill, (process,))
        end.start()
        try:
            for line in process.stdout:
                output.append(line)
                if match := EPISODE.search(line):
                    episodes.append((int(match[1]), time.perf_counter() - began, float(match[2])))
                    if len(episodes) >= 100 and fmean(total for *_, total in episodes[-100:]) >= goal:
                        return SOLVED, episodes
            code = process.wait()
        finally:
            end.cancel()
            kill(process)
            process.wait()
    if time.perf_counter() - began >= time_limit:
        return TIME, episodes
    if code:
        raise SystemExit(f"{' '.join(command)} failed with exit code {code}:\n{''.join(output)}")
    return "ended by itself", episodes


def kill(process: subprocess.Popen[str]) -> None:
    """Kill a process and all its children."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)

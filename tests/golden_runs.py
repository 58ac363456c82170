"""Short runs of six scripts, by which two commits are compared bit for bit on one machine.

    python tests/golden_runs.py OLD NEW [RUN ...]

Both commits are extracted into temporary folders, and play the same RUNS there. The table says whether the weights in
the last checkpoint, the rows of episodes.csv (without the seconds) and train/loss are equal. The exit code is 1 if
anything differs. test_golden.py plays the same runs.
"""

import csv
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

PROJECT = Path(__file__).parents[1]


class GoldenRun(NamedTuple):
    """A short run.

    Attributes:
        script: pattern of the script's path, because scripts are renumbered.
        options: its options.
        early: step shortly after the warm-up. Until then a DQN's actions are random, so no rounding has changed them.
        last: step at which it stops. Learning has chosen actions, train/* was logged, and a replay has wrapped around.
    """

    script: str
    options: str
    early: int
    last: int


DQN = "--set epsilon_frames=200 --set target_net_sync=20 --set checkpoint_every=24"
PPO = "--set envs=4 --set rollout=16 --set minibatch=32 --set checkpoint_every=128 --set anneal_steps=300"
RUNS = {
    "01_baseline": GoldenRun(
        "chapter09/0?_baseline.py",
        f"--env-id fakes:ShortPong-v0 {DQN} --set replay_initial=80 --set replay_size=120 --set batch_size=4",
        *(84, 200),
    ),
    "03_parallel": GoldenRun(
        "chapter09/0?_parallel.py",
        f"--env-id fakes:Numbers-v0 {DQN} --players 2 --replay-ratio 4 --set batch_size=2"
        " --set replay_initial=120 --set replay_size=200",
        *(128, 400),
    ),
    "05_native_envs": GoldenRun(
        "chapter09/0?_native_envs.py",
        f"--env-id fakes:ShortPong-v0 {DQN} --set normalise=true --envs 4 --set batch_size=1"
        " --set replay_initial=120 --set replay_size=200",
        *(128, 560),
    ),
    "08_dqn_rainbow": GoldenRun(
        "chapter08/0?_dqn_rainbow.py",
        f"--env-id fakes:Numbers-v0 {DQN} --envs 4 --set batch_size=2 --set replay_initial=120 --set replay_size=200",
        *(128, 560),
    ),
    "02_ppo_fast": GoldenRun("distributed/0?_ppo_fast.py", f"--env-id fakes:ShortPong-v0 {PPO}", 128, 512),
    "ppo_actors": GoldenRun("distributed/0?_ppo_actors.py", f"--env-id fakes:Numbers-v0 {PPO}", 128, 512),
}


def find_script(project: Path, run: GoldenRun) -> Path:
    """Return the path of a run's script in a project."""
    [script] = project.glob(run.script)
    return script


def play(project: Path, run: GoldenRun, runs_dir: Path) -> Path:
    """Play a run in the code of `project`, and return its folder."""
    script = find_script(project, run)
    command = [sys.executable, script.name, *run.options.split(), "--seed", 5, "--quiet", "--runs-dir", runs_dir]
    paths = {"PYTHONPATH": f"{project}{os.pathsep}{project / 'tests'}"}
    process = subprocess.run(
        [*map(str, command), "--stop-after", str(run.last)],
        cwd=script.parent,
        env=os.environ | paths,
        capture_output=True,
        text=True,
    )
    if process.returncode:
        raise RuntimeError(f"{script} ended with {process.returncode}:\n{process.stdout}{process.stderr}")
    [folder] = runs_dir.iterdir()
    return folder


def results_of(folder: Path) -> dict[str, dict[Any, Any]]:
    """Return what is compared: the weights, the rows of episodes.csv without the seconds, and train/loss by step."""
    checkpoint = torch.load(max((folder / "checkpoints").glob("step-*.pt")), weights_only=True)
    with (folder / "episodes.csv").open(newline="") as file:
        rows = [row | {"seconds": ""} for row in csv.DictReader(file)]
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    return {
        "weights": {name: (str(each.dtype), each.tolist()) for name, each in checkpoint["net"].items()},
        "episodes": dict(enumerate(rows)),
        "losses": {event.step: event.value for event in accumulator.Scalars("train/loss")},
    }


def comparison(old: dict[Any, Any], new: dict[Any, Any]) -> str:
    """Return whether two results are equal, and how many there are or differ."""
    keys = old.keys() | new.keys()
    different = sum(repr(old.get(key)) != repr(new.get(key)) for key in keys)  # because nan != nan
    return f"DIFFERENT ({different} of {len(keys)})" if different or not keys else f"equal ({len(keys)})"


def extract(commit: str, target: Path) -> Path:
    """Write the files of a commit into a folder."""
    archive = subprocess.run(["git", "archive", commit], cwd=PROJECT, capture_output=True, check=True).stdout
    target.mkdir()
    subprocess.run(["tar", "-x"], input=archive, cwd=target, check=True)
    return target


def main(old: str, new: str, *names: str) -> int:
    is_equal = True
    with tempfile.TemporaryDirectory(prefix="golden-") as temporary, ThreadPoolExecutor(2) as pool:
        projects = [extract(old, Path(temporary, "old")), extract(new, Path(temporary, "new"))]
        for name in names or RUNS:
            runs_dirs = [project / f"golden-{name}" for project in projects]
            before, after = map(results_of, pool.map(play, projects, [RUNS[name]] * 2, runs_dirs))
            verdicts = {kind: comparison(before[kind], after[kind]) for kind in before}
            print(f"{name:<16}" + "".join(f"{kind} {verdict:<24}" for kind, verdict in verdicts.items()), flush=True)
            is_equal = is_equal and all(verdict.startswith("equal") for verdict in verdicts.values())
    return int(not is_equal)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

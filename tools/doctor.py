#!/usr/bin/env python3
"""Is this machine fit for training, and what would make it faster? Takes half a minute.

    ./doctor.py
    ./doctor.py --cuda --game breakout        # with the GPU, and the memory that this game's replay needs
    ./doctor.py --quick && echo fit           # nothing is timed; exit code 1 where something has to be changed

A line a finding: `ok`, `note` for what costs speed or comfort, `problem` for what keeps a run from working.
"""

from __future__ import annotations  # where a package is missing, types that it has cannot be named

import configparser
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

MISSING = ""
try:
    import ale_py
    import numpy as np
    import psutil
    import torch

    from lib import cli, dqn_model
    from lib.envs import vector_env
    from lib.envs.single_env import make_env
    from lib.errors import UsageError
    from lib.experience.replay_buffer import ReplayBuffer
    from lib.hyperparameters import HYPERPARAMS
    from lib.nets import precision
    from lib.run.options import DEFAULT_RUNS_DIR
    from lib.system import machine, memory

except ImportError as error:  # it is said what is wrong, and nothing else is looked at
    MISSING = str(error)

OK, NOTE, PROBLEM = "ok", "note", "problem"
SECONDS = 5  # that each speed is measured for
SLOW_DISK = 50  # megabytes a second, below which saving a full replay stops a run for a quarter of a minute
REINSTALL = "make clean, then make test; docs/install.md"
CHECKPOINTS = 3  # so many are on the disk for a moment, each half of a forecast, which has frames and their copy


class Finding(NamedTuple):
    """A line of the report."""

    level: str
    text: str
    advice: str = ""


def python() -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    fits = sys.version_info >= (3, 11)
    yield Finding(OK if fits else PROBLEM, f"Python {version}", "" if fits else "3.11 or newer is needed")


def packages() -> Iterator[Finding]:
    """Those that setup.cfg asks for, and ptan, which it cannot ask for."""
    config = configparser.ConfigParser()
    config.read(Path(__file__).parents[1] / "setup.cfg")
    wanted = [*config["options"]["install_requires"].split("\n"), "ptan ==0.8.1"]
    fitting = []
    for line in filter(None, map(str.strip, wanted)):
        name = line.split()[0]
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            yield Finding(PROBLEM, f"{name} is not installed", REINSTALL)
            continue
        if MISSING:
            continue
        from packaging.requirements import Requirement  # which comes with other packages

        requirement = Requirement(line)
        if not requirement.specifier.contains(version, prereleases=True):
            advice = f"{requirement.specifier} is asked for: {REINSTALL}"
            yield Finding(PROBLEM, f"{requirement.name} {version}", advice)
        else:
            fitting.append(f"{requirement.name} {version}")
    if MISSING:
        yield Finding(PROBLEM, f"the packages cannot be imported: {MISSING}", REINSTALL)
    else:
        yield Finding(OK, f"{len(fitting)} packages, among them {', '.join(fitting[:4])}")


def game(env_id: str) -> Iterator[Finding]:
    """The emulator and the game's ROM, which come with ale-py."""
    try:
        make_env(env_id).reset(seed=1)
        yield Finding(OK, f"{env_id} runs, by ale-py {ale_py.__version__}")
    except (UsageError, OSError) as error:
        advice = "ale-py brings the ROMs: pip install --force-reinstall ale-py"
        yield Finding(PROBLEM, f"{env_id} does not run: {error}", advice)


def processor() -> Iterator[Finding]:
    here = machine.machine()
    cores, threads = here["cores"], torch.get_num_threads()
    yield Finding(OK, f"{here['processor']}, {cores} cores, {threads} torch threads")
    if threads > cores:
        yield Finding(NOTE, f"{threads} threads wait for each other on {cores} cores", f"OMP_NUM_THREADS={cores}")
    if threads < cores and "OMP_NUM_THREADS" in os.environ:
        yield Finding(NOTE, f"OMP_NUM_THREADS is {os.environ['OMP_NUM_THREADS']}", "unset it: learning uses all cores")
    load = os.getloadavg()[0]
    if load > 0.5 * cores:
        yield Finding(NOTE, f"other programs keep {load:.1f} of {cores} cores busy", "what is timed below is too slow")
    capability = torch.backends.cpu.get_cpu_capability()
    fast = precision.has_bfloat16(torch.device("cpu"))
    advice = "" if fast else "float32 is used in its place, and learning from images takes about twice as long"
    yield Finding(OK if fast else NOTE, f"{capability}, {'with' if fast else 'without'} bfloat16 in hardware", advice)


def accelerator(device: torch.device) -> Iterator[Finding]:
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            found = torch.cuda.get_device_properties(index)
            used = "" if device.type == "cuda" else "it is not used without --cuda"
            text = f"GPU {index}: {found.name}, {found.total_memory / 1e9:.0f} GB, CUDA {torch.version.cuda}"
            yield Finding(OK, text, used)
    elif torch.backends.mps.is_available():
        yield Finding(OK, "an Apple GPU", "" if device.type == "mps" else "it is not used without --device mps")
    elif shutil.which("nvidia-smi"):
        advice = "install a PyTorch that has CUDA, and a driver that is new enough; docs/install.md"
        yield Finding(NOTE, f"there is a GPU's driver, but PyTorch {torch.__version__} sees no GPU", advice)
    else:
        yield Finding(OK, "no GPU: all of this works without, and was measured without")


def replay(name: str, runs_dir: Path) -> Iterator[Finding]:
    """Memory for the game's replay, and room on the disk for its checkpoints."""
    params = HYPERPARAMS[name]
    env = make_env(params.env_name)
    needed = ReplayBuffer.forecast(env, params.replay_size, params.checkpoint_replay)
    for what, free, times in (
        ("memory", memory.free(), 1),
        (f"disk in {runs_dir}", psutil.disk_usage(str(runs_dir)).free, CHECKPOINTS / 2),
    ):
        text = f"{what}: {free / 1e9:.1f} GB free, {times * needed / 1e9:.1f} GB for {name}'s replay"
        fits = times * needed < free
        smaller = f"--set replay_size={int(0.8 * params.replay_size * free / (times * needed))}"
        without = " or --set checkpoint_replay=false" if what.startswith("disk") else ""
        yield Finding(OK if fits else PROBLEM, text, "" if fits else f"take {smaller}{without}")


def disk(runs_dir: Path) -> Iterator[Finding]:
    content, size = os.urandom(2**20), 64
    with tempfile.NamedTemporaryFile(dir=runs_dir) as file:
        start = time.perf_counter()
        for _ in range(size):
            file.write(content)
        file.flush()
        os.fsync(file.fileno())
        speed = size * 2**20 / 1e6 / (time.perf_counter() - start)
    slow = speed < SLOW_DISK
    advice = "another --runs-dir, or --set checkpoint_every=200000" if slow else ""
    yield Finding(NOTE if slow else OK, f"disk: {speed:.0f} MB/s written and synchronised", advice)


def emulator(env_id: str) -> Iterator[Finding]:
    """Agent steps a second of sixteen games in native threads that nobody learns from."""
    envs = vector_env.make_vector_env(env_id, 16)
    envs.reset(seed=1)
    actions = np.random.default_rng(1).integers(envs.single_action_space.n, size=(64, 16))
    steps, start = 0, time.perf_counter()
    while time.perf_counter() - start < SECONDS:
        envs.step(actions[steps // 16 % 64])
        steps += 16
    speed = steps / (time.perf_counter() - start)
    envs.close()
    yield Finding(OK, f"emulator: {speed:,.0f} agent steps/s, sixteen games at once")


def learner(device: torch.device) -> Iterator[Finding]:
    """Updates a second of the Nature network on 32 transitions, as the book's scripts make them, one an agent step."""
    net = dqn_model.DQN((4, 84, 84), 6).to(device)
    optimizer = torch.optim.Adam(net.parameters())
    states = torch.randint(0, 255, (32, 4, 84, 84), dtype=torch.uint8, device=device)
    updates, start = 0, time.perf_counter()
    while time.perf_counter() - start < SECONDS:
        with torch.no_grad():
            targets = net(states).max(1).values
        loss = torch.nn.functional.mse_loss(net(states)[:, 0], targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()
        updates += 1
    speed = updates / (time.perf_counter() - start)
    yield Finding(OK, f"learner: {speed:.0f} updates/s of 32 transitions on {device}; 01_baseline makes fewer steps/s")


def examine(env_id: str, game_name: str, device_name: str, runs_dir: Path, quick: bool) -> Iterator[Finding]:
    """All findings, each as soon as it is there; no more are looked for where the first ones let nothing run."""
    device = torch.device("cpu")
    needed = [*python(), *packages(), *game(env_id)]
    try:
        device = cli.usable_device(device_name)
        runs_dir.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=runs_dir).close()
    except UsageError as error:
        needed.append(Finding(PROBLEM, str(error)))
    except OSError as error:
        needed.append(Finding(PROBLEM, f"{runs_dir} cannot be written: {error.strerror}", "give another --runs-dir"))
    yield from needed
    yield from processor()
    yield from accelerator(device)
    if any(finding.level == PROBLEM for finding in needed):
        return
    yield from replay(game_name, runs_dir)
    if not quick:
        yield from disk(runs_dir)
        yield from emulator(env_id)
        yield from learner(device)


def main() -> int:
    parser = cli.tool(__doc__)
    parser.add_argument("--cuda", dest="device", action="store_const", const="cuda", help="same as --device cuda")
    parser.add_argument("--device", metavar="D", help="where the networks would be (default: cpu)")
    parser.add_argument("--game", default="pong", choices=list(HYPERPARAMS), help="whose replay (default: pong)")
    parser.add_argument("--runs-dir", default=DEFAULT_RUNS_DIR, type=Path, help="where runs go (default: runs/)")
    parser.add_argument("--quick", action="store_true", help="time nothing")
    parser.set_defaults(device="cpu")
    args = parser.parse_args()
    return told(examine(HYPERPARAMS[args.game].env_name, args.game, args.device, args.runs_dir, args.quick))


def told(findings: Iterable[Finding]) -> int:
    """Print them as they come; returns the exit code."""
    problems = 0
    for finding in findings:
        advice = f"\n         -> {finding.advice}" if finding.advice else ""
        print(f"{finding.level:<8} {finding.text}{advice}", flush=True)
        problems += finding.level == PROBLEM
    print(f"\nTo be changed first: {problems}" if problems else "\nThis machine is fit for training.")
    return int(problems > 0)


if __name__ == "__main__":
    if MISSING:
        sys.exit(told([*python(), *packages()]))
    with cli.exit_codes():
        sys.exit(main())

#!/usr/bin/env python3
"""Check whether this machine is suitable for training, and what would make it faster. Takes half a minute.

    ./doctor.py
    ./doctor.py --cuda --game breakout        # also checks the GPU, and the memory for this game's replay buffer
    ./doctor.py --quick && echo fit           # measures no speeds; exit code 1 if there is a problem

Each line is a finding: `ok`, `note` if something costs speed or comfort, or `problem` if something prevents training.
"""

import configparser
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

sys.path.append(str(Path(__file__).resolve().parents[1]))

from lib import has_environment, missing_environment  # first: it names a Python that is too old

# isort: split
from importlib import metadata

IMPORT_ERROR = ""
try:
    from lib import cli, dqn_model
    from lib.envs import vector_env
    from lib.envs.single_env import make_env
    from lib.errors import UsageError
    from lib.experience.replay_buffer import ReplayBuffer
    from lib.hyperparameters import HYPERPARAMS
    from lib.run.options import DEFAULT_RUNS_DIR
    from lib.system import machine, memory

    import ale_py
    import numpy as np
    import psutil
    import torch
    from gymnasium import spaces
    from packaging.requirements import Requirement

except ImportError as error:  # reported as a finding; then only the Python version and the packages are checked
    IMPORT_ERROR = str(error)

OK, NOTE, PROBLEM = "ok", "note", "problem"
SECONDS = 5  # duration of each speed measurement
MIN_DISK_SPEED = 50  # MB/s; with a slower disk, saving a full replay buffer interrupts a run for 15 seconds
DISK_TEST_MEGABYTES = 64
NUM_ENVS = 16
REINSTALL = "make clean, then make install; see docs/install.md"
CHECKPOINTS = 3  # largest number of checkpoints on the disk at the same time


class Finding(NamedTuple):
    """One line of the report, and advice below it."""

    level: str
    text: str
    advice: str = ""


def check_python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    supported = sys.version_info >= (3, 11)
    return Finding(OK if supported else PROBLEM, f"Python {version}", "" if supported else "3.11 or newer is needed")


def check_packages() -> Iterator[Finding]:
    """Compare the installed packages with setup.cfg. ptan is missing there because its own pins conflict."""
    config = configparser.ConfigParser()
    config.read(Path(__file__).resolve().parents[1] / "setup.cfg")
    fitting = []
    for line in (*config["options"]["install_requires"].strip().split("\n"), "ptan ==0.8.1"):
        name = line.split()[0]
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            yield Finding(PROBLEM, f"{name} is not installed", REINSTALL)
            continue
        if IMPORT_ERROR:
            continue
        specifier = Requirement(line).specifier
        if specifier.contains(version, prereleases=True):
            fitting.append(f"{name} {version}")
        else:
            yield Finding(PROBLEM, f"{name} {version}", f"version {specifier} is needed: {REINSTALL}")
    if IMPORT_ERROR:
        yield Finding(PROBLEM, f"the packages cannot be imported: {IMPORT_ERROR}", REINSTALL)
    else:
        yield Finding(OK, f"{len(fitting)} packages, including {', '.join(fitting[:4])}")


def check_game(env_id: str) -> Finding:
    """Start a game. The emulator and the ROMs are part of ale-py."""
    try:
        make_env(env_id).reset(seed=1)
    except (UsageError, OSError) as error:
        advice = "ale-py includes the ROMs: pip install --force-reinstall ale-py"
        return Finding(PROBLEM, f"{env_id} does not run: {error}", advice)
    return Finding(OK, f"{env_id} runs with ale-py {ale_py.__version__}")


def check_device(name: str) -> Finding | None:
    try:
        cli.usable_device(name)
    except UsageError as error:
        return Finding(PROBLEM, str(error))
    return None


def check_runs_dir(runs_dir: Path) -> Finding | None:
    try:
        runs_dir.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=runs_dir).close()
    except OSError as error:
        return Finding(PROBLEM, f"{runs_dir} cannot be written: {error.strerror}", "give another --runs-dir")
    return None


def check_processor() -> Iterator[Finding]:
    info = machine.machine()
    cores, threads = info["cores"], torch.get_num_threads()
    yield Finding(OK, f"{info['processor']}, {cores} cores, {threads} torch threads")
    if threads > cores:
        yield Finding(NOTE, f"{threads} threads compete for {cores} cores", f"set OMP_NUM_THREADS={cores}")
    if threads < cores and "OMP_NUM_THREADS" in os.environ:
        advice = "unset it, so that learning uses all cores"
        yield Finding(NOTE, f"OMP_NUM_THREADS is {os.environ['OMP_NUM_THREADS']}", advice)
    load = os.getloadavg()[0]
    if load > 0.5 * cores:
        advice = "speeds measured meanwhile are too low"
        yield Finding(NOTE, f"the load is {load:.1f} on {cores} cores, so other programs may be running", advice)
    capability = torch.backends.cpu.get_cpu_capability()
    if info["fast_bfloat16"]:
        yield Finding(OK, f"{capability}, faster in bfloat16")
    else:
        yield Finding(NOTE, f"{capability}, not faster in bfloat16", "float32 is used instead")


def check_accelerator(device: "torch.device") -> Iterator[Finding]:
    if torch.cuda.is_available():
        advice = "" if device.type == "cuda" else "it is used only with --cuda"
        for index in range(torch.cuda.device_count()):
            gpu = torch.cuda.get_device_properties(index)
            text = f"GPU {index}: {gpu.name}, {gpu.total_memory / 1e9:.0f} GB, CUDA {torch.version.cuda}"
            yield Finding(OK, text, advice)
    elif torch.backends.mps.is_available():
        yield Finding(OK, "an Apple GPU", "" if device.type == "mps" else "it is used only with --device mps")
    elif shutil.which("nvidia-smi"):
        advice = "install a PyTorch build with CUDA and a recent driver; see docs/install.md"
        yield Finding(NOTE, f"a GPU driver is installed, but PyTorch {torch.__version__} finds no GPU", advice)
    else:
        yield Finding(OK, "no GPU; everything works without one, and the published speeds were measured without one")


def check_replay_size(game: str, runs_dir: Path) -> Iterator[Finding]:
    """Compare the free memory and disk space with the needs of the game's replay buffer."""
    params = HYPERPARAMS[game]
    in_memory = ReplayBuffer.forecast(make_env(params.env_name), params.replay_size, params.checkpoint_replay)
    # The forecast counts the frames twice, in the buffer and in a copy for saving. A checkpoint holds them once.
    on_disk = CHECKPOINTS * in_memory / 2
    free_on_disk = psutil.disk_usage(str(runs_dir)).free
    for place, free, needed, alternative in (
        ("memory", memory.free(), in_memory, ""),
        (f"disk in {runs_dir}", free_on_disk, on_disk, " or --set checkpoint_replay=false"),
    ):
        text = f"{place}: {free / 1e9:.1f} GB free, {needed / 1e9:.1f} GB for {game}'s replay buffer"
        if needed < free:
            yield Finding(OK, text)
        else:
            fitting = int(0.8 * params.replay_size * free / needed)
            warm_up = f" --set replay_initial={fitting}" if fitting < params.replay_initial else ""
            yield Finding(PROBLEM, text, f"use --set replay_size={fitting}{warm_up}{alternative}")


def measure_disk(runs_dir: Path) -> Finding:
    megabyte = os.urandom(2**20)
    start = time.perf_counter()
    try:
        with tempfile.NamedTemporaryFile(dir=runs_dir) as file:
            for _ in range(DISK_TEST_MEGABYTES):
                file.write(megabyte)
            file.flush()
            os.fsync(file.fileno())
            speed = DISK_TEST_MEGABYTES * 2**20 / 1e6 / (time.perf_counter() - start)
    except OSError as error:
        text = f"disk: {DISK_TEST_MEGABYTES} MB cannot be written to {runs_dir}: {error.strerror}"
        return Finding(PROBLEM, text, "make room, or use another --runs-dir")
    text = f"disk: {speed:.0f} MB/s written and synchronised"
    if speed < MIN_DISK_SPEED:
        return Finding(NOTE, text, "use another --runs-dir, or --set checkpoint_every=200000")
    return Finding(OK, text)


def measure_emulator(env_id: str) -> Finding:
    """Measure the agent steps per second of parallel games with random actions."""
    envs = vector_env.make_vector_env(env_id, NUM_ENVS)
    assert isinstance(envs.single_action_space, spaces.Discrete)
    envs.reset(seed=1)
    actions = np.random.default_rng(1).integers(envs.single_action_space.n, size=(64, NUM_ENVS))
    rounds, start = 0, time.perf_counter()
    while time.perf_counter() - start < SECONDS:
        envs.step(actions[rounds % len(actions)])
        rounds += 1
    speed = rounds * NUM_ENVS / (time.perf_counter() - start)
    envs.close()
    return Finding(OK, f"emulator: {speed:,.0f} agent steps/s in {NUM_ENVS} parallel games")


def measure_learner(device: "torch.device") -> Finding:
    """Measure the updates per second of the Nature network with minibatches of 32 transitions."""
    net = dqn_model.DQN((4, 84, 84), 6).to(device)
    optimizer = torch.optim.Adam(net.parameters())
    states = torch.randint(0, 255, (32, 4, 84, 84), dtype=torch.uint8, device=device)
    updates, start = 0, time.perf_counter()
    while time.perf_counter() - start < SECONDS:
        with torch.no_grad():
            targets = net(states).max(1).values
        loss = torch.nn.functional.mse_loss(net(states)[:, 0], targets)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        loss.item()
        updates += 1
    speed = updates / (time.perf_counter() - start)
    text = f"learner: {speed:.0f} updates/s of 32 transitions on {device}"
    return Finding(OK, f"{text}, an upper bound for the steps/s of 01_baseline")


def examine(game: str, device_name: str, runs_dir: Path, quick: bool) -> Iterator[Finding]:
    """Yield all findings. Memory, disk and speeds are checked only if no earlier check found a problem."""
    env_id = HYPERPARAMS[game].env_name
    device_problem, folder_problem = check_device(device_name), check_runs_dir(runs_dir)
    basics = [check_python(), *check_packages(), check_game(env_id)]
    basics += [problem for problem in (device_problem, folder_problem) if problem]
    device = torch.device("cpu" if device_problem else device_name)
    yield from basics
    yield from check_processor()
    yield from check_accelerator(device)
    if any(finding.level == PROBLEM for finding in basics):
        return
    yield from check_replay_size(game, runs_dir)
    if not quick:
        yield measure_disk(runs_dir)
        yield measure_emulator(env_id)
        yield measure_learner(device)


def print_findings(findings: Iterable[Finding]) -> int:
    """Print findings as they arrive, and return the exit code."""
    problems = 0
    for finding in findings:
        advice = f"\n         -> {finding.advice}" if finding.advice else ""
        print(f"{finding.level:<8} {finding.text}{advice}", flush=True)
        problems += finding.level == PROBLEM
    print(f"\nProblems to solve first: {problems}" if problems else "\nThis machine is suitable for training.")
    return int(problems > 0)


def main() -> int:
    parser = cli.tool(__doc__)
    parser.add_argument("--cuda", dest="device", action="store_const", const="cuda", help="same as --device cuda")
    parser.add_argument("--device", metavar="D", help="device for the networks (default: cpu)")
    parser.add_argument("--game", default="pong", choices=list(HYPERPARAMS), help="game to check (default: pong)")
    parser.add_argument("--runs-dir", default=DEFAULT_RUNS_DIR, type=Path, help="folder for runs (default: runs/)")
    parser.add_argument("--quick", action="store_true", help="skip the speed measurements")
    parser.set_defaults(device="cpu")
    args = parser.parse_args()
    return print_findings(examine(args.game, args.device, args.runs_dir, args.quick))


if __name__ == "__main__":
    if not has_environment():
        print(missing_environment("torch"), file=sys.stderr)
        sys.exit(2)
    if IMPORT_ERROR:
        sys.exit(print_findings([check_python(), *check_packages()]))
    with cli.exit_codes():
        sys.exit(main())

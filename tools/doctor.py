#!/usr/bin/env python3
"""Check whether this machine is suitable for training.

    ./doctor.py && echo fit

Each line is a finding: `ok`, `note` if something costs speed, or `problem` if something prevents training. The exit
code is 1 if there is a problem.
"""

import configparser
import os
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from lib import cli
from lib.envs.single_env import make_env
from lib.errors import UsageError
from lib.system import machine, memory
from lib.system.files import PROJECT

import torch
from packaging.requirements import Requirement

GAME = "PongNoFrameskip-v4"
SHOWN = ("torch", "pytorch-ignite", "gymnasium", "ale-py")  # packages whose versions are printed


def check_packages() -> Iterator[tuple[str, str]]:
    """Compare the installed packages with setup.cfg, and with ptan, which setup.cfg lacks because its pins conflict."""
    config = configparser.ConfigParser()
    config.read(PROJECT / "setup.cfg")
    advice = "make clean, then make install; see docs/install.md"
    for line in (*config["options"]["install_requires"].strip().split("\n"), "ptan ==0.8.1"):
        package = Requirement(line)
        try:
            version = metadata.version(package.name)
        except metadata.PackageNotFoundError:
            version = ""
        if not version or not package.specifier.contains(version, prereleases=True):
            yield "problem", f"{package.name} {version or 'is missing'}, and {package.specifier} is needed: {advice}"
        elif package.name in SHOWN:
            yield "ok", f"{package.name} {version}"


def check_machine() -> Iterator[tuple[str, str]]:
    """Start a game, whose emulator and ROMs are part of ale-py, and look at processor, memory and GPUs."""
    try:
        make_env(GAME).reset(seed=1)
        yield "ok", f"{GAME} runs"
    except (UsageError, OSError) as error:
        yield "problem", f"{GAME} does not run: {error}; pip install --force-reinstall ale-py"
    info, cores = machine.machine(), machine.cores()
    threads, load = torch.get_num_threads(), os.getloadavg()[0]
    yield "ok", f"Python {sys.version.split()[0]}, {info['processor']}, {cores} cores"
    if threads != cores:
        yield "note", f"torch uses {threads} threads on {cores} cores; set OMP_NUM_THREADS={cores}"
    if load > 0.5 * cores:
        yield "note", f"the load is {load:.1f} on {cores} cores: other programs make training slower"
    faster = "faster" if info["fast_bfloat16"] else "not faster, so float32 is used"
    yield "ok", f"{torch.backends.cpu.get_cpu_capability()}; bfloat16 is {faster}"
    yield "ok", f"{memory.free() / 1e9:.1f} GB of memory free"
    for index in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(index)
        yield "ok", f"{gpu.name} with {gpu.total_memory / 1e9:.0f} GB, CUDA {torch.version.cuda}: use it with --cuda"
    if torch.backends.mps.is_available():
        yield "ok", "an Apple GPU: use it with --device mps"
    elif not torch.cuda.is_available():
        yield "ok", f"PyTorch {torch.__version__} finds no GPU; everything works without one (see docs/install.md)"


def main() -> int:
    cli.tool(__doc__).parse_args()
    problems = 0
    for level, text in (*check_packages(), *check_machine()):
        print(f"{level:<8} {text}")
        problems += level == "problem"
    print(f"\nProblems to solve first: {problems}" if problems else "\nThis machine is suitable for training.")
    return int(problems > 0)


if __name__ == "__main__":
    with cli.exit_codes():
        sys.exit(main())

#!/usr/bin/env python3
"""Check whether this machine is suitable for training.

    ./doctor.py && echo fit

Each line is a finding: `ok`, `note` if something costs speed, or `problem` if something prevents training. The exit
code is 1 if there is a problem.
"""

import configparser
import os
import shutil
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

sys.path.append(str(Path(__file__).resolve().parents[1]))

from lib import cli
from lib.envs.single_env import make_env
from lib.errors import UsageError
from lib.system import machine, memory
from lib.system.files import PROJECT

import torch
from packaging.requirements import Requirement

OK, NOTE, PROBLEM = "ok", "note", "problem"
GAME = "PongNoFrameskip-v4"


class Finding(NamedTuple):
    """One line of the report, and advice below it."""

    level: str
    text: str
    advice: str = ""


def check_packages() -> Iterator[Finding]:
    """Compare the installed packages with setup.cfg. ptan is missing there because its own pins conflict."""
    config = configparser.ConfigParser()
    config.read(PROJECT / "setup.cfg")
    advice = "make clean, then make install; see docs/install.md"
    for line in (*config["options"]["install_requires"].strip().split("\n"), "ptan ==0.8.1"):
        package = Requirement(line)
        try:
            version = metadata.version(package.name)
        except metadata.PackageNotFoundError:
            yield Finding(PROBLEM, f"{package.name} is not installed", advice)
            continue
        if not package.specifier.contains(version, prereleases=True):
            yield Finding(PROBLEM, f"{package.name} {version}, and {package.specifier} is needed", advice)
        elif package.name in ("torch", "pytorch-ignite", "gymnasium", "ale-py"):
            yield Finding(OK, f"{package.name} {version}")


def check_game() -> Finding:
    """Start a game. The emulator and the ROMs are part of ale-py."""
    try:
        make_env(GAME).reset(seed=1)
    except (UsageError, OSError) as error:
        return Finding(PROBLEM, f"{GAME} does not run: {error}", "pip install --force-reinstall ale-py")
    return Finding(OK, f"{GAME} runs")


def check_processor() -> Iterator[Finding]:
    info = machine.machine()
    cores, threads, load = info["cores"], info["torch_threads"], os.getloadavg()[0]
    yield Finding(OK, f"Python {sys.version.split()[0]}, {info['processor']}, {cores} cores")
    if threads != cores:
        yield Finding(NOTE, f"torch uses {threads} threads on {cores} cores", f"set OMP_NUM_THREADS={cores}")
    if load > 0.5 * cores:
        yield Finding(NOTE, f"the load is {load:.1f} on {cores} cores", "other programs make training slower")
    faster = "faster" if info["fast_bfloat16"] else "not faster, so float32 is used"
    yield Finding(OK, f"{torch.backends.cpu.get_cpu_capability()}; bfloat16 is {faster}")
    yield Finding(OK, f"{memory.free() / 1e9:.1f} GB of memory free")


def check_accelerator() -> Finding:
    if torch.cuda.is_available():
        gpus = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
        shown = ", ".join(f"{gpu.name} with {gpu.total_memory / 1e9:.0f} GB" for gpu in gpus)
        return Finding(OK, f"CUDA {torch.version.cuda}: {shown}", "scripts use it with --cuda")
    if torch.backends.mps.is_available():
        return Finding(OK, "an Apple GPU", "scripts use it with --device mps")
    if shutil.which("nvidia-smi"):
        advice = "install a PyTorch build with CUDA and a recent driver; see docs/install.md"
        return Finding(NOTE, f"a GPU driver is installed, but PyTorch {torch.__version__} finds no GPU", advice)
    return Finding(OK, "no GPU; everything works without one")


def main() -> int:
    cli.tool(__doc__).parse_args()
    problems = 0
    for finding in (*check_packages(), check_game(), *check_processor(), check_accelerator()):
        advice = f"\n         -> {finding.advice}" if finding.advice else ""
        print(f"{finding.level:<8} {finding.text}{advice}")
        problems += finding.level == PROBLEM
    print(f"\nProblems to solve first: {problems}" if problems else "\nThis machine is suitable for training.")
    return int(problems > 0)


if __name__ == "__main__":
    with cli.exit_codes():
        sys.exit(main())

#!/usr/bin/env python3
"""Random player: the returns that a trained agent has to beat.

    python -m examples.random_player examples.blocks:Blocks-v0 --episodes 1000
    python -m examples.random_player your_module:YourGame-v0      # your_module.py is in the current folder

Legal actions are those in info["action_mask"] or in the environment's method action_masks(). If an environment reports
neither, all actions are legal.
"""

import sys
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

from lib import cli
from lib.envs.masks import with_mask_in_info
from lib.envs.single_env import make_plain_env
from lib.errors import UsageError
from lib.run.episode_player import MAX_STEPS
from lib.system.seeds import tagged_seed

import gymnasium as gym
import numpy as np
from tqdm import tqdm

NUMBERS = (bool, int, float, np.bool_, np.number)


def random_legal(env: gym.Env, info: dict[str, Any], rng: np.random.Generator) -> int:
    """Draw a legal action.

    Args:
        env: environment with discrete actions.
        info: info of the last step or reset.
        rng: random generator.

    Raises:
        UsageError: if the actions are not discrete.
    """
    space = env.action_space
    if not isinstance(space, gym.spaces.Discrete):
        raise UsageError(f"the action space is {space}; it has to be Discrete")
    if "action_mask" in info:
        mask = info["action_mask"]
    elif env.has_wrapper_attr("action_masks"):
        mask = env.get_wrapper_attr("action_masks")()
    else:
        return int(space.start + rng.integers(space.n))
    legal = np.flatnonzero(mask)
    return int(space.start + legal[rng.integers(len(legal))])


def play(env: gym.Env, episodes: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Play whole episodes with random legal actions.

    Returns:
        Arrays (episodes,) of "return", "steps", and every number in the info of an episode's last step. An episode
        ends after MAX_STEPS.
    """
    rng = np.random.default_rng(tagged_seed("random player", seed))  # not the stream of an environment with this seed
    env = with_mask_in_info(env)
    results: dict[str, list[Any]] = {}
    for episode in tqdm(range(episodes), unit="episodes", leave=False, disable=None):
        _, info = env.reset(seed=seed if episode == 0 else None)
        total, steps, ended = 0.0, 0, False
        while not ended and steps < MAX_STEPS:
            _, reward, terminated, truncated, info = env.step(random_legal(env, info, rng))
            total, steps, ended = total + float(reward), steps + 1, terminated or truncated
        scalars = {f"info[{name!r}]": value for name, value in info.items() if isinstance(value, NUMBERS)}
        for name, value in {"return": total, "steps": steps, **scalars}.items():
            results.setdefault(name, []).append(value)
    return {name: np.array(values) for name, values in results.items()}


def main() -> None:
    """Play, and print means with their standard errors."""
    parser = cli.tool(__doc__)
    parser.add_argument("env_id", metavar="ENV_ID", help='gymnasium id; "package.module:Id" imports the module first')
    parser.add_argument("--episodes", type=cli.positive, default=1000, metavar="N", help="episodes (default: 1000)")
    parser.add_argument("--seed", type=cli.seed, default=0, metavar="N", help="seed (default: 0)")
    args = parser.parse_args()
    start = time.perf_counter()
    results = play(make_plain_env(args.env_id), args.episodes, args.seed)
    for name, values in results.items():
        error = f" +- {values.std(ddof=1) / len(values) ** 0.5:.3f}" if len(values) > 1 else ""
        some = f", in {len(values)} of {args.episodes} episodes" if len(values) < args.episodes else ""
        print(f"{name:16} mean {values.mean():.3f}{error}, from {values.min():g} to {values.max():g}{some}")
    if cut := int((results["steps"] == MAX_STEPS).sum()):
        print(f"{cut} of {args.episodes} episodes were cut at {MAX_STEPS:,} steps; their returns are incomplete")
    print(f"{results['steps'].sum() / (time.perf_counter() - start):.0f} steps/s")


if __name__ == "__main__":
    with cli.exit_codes():
        main()

"""What a player gets who picks any legal action: what an agent has to beat.

    python -m examples.random_player examples.blocks:Blocks-v0 --episodes 1000

Which actions are legal is what an environment says in info["action_mask"] or by its method action_masks(); if it says
nothing, all are.
"""

import argparse
import time
from typing import Any

import gymnasium as gym
import numpy as np


def random_legal(env: gym.Env, info: dict[str, Any], rng: np.random.Generator) -> int:
    """A random one of the actions that are legal now.

    Args:
        env: with discrete actions.
        info: what its last step or reset gave.
        rng: what to draw from.
    """
    if "action_mask" in info:
        mask = info["action_mask"]
    elif env.has_wrapper_attr("action_masks"):
        mask = env.get_wrapper_attr("action_masks")()
    else:
        return int(rng.integers(env.action_space.n))
    legal = mask.nonzero()[0]
    return int(legal[rng.integers(len(legal))])


def play(env: gym.Env, episodes: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Whole episodes of a random legal player.

    Returns:
        (episodes,) each: the return, the steps, and whatever single numbers the last info of an episode holds.
    """
    rng = np.random.default_rng(seed)
    results: dict[str, list[float]] = {}
    for episode in range(episodes):
        _, info = env.reset(seed=seed if episode == 0 else None)
        total, steps, ended = 0.0, 0, False
        while not ended:
            _, reward, terminated, truncated, info = env.step(random_legal(env, info, rng))
            total, steps, ended = total + float(reward), steps + 1, terminated or truncated
        numbers = {f"info[{name!r}]": value for name, value in info.items() if np.isscalar(value)}
        for name, value in {"return": total, "steps": steps, **numbers}.items():
            results.setdefault(name, []).append(value)
    return {name: np.array(values) for name, values in results.items()}


def main() -> None:
    """Play, and print means with their standard errors."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("env_id", help='registered with gymnasium; "package.module:Id" imports the module first')
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    start = time.perf_counter()
    results = play(gym.make(args.env_id), args.episodes, args.seed)
    for name, values in results.items():
        error = values.std() / len(values) ** 0.5
        print(f"{name:16} mean {values.mean():.3f} +- {error:.3f}, from {values.min():g} to {values.max():g}")
    print(f"{results['steps'].sum() / (time.perf_counter() - start):.0f} steps/s")


if __name__ == "__main__":
    main()

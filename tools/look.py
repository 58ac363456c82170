#!/usr/bin/env python3
"""Look at a game before you train: spaces, rewards, episode lengths, speed, and the return that random play reaches.

    ./look.py PongNoFrameskip-v4
    ./look.py examples.snake:Snake-v0 --episodes 50

The environment has this project's wrappers, as in training, so an Atari game has four frames per step. Rewards are
those from which an agent learns; returns are sums of unclipped rewards. If the environment reports which actions are
legal, only legal actions are played. The mean return is printed with its standard error.
"""

import logging
import sys
import time
from pathlib import Path
from typing import SupportsFloat

sys.path.append(str(Path(__file__).resolve().parents[1]))

from lib import cli
from lib.analysis.window import action_names
from lib.envs.observations import observation_kind
from lib.envs.single_env import EnvId, conversions, make_env, make_plain_env
from lib.run.episode_player import MAX_STEPS, EpisodePlayer, EpisodeResult, count_at_limit, play_together
from lib.run.policy import RandomPolicy

import pandas as pd
from gymnasium.wrappers import TransformReward
from tqdm import tqdm

MOST_REWARDS = 10  # different rewards that are listed


def main() -> None:
    parser = cli.tool(__doc__)
    add = parser.add_argument
    add("env_id", metavar="ENV_ID", help='gymnasium id; "package.module:Id" imports the module first')
    add("--env-arg", metavar="NAME=VALUE", action="append", default=[], help="argument of its constructor")
    add("--episodes", type=cli.positive, default=10, metavar="N", help="episodes (default: 10)")
    add("--seed", type=cli.seed, default=1, metavar="N", help="seed (default: 1)")
    args = parser.parse_args()
    env_id = str(EnvId.of(args.env_id, args.env_arg))
    plain = make_plain_env(env_id)
    print(f"observations  {plain.observation_space}")
    plain.close()  # some games allow only one at a time
    logging.getLogger("lib.envs.observations").setLevel(logging.WARNING)  # the conversions are printed here
    env = make_env(env_id, any_actions=True)
    space = env.observation_space
    print(f"states        {observation_kind(space.shape)}, {space.shape} {space.dtype}")
    for conversion in conversions(env):
        print(f"              {conversion}")
    names = action_names(env)
    print("actions      ", f"{len(names)}: {', '.join(names)}" if names else env.action_space)
    results: list[EpisodeResult] = []
    earned: list[float] = []

    def note(reward: SupportsFloat) -> SupportsFloat:
        earned.append(float(reward))
        return reward

    player = EpisodePlayer(TransformReward(env, note))
    start = time.perf_counter()
    numbers = tqdm(range(args.episodes), unit="episodes", leave=False, disable=None)
    play_together(RandomPolicy(env), [player], args.seed, numbers, results.append)
    speed = len(earned) / (time.perf_counter() - start)
    rewards, episodes = pd.Series(earned), pd.DataFrame(results)
    returns, lengths = episodes["total"], episodes["length"]
    shares = rewards.value_counts(normalize=True)
    text = ", ".join(f"{reward:g} ({share:.2%})" for reward, share in shares.head(MOST_REWARDS).items())
    if len(shares) > len(rewards) / 2:  # real numbers, which hardly repeat
        low, *middle, high = (f"{each:.3g}" for each in rewards.quantile((0, 0.25, 0.5, 0.75, 1)))
        text = f"{low} to {high}, quartiles {', '.join(middle)}"
    elif len(shares) > MOST_REWARDS:
        text += f", and {len(shares) - MOST_REWARDS} others"
    error = f" ± {returns.sem():.2g}" if len(returns) > 1 else ""
    print(f"rewards       {text}")
    print(f"length        mean {lengths.mean():.0f} steps, {lengths.min()} to {lengths.max()}")
    print(f"return        mean {returns.mean():g}{error}, {returns.min():g} to {returns.max():g}")
    print(f"speed         {speed:,.0f} steps/s")
    if cut := count_at_limit(lengths):
        print(f"cut           {cut} of {len(lengths)} episodes, at {MAX_STEPS:,} steps; their returns are incomplete")


if __name__ == "__main__":
    with cli.exit_codes():
        main()

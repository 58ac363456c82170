#!/usr/bin/env python3
"""Look at a game before you train: spaces, rewards, episode lengths, and the return that random play reaches.

    ./look.py PongNoFrameskip-v4
    ./look.py examples.snake:Snake-v0 --episodes 50
    ./look.py BreakoutNoFrameskip-v4 --record random.webm    # also a video of the first episode

The environment has this project's wrappers, as in training, so an Atari game has four frames per step. Rewards are
those that an agent learns from, and returns are those before clipping. If the environment reports which actions are
legal, only those are played.
"""

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from lib import cli
from lib.analysis.window import action_names
from lib.envs.atari import statistics_wrapper
from lib.envs.observations import observation_kind
from lib.envs.single_env import close_plain_env, make_env, make_plain_env
from lib.nets.masking import MaskSplitter
from lib.run.arguments import full_id
from lib.run.episode_player import MAX_STEPS
from lib.run.video_file import Video, frames_per_second, unfinished_video
from lib.system.seeds import tagged_seed

import gymnasium as gym
import numpy as np
import torch
from tqdm import tqdm

MOST_REWARDS = 10  # different rewards that are listed


@contextmanager
def recording(path: Path | None, env: gym.Env) -> Iterator[Video | None]:
    """Yield a video that gets its name when it is complete, or None if there is no path."""
    if path is None:
        yield None
        return
    unfinished = path.with_name(f".{path.stem}.{os.getpid()}.part.webm")
    with unfinished_video(unfinished, frames_per_second(env)) as video:
        yield video
        print(f"video         {os.fspath(video.close_as(path.stem))}")


def webm(text: str) -> Path:
    """Return the path of a video, as an argparse type."""
    if Path(text).suffix != ".webm":
        raise argparse.ArgumentTypeError(f"{text} has to end in .webm")
    return Path(text)


def main() -> None:
    parser = cli.tool(__doc__)
    parser.add_argument("env_id", metavar="ENV_ID", help='gymnasium id; "package.module:Id" imports the module first')
    parser.add_argument("--env-module", metavar="M", help="module that registers the id when imported")
    parser.add_argument("--episodes", type=cli.positive, default=10, metavar="N", help="episodes (default: 10)")
    parser.add_argument("--seed", type=cli.seed, default=1, metavar="N", help="seed (default: 1)")
    parser.add_argument("--record", type=webm, metavar="FILE", help="video of the first episode, such as random.webm")
    args = parser.parse_args()
    env_id = str(full_id(args.env_id, args.env_module))
    plain = make_plain_env(env_id)
    print(f"observations  {plain.observation_space}")
    close_plain_env(plain, env_id)  # some games allow only one at a time
    env = make_env(env_id, render_mode="rgb_array" if args.record else None)
    space = env.observation_space
    kind = observation_kind(space).value
    print(f"states        {kind}, {space.shape} {space.dtype}")
    print(f"actions       {env.action_space.n}: {', '.join(action_names(env))}")
    statistics = statistics_wrapper(env)  # every environment of make_env has one
    assert statistics is not None
    split = MaskSplitter(space)
    rng = np.random.default_rng(tagged_seed("random player", args.seed))  # not the environment's own stream
    rewards: Counter[float] = Counter()
    returns, lengths, legal_shares = [], [], []
    for episode in tqdm(range(args.episodes), disable=args.episodes < 2 or None):  # None hides it in a file
        with recording(args.record if episode == 0 else None, env) as video:
            state, _ = env.reset(seed=args.seed if episode == 0 else None)
            length, ended = 0, False
            while not ended:
                if video is not None:
                    video.write(np.asarray(env.render()))
                _, allowed = split(torch.as_tensor(np.asarray(state))[None])
                actions = np.arange(env.action_space.n) if allowed is None else np.flatnonzero(allowed[0].numpy())
                legal_shares.append(len(actions) / env.action_space.n)
                state, reward, terminated, truncated, _ = env.step(int(rng.choice(actions)))
                rewards[float(reward)] += 1
                length += 1
                ended = terminated or truncated or length == MAX_STEPS
            if video is not None:
                video.write(np.asarray(env.render()))
        returns.append(float(statistics.episode_returns))
        lengths.append(length)
    steps = sum(rewards.values())
    shown = [f"{reward:g} ({count / steps:.2%})" for reward, count in rewards.most_common(MOST_REWARDS)]
    more = f", and {len(rewards) - MOST_REWARDS} others" if len(rewards) > MOST_REWARDS else ""
    print(f"rewards       {', '.join(shown)}{more}")
    print(f"legal         {np.mean(legal_shares):.0%} of the actions, on average")
    print(f"length        mean {np.mean(lengths):.0f} steps, {min(lengths)} to {max(lengths)}")
    print(f"return        mean {np.mean(returns):g}, {min(returns):g} to {max(returns):g}")
    if cut := lengths.count(MAX_STEPS):
        print(f"cut           {cut} of {len(lengths)} episodes, at {MAX_STEPS:,} steps; their returns are incomplete")


if __name__ == "__main__":
    with cli.exit_codes():
        main()

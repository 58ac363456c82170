#!/usr/bin/env python3
"""Watch a trained agent in a window, or record videos of it.

    ./play.py ../runs/2026-11-20T1200-pong-01_ppo
    ./play.py 2026-11-20T1200-pong-01_ppo --checkpoint last --scores
    ./play.py 2026-11-20T1200-pong-01_ppo --record --episodes 3      # needs no display

Videos are written to the run folder as videos/play-<step>-episode-<number>-return-<return>.webm, where <step> is the
agent step of the checkpoint. An episode that has a video is not recorded again.
"""

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from lib import cli
from lib.analysis.trained_agent import TrainedAgent
from lib.analysis.window import Window, WindowClosed, action_names, add_score_panel
from lib.errors import UsageError
from lib.run.episode_player import EpisodePlayer, EpisodeResult, play_together
from lib.run.episodes import VIDEOS
from lib.run.policy import EpsilonGreedyPolicy, SampledPolicy
from lib.run.videos import FrameSink, Video, frames_per_second
from lib.system.log import TaskProgress

import numpy as np

PlayEpisode = Callable[[int, FrameSink], EpisodeResult]  # plays the n-th episode, and passes its frames on


def watch_in_window(play: PlayEpisode, episodes: int, title: str, rate: float) -> None:
    window = Window(title, rate)
    print("Playing in a window. Close it, or press Ctrl-C, to stop.", flush=True)
    with suppress(WindowClosed):
        for number in range(episodes):
            print_result(number, play(number, window.show))
    window.close()


def record_videos(play: PlayEpisode, episodes: int, folder: Path, step: int, rate: float) -> None:
    names = [f"play-{step}-episode-{number + 1}-return-" for number in range(episodes)]
    for name in names:
        for path in folder.glob(f"{name}*.webm"):
            raise UsageError(f"{path} exists; move it to another folder, or remove it, to record this episode again")
    for number, name in enumerate(names):
        with Video(folder / f"{os.getpid()}.part.webm", rate) as video:
            with TaskProgress(f"Recording episode {number + 1}", unit="frames", shown=True) as progress:
                result = play(number, partial(record, video, progress))
            print_result(number, result)
            print(video.keep(f"{name}{result.total:.7g}.webm"), flush=True)


def record(video: Video, progress: TaskProgress, frame: np.ndarray) -> None:
    video.write(frame)
    progress.update()


def print_result(number: int, result: EpisodeResult) -> None:
    print(f"Episode {number + 1}: return {result.total:.7g}, {result.length} steps", flush=True)


def main() -> None:
    parser = cli.run_tool(__doc__)
    parser.add_argument("--episodes", default=1, type=cli.positive, metavar="N", help="number of episodes (default: 1)")
    parser.add_argument("--record", action="store_true", help="write a video of each episode instead of a window")
    parser.add_argument("--scores", action="store_true", help="show action values or probabilities beside the frames")
    args = cli.run_args(parser)
    agent = TrainedAgent(args.run, args.checkpoint, args.device, args.env_id, args.network)
    own = SampledPolicy(agent.policy.net) if args.sample else agent.policy
    policy = EpsilonGreedyPolicy(own, agent.random, args.epsilon)
    env = agent.make_env(render_mode="rgb_array")
    if args.scores and (agent.policy.score_name == "parameter" or agent.policy.has_memory):
        raise UsageError(f"--scores needs discrete actions and no memory; this run has actions of {env.action_space}")
    names, rate = action_names(env), frames_per_second(env)

    def frame_of(state: np.ndarray) -> np.ndarray:
        frame = np.asarray(env.render())
        if not args.scores:
            return frame
        scores, mask = agent.policy.scores(state[None])[0], agent.random.legal(state[None])[0]
        return add_score_panel(frame, names, scores, agent.policy.score_name, mask)

    def play(number: int, sink: FrameSink) -> EpisodeResult:
        results: list[EpisodeResult] = []
        player = EpisodePlayer(env, lambda state: sink(frame_of(state)))
        play_together(policy, [player], args.seed, [number], results.append)
        return results[0]

    if args.record:
        record_videos(play, args.episodes, args.run / VIDEOS, agent.step, rate)
    else:
        watch_in_window(play, args.episodes, f"{agent.env_id}, {args.run.name}", rate)


if __name__ == "__main__":
    with cli.exit_codes():
        main()

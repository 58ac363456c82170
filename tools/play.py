#!/usr/bin/env python3
"""Watch a trained agent, in a window or in videos.

    ./play.py ../runs/2026-11-20T1200-pong-01_ppo
    ./play.py 2026-11-20T1200-pong-01_ppo --checkpoint last --scores
    ./play.py 2026-11-20T1200-pong-01_ppo --record --episodes 3      # needs no display

A video lies in the run's folder, as videos/play-<step of the checkpoint>-episode-<number>-return-<return>.webm, with
"-2" behind it where another seed, say, has made one of that name.
"""

import os

import numpy as np

from lib import cli
from lib.analysis.trained_agent import TrainedAgent
from lib.analysis.window import Window, action_names, with_scores
from lib.run import evaluation, video_file
from lib.run.policy import EpsilonGreedyPolicy


def main():
    parser = cli.run_tool(__doc__)
    parser.add_argument("--episodes", default=1, type=cli.positive, metavar="N", help="(default: 1)")
    parser.add_argument("--record", action="store_true", help="write a video of each episode, and open no window")
    parser.add_argument("--scores", action="store_true", help="show action values or probabilities beside the picture")
    args = parser.parse_args()
    trained = TrainedAgent(args.run, args.checkpoint, args.device)
    env = trained.make_env(render_mode="rgb_array")
    per_second = video_file.per_second(env)
    player = evaluation.EpisodePlayer(env)
    policy = EpsilonGreedyPolicy(trained.policy, trained.n_actions, args.epsilon, args.seed)
    names = action_names(env)
    window = None if args.record else Window(f"{trained.env_id}, {args.run.name}", per_second)
    for number in range(args.episodes):
        stem = f"play-{trained.step}-episode-{number + 1}"
        part = args.run / "videos" / f"{stem}.{os.getpid()}.part.webm"  # others may play, too
        screen = window or video_file.Video(part, per_second)

        def show(states, screen=screen):
            picture = np.asarray(env.render())
            if args.scores:
                scores, allowed = trained.policy.scores(states)[0], trained.policy.allowed(states)[0]
                picture = with_scores(picture, names, scores, trained.policy.meaning, allowed)
            screen.show(picture)

        try:
            total, length = player.play(policy, args.seed, number, show)
            print(f"Episode {number + 1}: return {total:.7g}, {length} steps")
            if screen is not window:
                print(screen.keep_as(f"{stem}-return-{total:.7g}"))
        finally:
            if screen is not window:
                screen.close()
                part.unlink(missing_ok=True)
    if window is not None:
        window.close()
    env.close()


if __name__ == "__main__":
    with cli.exit_codes():
        main()

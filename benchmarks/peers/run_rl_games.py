"""Run rl_games' PPO on Pong with its own settings: configs/atari/ppo_pong_envpool.yaml of the installed package.

Only the seed, the device and envpool's interface differ, because the old gym is not installed. The printed steps are
those of whole rollouts.
"""

import argparse
from importlib import resources
from typing import Any

import yaml  # type: ignore[import-untyped]
from rl_games.common.algo_observer import DefaultAlgoObserver  # type: ignore[import-not-found]
from rl_games.torch_runner import Runner  # type: ignore[import-not-found]


class Report(DefaultAlgoObserver):
    """Print every finished episode in the format that measures.py reads."""

    def process_infos(self, infos: Any, done_indices: Any) -> None:
        super().process_infos(infos, done_indices)
        for index in done_indices.flatten().tolist():
            print(f"global_step={self.algo.frame}, episodic_return={infos['scores'][index]}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    settings = yaml.safe_load((resources.files("rl_games") / "configs/atari/ppo_pong_envpool.yaml").read_text())
    settings["params"]["seed"] = args.seed
    settings["params"]["config"]["device"] = "cpu"
    settings["params"]["config"]["env_config"] |= {"seed": args.seed, "env_type": "gymnasium"}
    runner = Runner(Report())
    runner.load(settings)
    runner.run({"train": True, "play": False})

"""Run Stable-Baselines3's PPO or DQN.

Pong has the settings of rl-zoo3: ppo.yml and dqn.yml, "atari". Other environments have the library's defaults.
"""

import argparse

import ale_py
import gymnasium
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.vec_env import VecFrameStack

gymnasium.register_envs(ale_py)
STEPS = 10_000_000  # as in the zoo; the schedules depend on it


class Report(BaseCallback):
    """Print every finished episode in the format that measures.py reads."""

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if "episode" in info:
                print(f"global_step={self.num_timesteps}, episodic_return={info['episode']['r']}", flush=True)
        return True


def make_ppo(seed: int) -> PPO:
    envs = VecFrameStack(make_atari_env("PongNoFrameskip-v4", n_envs=8, seed=seed), n_stack=4)
    return PPO(
        "CnnPolicy",
        envs,
        n_steps=128,
        n_epochs=4,
        batch_size=256,
        learning_rate=lambda remaining: remaining * 2.5e-4,
        clip_range=lambda remaining: remaining * 0.1,
        vf_coef=0.5,
        ent_coef=0.01,
        seed=seed,
    )


def make_dqn(seed: int) -> DQN:
    env = VecFrameStack(make_atari_env("PongNoFrameskip-v4", n_envs=1, seed=seed), n_stack=4)
    return DQN(
        "CnnPolicy",
        env,
        buffer_size=100_000,
        learning_rate=1e-4,
        batch_size=32,
        learning_starts=100_000,
        target_update_interval=1000,
        train_freq=4,
        gradient_steps=1,
        exploration_fraction=0.1,
        exploration_final_eps=0.01,
        seed=seed,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("algorithm", choices=("ppo", "dqn"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--env-id", help="id of another environment than Pong")
    parser.add_argument("--envs", type=int, default=1, help="number of these environments")
    args = parser.parse_args()
    if args.env_id:
        envs = make_vec_env(args.env_id, args.envs, seed=args.seed)
        model = {"ppo": PPO, "dqn": DQN}[args.algorithm]("MlpPolicy", envs, seed=args.seed)
    else:
        model = {"ppo": make_ppo, "dqn": make_dqn}[args.algorithm](args.seed)
    model.learn(STEPS, callback=Report())

#!/usr/bin/env python3
"""Proximal policy optimization (PPO): the textbook algorithm for Atari games.

Idea    eight copies of the game step together. The policy learns from their rollout in a few epochs of minibatches; a
        clipped objective keeps it near the old policy, which collected the data. The rollout is then discarded
Parent  none
Keeps   nothing: it is the first script of this folder
Paper   Schulman et al., Proximal policy optimization algorithms, 2017, https://arxiv.org/abs/1707.06347, with the
        implementation details that CleanRL and Stable-Baselines3 share, except episodic lives and FIRE
Run     ./01_ppo.py --cuda
Read    lib/ppo/rollout.py for acting, with Stream in lib/experience/stream.py and NativeAtari in
        lib/envs/vector_env.py; lib/ppo/update.py for learning, with lib/ppo/losses.py; lib/ppo/model.py for the
        network, with NatureEncoder in lib/nets/encoders.py
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from lib import cli
from lib.envs import vector_env
from lib.hyperparameters import PPO_HYPERPARAMS
from lib.ppo.model import Model
from lib.ppo.rollout import Sampler
from lib.ppo.update import Trainer
from lib.run.setup import setup_ignite

import torch
from ignite.engine import Engine

NAME = Path(__file__).stem


def train(params, args):
    envs = vector_env.make_vector_env(params.env_name, params.envs, processes=args.async_envs, any_actions=True)
    model = Model(envs.single_observation_space, envs.single_action_space).to(args.device)
    sampler = Sampler(envs, model, params.rollout, args.seed)
    optimizer = torch.optim.Adam(model.parameters(), params.learning_rate, eps=1e-5)
    trainer = Trainer(model, optimizer, params)

    def process_batch(engine, rollout):
        optimizer.param_groups[0]["lr"] = params.learning_rate_at(sampler.steps_done)
        return trainer.update(rollout)

    engine = Engine(process_batch)
    setup_ignite(engine, params, sampler, NAME, args=args, save={"net": model, "optimizer": optimizer})
    return engine.run(sampler)


if __name__ == "__main__":
    parser = cli.parser(__doc__, PPO_HYPERPARAMS)
    cli.add_env_options(parser)
    cli.main(train, parser, NAME)

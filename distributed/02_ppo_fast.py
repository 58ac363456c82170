#!/usr/bin/env python3
"""Fast PPO: a small network in bfloat16, normalised states and values, and updates that become smaller.

Idea    a small network learns fast if its input is centred and its values are in units of the returns' standard
        deviation. The learning rate follows a target for the policy's KL divergence. The target and the entropy bonus
        are annealed, so that the policy explores first and settles later
Parent  01_ppo.py
Keeps   changes the algorithm: another network, learning rate and hyperparameters
Paper   van Hasselt et al., Learning values across many orders of magnitude, 2016, https://arxiv.org/abs/1602.07714
Run     ./02_ppo_fast.py --cuda
Read    lib/ppo/fast.py for the network and the trainer; FastPPOHyperparameters in lib/hyperparameters.py for the
        annealing
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from lib import cli
from lib.envs import vector_env
from lib.hyperparameters import PPO_FAST_HYPERPARAMS
from lib.nets import encoders
from lib.ppo.fast import FastModel, FastTrainer
from lib.ppo.rollout import Sampler
from lib.run.setup import setup_ignite

import torch
from ignite.engine import Engine

NAME = Path(__file__).stem


def train(params, args):
    envs = vector_env.make_vector_env(params.env_name, params.envs, processes=args.async_envs, any_actions=True)
    dtype = encoders.fast_dtype(args.device)
    model = FastModel(envs.single_observation_space, envs.single_action_space, dtype).to(args.device)
    sampler = Sampler(envs, model, params.rollout, args.seed)
    optimizer = torch.optim.Adam(model.parameters(), params.learning_rate, betas=(0.9, 0.99), eps=1e-5, fused=True)
    trainer = FastTrainer(model, optimizer, params)

    def process_batch(engine, rollout):
        trainer.settings = params.annealed(sampler.steps_done)
        return trainer.update(rollout)

    engine = Engine(process_batch)
    setup_ignite(engine, params, sampler, NAME, args=args, save={"net": model, "optimizer": optimizer})
    return engine.run(sampler)


if __name__ == "__main__":
    parser = cli.parser(__doc__, PPO_FAST_HYPERPARAMS)
    cli.add_env_options(parser)
    cli.main(train, parser, NAME)

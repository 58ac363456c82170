#!/usr/bin/env python3
"""PPO with a memory: a recurrent network for partially observable environments.

Idea    gated recurrent units (GRU) between the encoder and the heads remember earlier observations of the episode. A
        minibatch holds whole sequences: the rollouts of some environments, each with the memory at its start
Parent  02_ppo_fast.py
Keeps   changes the algorithm: another network, and minibatches of sequences
Paper   Cho et al., Learning phrase representations using RNN encoder-decoder for statistical machine translation, 2014,
        https://arxiv.org/abs/1406.1078
Run     ./04_ppo_memory.py --env-id minigrid:MiniGrid-DoorKey-5x5-v0
Read    lib/ppo/memory.py
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from lib import cli
from lib.envs import vector_env
from lib.hyperparameters import PPO_FAST_HYPERPARAMS
from lib.nets import encoders
from lib.ppo.memory import MemoryModel, MemorySampler, MemoryTrainer
from lib.run.setup import setup_ignite

import torch
from ignite.engine import Engine

NAME = Path(__file__).stem


def train(params, args):
    envs = vector_env.make_vector_env(params.env_name, params.envs, processes=args.async_envs, any_actions=True)
    dtype = encoders.fast_dtype(args.device)
    model = MemoryModel(envs.single_observation_space, envs.single_action_space, dtype).to(args.device)
    sampler = MemorySampler(envs, model, params.rollout, args.seed)
    optimizer = torch.optim.Adam(model.parameters(), params.learning_rate, betas=(0.9, 0.99), eps=1e-5, fused=True)
    trainer = MemoryTrainer(model, optimizer, params)

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

#!/usr/bin/env python3
"""Proximal policy optimisation on native environments: rollouts of many games at once, learnt from and thrown away.

Idea    no replay: sixteen games that step together in native threads, a rollout of all, some epochs of minibatches
Parent  none: it is the root of this chapter
Keeps   nothing: it is the root
Paper   Schulman et al., Proximal policy optimization algorithms, 2017, https://arxiv.org/abs/1707.06347
Run     ./01_ppo.py --cuda
Read    lib/ppo, the model, the sampler, the trainer, then lib/stream.py
"""

from pathlib import Path

import torch
from ignite.engine import Engine

from lib import cli, common
from lib.envs import vector_env
from lib.hyperparameters import PPO_HYPERPARAMS
from lib.nets import precision
from lib.ppo.model import Model
from lib.ppo.rollout import Agent, Sampler, rollouts
from lib.ppo.update import Trainer

NAME = Path(__file__).stem


def train(params, args):
    envs = vector_env.make_vector_env(params.env_name, params.envs)
    dtype = precision.fast_dtype(args.device)
    model = Model(envs.single_observation_space, envs.single_action_space.n, dtype).to(args.device)
    agent = Agent(model, args.device)
    sampler = Sampler(envs, agent, params.rollout, args.seed)
    optimizer = torch.optim.Adam(model.parameters(), params.learning_rate, betas=(0.9, 0.99), eps=1e-5, fused=True)
    trainer = Trainer(
        model,
        optimizer,
        minibatch=params.minibatch,
        epochs=params.epochs,
        gamma=params.gamma,
        lam=params.lam,
        clip=params.clip,
        entropy=params.entropy,
        gradient_norm=params.gradient_norm,
        kl_target=params.kl_target,
        kl_final=params.kl_final,
        final_temperature=params.final_temperature,
        device=args.device,
    )

    def process_batch(engine, rollout):
        return trainer.update(rollout, sampler.progress(params.stop_reward))

    engine = Engine(process_batch)
    save = {"net": model, "optimizer": optimizer}
    common.setup_ignite(engine, params, sampler, NAME, args=args, save=save)
    return engine.run(rollouts(sampler, model))


if __name__ == "__main__":
    parser = cli.parser(__doc__, PPO_HYPERPARAMS)
    cli.main(train, parser, NAME)

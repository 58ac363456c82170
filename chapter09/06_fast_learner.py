#!/usr/bin/env python3
"""A fast learner: the same network in bfloat16, and states in the memory layout that its kernels use.

Idea    compute in bfloat16 with float32 weights; keep the channels last in memory, as in the ring; use one fused
        kernel for the optimizer; optionally use torch.compile, whose compilation time counts as part of the run
Parent  05_native_envs.py, with other kernels for the same arithmetic
Keeps   close: the same up to the rounding of bfloat16, which has eight significant bits
Paper   Kalamkar et al., A study of bfloat16 for deep learning training, 2019, https://arxiv.org/abs/1905.12322
Run     ./06_fast_learner.py --cuda --envs 8
Read    lib/nets/encoders.py, then lib/dqn_model.py
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from lib import cli, common, dqn_model
from lib.envs import vector_env
from lib.experience import ring, stream
from lib.nets import encoders

import ptan
import torch
from ignite.engine import Engine

NAME = Path(__file__).stem


def train(params, args):
    steps = params.steps_per_update(args.envs)
    envs = vector_env.make_vector_env(params.env_name, args.envs, processes=args.async_envs)
    dtype = encoders.fast_dtype(args.device)
    space, n_actions = envs.single_observation_space, envs.single_action_space.n
    net = dqn_model.DQN(space, n_actions, dtype=dtype, normalise=params.normalise).to(args.device)
    net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    tgt_net = ptan.agent.TargetNet(net)
    if args.compile:
        net.compile()
        tgt_net.target_model.compile()
    selector = common.EpsilonGreedyActionSelector(epsilon=params.epsilon_start)
    epsilon_tracker = common.EpsilonTracker(selector, params)
    agent = ptan.agent.DQNAgent(net, selector, device=args.device)
    exp_source = stream.ExperienceStream(envs, agent, seed=args.seed)
    buffer = ring.Ring(exp_source, params.replay_size, gamma=params.gamma)
    optimizer = torch.optim.Adam(net.parameters(), lr=params.learning_rate, fused=True)

    def process_batch(engine, batch):
        optimizer.zero_grad()
        loss = common.calc_loss_dqn(
            batch, net, tgt_net.target_model, params.gamma, args.device, no_grad=True, huber=params.huber
        )
        loss.backward()
        optimizer.step()
        epsilon_tracker.frame(engine.state.iteration * steps)
        if engine.state.iteration * steps % params.target_net_sync < steps:
            tgt_net.sync()
        return {"loss": loss.item(), "epsilon": selector.epsilon}

    engine = Engine(process_batch)
    save = {
        "net": net,
        "target": tgt_net.target_model,
        "optimizer": optimizer,
        "epsilon": epsilon_tracker,
        "replay": buffer,
    }
    common.setup_ignite(engine, params, exp_source, NAME, args=args, save=save)
    return engine.run(common.batch_generator(buffer, params.replay_initial, params.batch_size * steps, steps))


if __name__ == "__main__":
    parser = cli.parser(__doc__)
    parser.add_argument("--compile", action="store_true", help="compile the network, which takes some seconds")
    cli.add_env_options(parser, envs=3)
    cli.main(train, parser, NAME)

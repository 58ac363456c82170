#!/usr/bin/env python3
"""Noisy networks: explore with noisy weights whose noise level is learnt.

Idea    instead of taking random actions, use a network whose weights are slightly different at every step
Parent  01_dqn_basic.py, with another network and without epsilon
Keeps   changes the algorithm: exploration is different
Paper   Fortunato et al., Noisy networks for exploration, 2018, https://arxiv.org/abs/1706.10295
Run     ./04_dqn_noisy_net.py --cuda --noise factorised
Read    lib/dqn_model.py, then lib/nets/noisy.py
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from lib import cli, common, dqn_model
from lib.envs import vector_env
from lib.experience import ring, stream
from lib.nets import noisy

import ptan
import torch
from ignite.engine import Engine

NAME = Path(__file__).stem


def train(params, args):
    steps = params.steps_per_update()
    params = params.without_epsilon()  # params.json then records epsilon 0
    envs = vector_env.make_vector_env(params.env_name, 1)
    space, n_actions = envs.single_observation_space, envs.single_action_space.n
    net = dqn_model.DQN(
        space, n_actions, sigma=noisy.SIGMAS[args.noise], noise=args.noise, normalise=params.normalise
    ).to(args.device)
    tgt_net = ptan.agent.TargetNet(net)
    agent = ptan.agent.DQNAgent(net, ptan.actions.ArgmaxActionSelector(), device=args.device)
    exp_source = stream.ExperienceStream(envs, agent, seed=args.seed)
    buffer = ring.Ring(exp_source, params.replay_size, gamma=params.gamma)
    optimizer = torch.optim.Adam(net.parameters(), lr=params.learning_rate, fused=True)

    def process_batch(engine, batch):
        optimizer.zero_grad()
        loss = common.calc_loss_dqn(batch, net, tgt_net.target_model, params.gamma, args.device, huber=params.huber)
        loss.backward()
        optimizer.step()
        if engine.state.iteration * steps % params.target_net_sync < steps:
            tgt_net.sync()
        return {"loss": loss.item(), **net.snr_metrics()}

    engine = Engine(process_batch)
    save = {
        "net": net,
        "target": tgt_net.target_model,
        "optimizer": optimizer,
        "replay": buffer,
    }
    common.setup_ignite(engine, params, exp_source, NAME, args=args, save=save)
    return engine.run(common.batch_generator(buffer, params.replay_initial, params.batch_size * steps, steps))


if __name__ == "__main__":
    parser = cli.parser(__doc__)
    parser.add_argument("--noise", choices=noisy.SIGMAS, default="factorised", help="kind of noise")
    cli.main(train, parser, NAME)

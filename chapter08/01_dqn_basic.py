#!/usr/bin/env python3
"""Basic DQN: the starting point of every extension in chapter 8.

Idea    learn action values from a replay buffer of past transitions. The targets come from a copy of the network that
        is updated only now and then
Parent  none
Keeps   nothing, because it has no parent
Paper   Mnih et al., Human-level control through deep reinforcement learning, 2015,
        https://www.nature.com/articles/nature14236
Run     ./01_dqn_basic.py --cuda
Read    Stream and ExperienceStream in lib/experience/stream.py, lib/experience/ring.py and lib/common.py: the path of
        a transition; docs/chapter08.md: deviations from the paper
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from lib import cli, common, dqn_model
from lib.envs import vector_env
from lib.experience import ring, stream

import ptan
import torch
from ignite.engine import Engine

NAME = Path(__file__).stem


def train(params, args):
    steps = params.steps_per_update()
    envs = vector_env.make_vector_env(params.env_name, 1)
    space, n_actions = envs.single_observation_space, envs.single_action_space.n
    net = dqn_model.DQN(space, n_actions, normalise=params.normalise).to(args.device)
    tgt_net = ptan.agent.TargetNet(net)
    selector = common.EpsilonGreedyActionSelector(epsilon=params.epsilon_start)
    epsilon_tracker = common.EpsilonTracker(selector, params)
    agent = ptan.agent.DQNAgent(net, selector, device=args.device)
    exp_source = stream.ExperienceStream(envs, agent, seed=args.seed)
    buffer = ring.Ring(exp_source, params.replay_size, gamma=params.gamma)
    optimizer = torch.optim.Adam(net.parameters(), lr=params.learning_rate, fused=True)

    def process_batch(engine, batch):
        optimizer.zero_grad()
        loss = common.calc_loss_dqn(batch, net, tgt_net.target_model, params.gamma, args.device, huber=params.huber)
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
    cli.main(train, parser, NAME)

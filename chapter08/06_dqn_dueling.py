#!/usr/bin/env python3
"""Dueling network: estimate the value of a state separately from the advantages of its actions.

Idea    two streams after the convolutions, one for the value of the state and one for the advantages of the actions
Parent  01_dqn_basic.py, with another network
Keeps   changes the algorithm: the network is different
Paper   Wang et al., Dueling network architectures for deep reinforcement learning, 2016,
        https://arxiv.org/abs/1511.06581
Run     ./06_dqn_dueling.py --cuda
Read    lib/dqn_model.py
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
    net = dqn_model.DQN(space, n_actions, dueling=True, normalise=params.normalise).to(args.device)
    tgt_net = ptan.agent.TargetNet(net)
    selector = common.EpsilonGreedyActionSelector(epsilon=params.epsilon_start)
    epsilon_tracker = common.EpsilonTracker(selector, params)
    agent = ptan.agent.DQNAgent(net, selector, device=args.device)
    exp_source = stream.ExperienceStream(envs, agent, seed=args.seed)
    buffer = ring.Ring(exp_source, params.replay_size, gamma=params.gamma)
    held_out = ring.HeldOutStates(buffer, args.device)
    optimizer = torch.optim.Adam(net.parameters(), lr=params.learning_rate, fused=True)

    def process_batch(engine, batch):
        optimizer.zero_grad()
        loss = common.calc_loss_dqn(batch, net, tgt_net.target_model, params.gamma, args.device, huber=params.huber)
        loss.backward()
        optimizer.step()
        epsilon_tracker.frame(engine.state.iteration * steps)
        if engine.state.iteration * steps % params.target_net_sync < steps:
            tgt_net.sync()
        return {
            "loss": loss.item(),
            "epsilon": selector.epsilon,
            "adv": lambda: held_out.mean(lambda states: net.adv_val(states)[0]),
            "val": lambda: held_out.mean(lambda states: net.adv_val(states)[1]),
        }

    engine = Engine(process_batch)
    save = {
        "net": net,
        "target": tgt_net.target_model,
        "optimizer": optimizer,
        "epsilon": epsilon_tracker,
        "replay": buffer,
        "held_out": held_out,
    }
    common.setup_ignite(engine, params, exp_source, NAME, args=args, save=save)
    return engine.run(common.batch_generator(buffer, params.replay_initial, params.batch_size * steps, steps))


if __name__ == "__main__":
    parser = cli.parser(__doc__)
    cli.main(train, parser, NAME)

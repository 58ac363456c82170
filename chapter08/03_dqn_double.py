#!/usr/bin/env python3
"""Double DQN: the online network selects the next action, and the target network evaluates it.

Idea    the maximum of noisy estimates is too high on average, so one network selects the action and another one
        evaluates it
Parent  01_dqn_basic.py, with another loss
Keeps   changes the algorithm: the targets are different
Paper   van Hasselt et al., Deep reinforcement learning with double Q-learning, 2016,
        https://arxiv.org/abs/1509.06461
Run     ./03_dqn_double.py --cuda
Read    lib/nets/losses.py
"""

import argparse
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from lib import cli, common, dqn_model
from lib.envs import vector_env
from lib.experience import ring, stream
from lib.nets import losses

import ptan
import torch
from ignite.engine import Engine

NAME = Path(__file__).stem


def calc_loss(batch, net, tgt_net, double=True, huber=False):
    values = losses.select_actions(net(batch.states), batch.actions)
    with torch.no_grad():
        next_target_q_values = tgt_net(batch.next_states)
        next_q_values = net(batch.next_states) if double else next_target_q_values
    targets = losses.double_q_targets(batch.returns, batch.discounts, next_q_values, next_target_q_values)
    return losses.td_losses(values - targets, huber).mean()


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
    held_out = ring.HeldOutStates(buffer, args.device)
    optimizer = torch.optim.Adam(net.parameters(), lr=params.learning_rate, fused=True)

    def process_batch(engine, batch):
        optimizer.zero_grad()
        loss = calc_loss(batch.for_net(args.device), net, tgt_net.target_model, args.double, params.huber)
        loss.backward()
        optimizer.step()
        epsilon_tracker.frame(engine.state.iteration * steps)
        if engine.state.iteration * steps % params.target_net_sync < steps:
            tgt_net.sync()
        return {"loss": loss.item(), "epsilon": selector.epsilon, "values": lambda: held_out.best_value(net)}

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
    parser.add_argument("--double", action=argparse.BooleanOptionalAction, default=True, help="double Q-learning")
    cli.main(train, parser, NAME)

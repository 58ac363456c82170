#!/usr/bin/env python3
"""Pong in minutes: a DQN recipe for games in which playing is cheaper than learning.

Idea    double Q-learning over three steps; a smaller network that subtracts the static part of the screen; 4
        samples per step instead of 32, because a new step costs less than learning again from old ones
Parent  06_fast_learner.py, with another recipe
Keeps   changes the algorithm: the learning rule and the replay ratio are different
Paper   Hessel et al., Rainbow, 2018, https://arxiv.org/abs/1710.02298
Run     ./07_pong_in_minutes.py --cuda
Read    lib/nets/losses.py, then FAST_HYPERPARAMS in lib/hyperparameters.py
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from lib import cli, common, dqn_model
from lib.envs import vector_env
from lib.experience import ring, stream
from lib.hyperparameters import FAST_HYPERPARAMS
from lib.nets import encoders, losses

import ptan
import torch
from ignite.engine import Engine

NAME = Path(__file__).stem


def calc_loss(batch, net, tgt_net, huber=False):
    values = losses.select_actions(net(batch.states), batch.actions)
    with torch.no_grad():
        next_q_values = net(batch.next_states)
        next_target_q_values = tgt_net(batch.next_states)
    targets = losses.double_q_targets(batch.returns, batch.discounts, next_q_values, next_target_q_values)
    return losses.td_losses(values - targets, huber).mean()


def train(params, args):
    steps = params.steps_per_update(args.envs)
    envs = vector_env.make_vector_env(params.env_name, args.envs, processes=args.async_envs)
    dtype = encoders.fast_dtype(args.device)
    space, n_actions = envs.single_observation_space, envs.single_action_space.n
    net = dqn_model.DQN(space, n_actions, dtype=dtype, normalise=True).to(args.device)
    tgt_net = ptan.agent.TargetNet(net)
    if args.compile:
        net.compile()
        tgt_net.target_model.compile()
    selector = common.EpsilonGreedyActionSelector(epsilon=params.epsilon_start)
    epsilon_tracker = common.EpsilonTracker(selector, params)
    agent = ptan.agent.DQNAgent(net, selector, device=args.device)
    exp_source = stream.ExperienceStream(envs, agent, seed=args.seed)
    buffer = ring.Ring(exp_source, params.replay_size, gamma=params.gamma, n_step=args.n_step)
    optimizer = torch.optim.Adam(net.parameters(), lr=params.learning_rate, fused=True)

    def process_batch(engine, batch):
        optimizer.zero_grad()
        loss = calc_loss(batch.for_net(args.device), net, tgt_net.target_model, params.huber)
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
    parser = cli.parser(__doc__, FAST_HYPERPARAMS)
    parser.add_argument("-n", dest="n_step", type=cli.positive, default=3, metavar="N", help="steps in a return")
    parser.add_argument("--compile", action="store_true", help="compile the network, which takes some seconds")
    cli.add_env_options(parser, envs=8)
    cli.main(train, parser, NAME)

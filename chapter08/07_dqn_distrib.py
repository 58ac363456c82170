#!/usr/bin/env python3
"""Distributional DQN (C51): learn the distribution of returns instead of their mean.

Idea    predict the probabilities of 51 returns; a Bellman update moves the whole distribution
Parent  01_dqn_basic.py, with another network and another loss
Keeps   changes the algorithm: the targets are different
Paper   Bellemare et al., A distributional perspective on reinforcement learning, 2017,
        https://arxiv.org/abs/1707.06887
Run     ./07_dqn_distrib.py --cuda --v-min -10 --v-max 10 --atoms 51
Read    lib/nets/losses.py from `support` on, then lib/run/return_distributions.py for the pictures in TensorBoard
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from lib import cli, common, dqn_model
from lib.envs import vector_env
from lib.experience import ring, stream
from lib.nets import losses
from lib.run import return_distributions

import ptan
import torch
from ignite.engine import Engine

NAME = Path(__file__).stem


def calc_loss(batch, net, tgt_net):
    best = tgt_net.predict_best(batch.next_states)
    targets = losses.project_distribution(best.exp(), batch.returns, batch.discounts, net.support)
    predicted = losses.select_actions(net.predict(batch.states), batch.actions)
    return losses.kl_divergence(targets, predicted).mean()


def train(params, args):
    steps = params.steps_per_update()
    envs = vector_env.make_vector_env(params.env_name, 1)
    space, n_actions = envs.single_observation_space, envs.single_action_space.n
    support = args.v_min, args.v_max, args.atoms
    net = dqn_model.DQN(space, n_actions, support=support, normalise=params.normalise).to(args.device)
    tgt_net = ptan.agent.TargetNet(net)
    selector = common.EpsilonGreedyActionSelector(epsilon=params.epsilon_start)
    epsilon_tracker = common.EpsilonTracker(selector, params)
    agent = ptan.agent.DQNAgent(net, selector, device=args.device)
    exp_source = stream.ExperienceStream(envs, agent, seed=args.seed)
    buffer = ring.Ring(exp_source, params.replay_size, gamma=params.gamma)
    optimizer = torch.optim.Adam(net.parameters(), lr=params.learning_rate, fused=True)

    def process_batch(engine, batch):
        optimizer.zero_grad()
        loss = calc_loss(batch.for_net(args.device), net, tgt_net.target_model)
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
    figures = {"distributions": return_distributions.ReturnDistributionFigure(net, buffer)}
    common.setup_ignite(engine, params, exp_source, NAME, args=args, save=save, figures=figures)
    return engine.run(common.batch_generator(buffer, params.replay_initial, params.batch_size * steps, steps))


if __name__ == "__main__":
    parser = cli.parser(__doc__)
    parser.add_argument("--v-min", type=float, default=-10.0, help="smallest return of the support")
    parser.add_argument("--v-max", type=float, default=10.0, help="largest return of the support")
    parser.add_argument("--atoms", type=cli.positive, default=51, help="number of returns in the support")
    cli.main(train, parser, NAME)

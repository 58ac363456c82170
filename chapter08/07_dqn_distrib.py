#!/usr/bin/env python3
"""Distributional DQN (C51): learn how returns are distributed, not only their mean.

Idea    a probability for each of 51 returns, and a step of the Bellman equation that moves the whole distribution
Parent  01_dqn_basic.py, and its network and loss
Keeps   changes the task: not the game, but what is learnt from a step
Paper   Bellemare et al., A distributional perspective on reinforcement learning, 2017,
        https://arxiv.org/abs/1707.06887
Run     ./07_dqn_distrib.py --cuda --v-min -10 --v-max 10 --atoms 51
Read    lib/losses.py from support on, then lib/distributions.py for the pictures in TensorBoard
"""

from pathlib import Path

import ptan
import torch
from ignite.engine import Engine

from lib import cli, common, dqn_extra
from lib.analysis import return_distributions
from lib.envs import vector_env
from lib.experience import ring, selectors, stream
from lib.nets import losses

NAME = Path(__file__).stem


def calc_loss(batch, net, tgt_net):
    with torch.no_grad():
        best = tgt_net.best(batch.next_states)
    targets = losses.project_distribution(best.exp(), batch.returns, batch.discounts, net.support)
    return losses.kl_divergence(targets, losses.select_actions(net.predict(batch.states), batch.actions)).mean()


def train(params, args):
    envs = vector_env.make_vector_env(params.env_name, 1)
    space, n_actions = envs.single_observation_space, envs.single_action_space.n
    support = losses.support(args.v_min, args.v_max, args.atoms)
    net = dqn_extra.ExtendedDQN(space, n_actions, support=support).to(args.device)
    tgt_net = ptan.agent.TargetNet(net)
    selector = selectors.EpsilonGreedyActionSelector(epsilon=params.epsilon_start)
    epsilon_tracker = common.EpsilonTracker(selector, params)
    agent = ptan.agent.DQNAgent(net, selector, device=args.device)
    exp_source = stream.ExperienceStream(envs, agent, seed=args.seed)
    buffer = ring.Ring.of(exp_source, params.replay_size, gamma=params.gamma)
    optimizer = torch.optim.Adam(net.parameters(), lr=params.learning_rate, fused=True)

    def process_batch(engine, batch):
        optimizer.zero_grad()
        loss = calc_loss(batch.for_net(args.device), net, tgt_net.target_model)
        loss.backward()
        optimizer.step()
        epsilon_tracker.frame(engine.state.iteration)
        if engine.state.iteration % params.target_net_sync == 0:
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
    missing = params.replay_initial - len(buffer)  # a resumed run brings its replay along
    return engine.run(common.batch_generator(buffer, missing, params.batch_size))


if __name__ == "__main__":
    parser = cli.parser(__doc__)
    parser.add_argument("--v-min", type=float, default=-10.0, help="lower end of the support")
    parser.add_argument("--v-max", type=float, default=10.0, help="upper end of it")
    parser.add_argument("--atoms", type=cli.whole, default=51, help="returns with a probability, the ends included")
    cli.main(train, parser, NAME)

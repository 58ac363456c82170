#!/usr/bin/env python3
"""Faster wrappers: the same states with less work, and optionally in another process.

Idea    fetch only the screens that are used; store frames contiguously, so that a stack of four is a view; leave out
        wrappers that only check how an environment is used
Parent  02_n_envs.py, with other wrappers
Keeps   exact: all states, rewards, episode ends and learnt weights are the same; with --parallel, statistics as in
        03_parallel.py
Paper   Machado et al., Revisiting the Arcade Learning Environment, 2018, https://arxiv.org/abs/1709.06009
Run     ./04_wrappers.py --cuda --envs 3 --parallel
Read    DirectAtari in lib/envs/atari.py
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from lib import cli, common, dqn_model
from lib.actors import players
from lib.envs.single_env import make_env
from lib.experience import transitions

import ptan
import torch
from ignite.engine import Engine

NAME = Path(__file__).stem


def train(params, args):
    steps = params.steps_per_update(args.envs)
    envs = [make_env(params.env_name, tweaked=True) for _ in range(args.envs)]
    env = envs[0]
    net = dqn_model.DQN(env.observation_space, env.action_space.n, normalise=params.normalise).to(args.device)
    tgt_net = ptan.agent.TargetNet(net)
    selector = common.EpsilonGreedyActionSelector(epsilon=params.epsilon_start)
    epsilon_tracker = common.EpsilonTracker(selector, params)
    agent = ptan.agent.DQNAgent(net, selector, device=args.device)
    exp_source = transitions.ExperienceSourceFirstLast(envs, agent, gamma=params.gamma, seed=args.seed)
    if args.parallel:
        exp_source = players.Players(exp_source, 1, args.engine, args.patience, args.address, params.batch_size * steps)
    buffer = transitions.ReplayBuffer(exp_source, params.replay_size)
    optimizer = torch.optim.Adam(net.parameters(), lr=params.learning_rate)

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
    parser = cli.parser(__doc__, named="envs")
    parser.add_argument("--envs", type=cli.positive, default=3, metavar="N", help="number of environments")
    cli.add_engine_options(parser, optional=True)
    cli.main(train, parser, NAME)

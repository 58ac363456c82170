#!/usr/bin/env python3
"""Play and learn in separate processes: players collect the next transitions during an update.

Idea    each player has its own environment and a copy of the network. The learner has the replay and the optimizer.
        They exchange weights and blocks of transitions through pipes, and neither side runs far ahead
Parent  01_baseline.py, with its experience source in other processes and batches that are four times larger
Keeps   statistics: --replay-ratio samples per step, by default as in the baseline. An update uses four batches.
        With one player, actions are chosen with weights that are 17 to 24 steps old; with N players, up to 24 N
Paper   Horgan et al., Distributed prioritized experience replay, 2018, https://arxiv.org/abs/1803.00933
Run     ./03_parallel.py --cuda --players 2
Read    lib/actors/players.py, then lib/actors/fleet.py
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
BATCHES = 4  # combined in one update, or more if params.learn_every is larger


def train(params, args):
    batch_size = params.batch_size * max(BATCHES, params.learn_every)
    steps = cli.quotient("--replay-ratio", batch_size, args.replay_ratio or params.batch_size)
    envs = [make_env(params.env_name) for _ in range(args.players)]
    env = envs[0]
    net = dqn_model.DQN(env.observation_space, env.action_space.n, normalise=params.normalise).to(args.device)
    tgt_net = ptan.agent.TargetNet(net)
    selector = common.EpsilonGreedyActionSelector(epsilon=params.epsilon_start)
    epsilon_tracker = common.EpsilonTracker(selector, params)
    agent = ptan.agent.DQNAgent(net, selector, device=args.device)
    exp_source = transitions.ExperienceSourceFirstLast(envs, agent, gamma=params.gamma, seed=args.seed)
    exp_source = players.Players(exp_source, args.players, args.engine, args.patience, args.address, batch_size)
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
    return engine.run(common.batch_generator(buffer, params.replay_initial, batch_size, steps))


if __name__ == "__main__":
    parser = cli.parser(__doc__)
    parser.add_argument("--players", type=cli.positive, default=1, metavar="N", help="number of players")
    parser.add_argument("--replay-ratio", type=cli.positive, metavar="R", help="samples per step (default: batch_size)")
    cli.add_engine_options(parser)
    cli.main(train, parser, NAME)

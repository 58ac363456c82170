#!/usr/bin/env python3
"""Several environments: one forward pass acts in all of them, and one large batch replaces several small ones.

Idea    in each iteration, each of N environments takes a step, and N batches are combined into one; a large forward
        pass or optimizer step costs less than N small ones
Parent  01_baseline.py, with N environments and an N times larger batch
Keeps   statistics: batch_size samples per step for any N. There are N times fewer updates, at the same learning rate,
        because larger ones slowed learning (docs/chapter09.md)
Paper   Stooke and Abbeel, Accelerated methods for deep reinforcement learning, 2018, https://arxiv.org/abs/1803.02811
Run     ./02_n_envs.py --cuda --envs 3
Read    ExperienceSourceFirstLast in lib/experience/transitions.py
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from lib import cli, common, dqn_model
from lib.envs.single_env import make_env
from lib.experience import transitions

import ptan
import torch
from ignite.engine import Engine

NAME = Path(__file__).stem


def train(params, args):
    steps = params.steps_per_update(args.envs)
    envs = [make_env(params.env_name) for _ in range(args.envs)]
    env = envs[0]
    net = dqn_model.DQN(env.observation_space, env.action_space.n, normalise=params.normalise).to(args.device)
    tgt_net = ptan.agent.TargetNet(net)
    selector = common.EpsilonGreedyActionSelector(epsilon=params.epsilon_start)
    epsilon_tracker = common.EpsilonTracker(selector, params)
    agent = ptan.agent.DQNAgent(net, selector, device=args.device)
    exp_source = transitions.ExperienceSourceFirstLast(envs, agent, gamma=params.gamma, seed=args.seed)
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
    cli.main(train, parser, NAME)

#!/usr/bin/env python3
"""N-step DQN: unroll the Bellman equation.

Idea    sum the next n rewards, and bootstrap from the network only after these n steps
Parent  01_dqn_basic.py, with n_step for its replay ring
Keeps   changes the algorithm: a transition covers n steps. With -n 1 it is exact
Paper   Sutton, Learning to predict by the methods of temporal differences, 1988,
        https://link.springer.com/article/10.1007/BF00115009
Run     ./02_dqn_n_steps.py --cuda -n 4
Read    lib/experience/ring.py: n-step returns, which stop at the end of an episode
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
    buffer = ring.Ring(exp_source, params.replay_size, gamma=params.gamma, n_step=args.n_step)
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
    parser = cli.parser(__doc__, named="n_step")
    parser.add_argument("-n", dest="n_step", type=cli.positive, default=3, metavar="N", help="steps in a return")
    cli.main(train, parser, NAME)

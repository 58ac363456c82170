#!/usr/bin/env python3
"""The baseline: the textbook DQN, to which chapter 9 compares every speed-up.

Idea    one environment, and one update after every step: simple, correct and slow
Parent  ../chapter08/01_dqn_basic.py, with the book's data path: PTAN's experience source, and a list of transitions
Keeps   statistics
Paper   Mnih et al., Human-level control through deep reinforcement learning, 2015,
        https://www.nature.com/articles/nature14236
Run     ./01_baseline.py --cuda
Read    Stream and ExperienceStream in lib/experience/stream.py, LazyFrames and FrameStrip in lib/envs/frames.py, and
        lib/experience/transitions.py: the path of a transition; lib/common.py, with td_targets and td_losses in
        lib/nets/losses.py: the loop and the loss; DQN in lib/dqn_model.py, with PlainEncoder in lib/nets/encoders.py
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
    steps = params.steps_per_update()
    env = make_env(params.env_name)
    net = dqn_model.DQN(env.observation_space, env.action_space.n, normalise=params.normalise).to(args.device)
    tgt_net = ptan.agent.TargetNet(net)
    selector = common.EpsilonGreedyActionSelector(epsilon=params.epsilon_start)
    epsilon_tracker = common.EpsilonTracker(selector, params)
    agent = ptan.agent.DQNAgent(net, selector, device=args.device)
    exp_source = transitions.ExperienceSourceFirstLast(env, agent, gamma=params.gamma, seed=args.seed)
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
    parser = cli.parser(__doc__)
    cli.main(train, parser, NAME)

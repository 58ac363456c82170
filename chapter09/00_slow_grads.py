#!/usr/bin/env python3
"""A slower baseline: acting and the target network record computation graphs, without torch.no_grad().

Idea    show the cost of computation graphs that nothing uses: the gradient is the same, but time and memory are wasted
Parent  01_baseline.py, with no_grad=False, and with gradients enabled while acting
Keeps   exact
Paper   none; the PyTorch notes on locally disabling gradients, https://pytorch.org/docs/stable/notes/autograd.html
Run     ./00_slow_grads.py --cuda
Read    calc_loss_dqn in lib/common.py
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
    recording = torch.enable_grad()(net)  # PTAN's agent disables gradients around its call
    agent = ptan.agent.DQNAgent(recording, selector, device=args.device)
    exp_source = transitions.ExperienceSourceFirstLast(env, agent, gamma=params.gamma, seed=args.seed)
    buffer = transitions.ReplayBuffer(exp_source, params.replay_size)
    optimizer = torch.optim.Adam(net.parameters(), lr=params.learning_rate)

    def process_batch(engine, batch):
        optimizer.zero_grad()
        loss = common.calc_loss_dqn(
            batch, net, tgt_net.target_model, params.gamma, args.device, no_grad=False, huber=params.huber
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

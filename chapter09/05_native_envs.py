#!/usr/bin/env python3
"""Native environments: all games step together in native threads, and the replay consists of arrays.

Idea    one native call steps all games; the replay stores each frame once in an array; states are rebuilt when they are
        sampled, in the memory layout that the network needs
Parent  04_wrappers.py, with native environments and a replay ring
Keeps   statistics: states, rewards and episode ends are the same. An episode starts with 0 to 30 no-ops instead of 1
        to 30. A game gets a new seed about every 500,000 agent steps, so that a run can be resumed within minutes
Paper   Weng et al., EnvPool, 2022, https://arxiv.org/abs/2206.10558
Run     ./05_native_envs.py --cuda --envs 8
Read    lib/envs/vector_env.py, then Stream and ExperienceStream in lib/experience/stream.py, and
        lib/experience/ring.py
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
    steps = params.steps_per_update(args.envs)
    envs = vector_env.make_vector_env(params.env_name, args.envs, processes=args.async_envs)
    space, n_actions = envs.single_observation_space, envs.single_action_space.n
    net = dqn_model.DQN(space, n_actions, normalise=params.normalise).to(args.device)
    tgt_net = ptan.agent.TargetNet(net)
    selector = common.EpsilonGreedyActionSelector(epsilon=params.epsilon_start)
    epsilon_tracker = common.EpsilonTracker(selector, params)
    agent = ptan.agent.DQNAgent(net, selector, device=args.device)
    exp_source = stream.ExperienceStream(envs, agent, seed=args.seed)
    buffer = ring.Ring(exp_source, params.replay_size, gamma=params.gamma)
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
    cli.add_env_options(parser, envs=3)
    cli.main(train, parser, NAME)

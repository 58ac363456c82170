#!/usr/bin/env python3
"""Prioritised replay: learn more often from surprising transitions.

Idea    sample transitions with large errors more often, and correct the resulting bias by weights in the loss; the
        correction is complete when beta has reached 1
Parent  01_dqn_basic.py, with another replay ring
Keeps   changes the algorithm: the sampling probabilities of transitions are different
Paper   Schaul et al., Prioritized experience replay, 2016, https://arxiv.org/abs/1511.05952
Run     ./05_dqn_prio_replay.py --cuda --alpha 0.6 --beta 0.4
Read    lib/experience/priority_ring.py
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from lib import cli, common, dqn_model
from lib.envs import vector_env
from lib.experience import priority_ring, stream
from lib.nets import losses

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
    priority = {"alpha": args.alpha, "beta": args.beta, "beta_steps": args.beta_steps}
    buffer = priority_ring.PrioritisedRing(exp_source, params.replay_size, gamma=params.gamma, **priority)
    optimizer = torch.optim.Adam(net.parameters(), lr=params.learning_rate, fused=True)

    def process_batch(engine, batch):
        batch = batch.for_net(args.device)
        optimizer.zero_grad()
        errors = common.td_errors(batch, net, tgt_net.target_model)
        loss = losses.weighted_mean(losses.td_losses(errors, params.huber), batch.weights)
        loss.backward()
        optimizer.step()
        buffer.update_priorities(batch.indices, priority_ring.priorities_from_errors(errors))
        epsilon_tracker.frame(engine.state.iteration * steps)
        if engine.state.iteration * steps % params.target_net_sync < steps:
            tgt_net.sync()
        return {"loss": loss.item(), "epsilon": selector.epsilon, "beta": buffer.beta}

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
    parser.add_argument("--alpha", type=cli.share, default=0.6, help="exponent of the priorities; 0: uniform sampling")
    parser.add_argument("--beta", type=cli.share, default=0.4, help="initial exponent of the importance weights")
    parser.add_argument("--beta-steps", type=cli.positive, default=100_000, help="agent steps until beta is 1")
    cli.main(train, parser, NAME)

#!/usr/bin/env python3
"""Rainbow: all six extensions at once. Each can be left out.

Idea    the extensions address different problems, so the paper expects their benefits to add up. On Pong, n-step
        returns alone did as well
Parent  01_dqn_basic.py, with the ideas of 02 to 07, and with several environments and bfloat16 of chapter 9
Keeps   changes the algorithm: the learning rule is different
Paper   Hessel et al., Rainbow: combining improvements in deep reinforcement learning, 2018,
        https://arxiv.org/abs/1710.02298
Run     ./08_dqn_rainbow.py --cuda --without dueling
Read    docs/chapter08.md for a comparison with the paper's hyperparameters
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from lib import cli, common, dqn_model
from lib.envs import vector_env
from lib.experience import priority_ring, stream
from lib.nets import encoders, losses
from lib.run import return_distributions

import ptan
import torch
from ignite.engine import Engine

NAME = Path(__file__).stem
PARTS = ("double", "dueling", "noisy", "prioritised", "n_step", "distributional")


def calc_loss(batch, net, tgt_net, double, huber=False):
    best = tgt_net.predict_best(batch.next_states, online_net=net if double else None)
    predicted = losses.select_actions(net.predict(batch.states), batch.actions)
    if net.support is None:
        errors = predicted - losses.td_targets(batch.returns, batch.discounts, best)
        return losses.weighted_mean(losses.td_losses(errors, huber), batch.weights), errors
    targets = losses.project_distribution(best.exp(), batch.returns, batch.discounts, net.support)
    divergences = losses.kl_divergence(targets, predicted)
    return losses.weighted_mean(divergences, batch.weights), divergences


def train(params, args):
    steps = params.steps_per_update(args.envs)
    double, dueling, noisy, prioritised, n_step, distributional = (part not in args.without for part in PARTS)
    params = params.without_epsilon(start=params.epsilon_start) if noisy else params
    envs = vector_env.make_vector_env(params.env_name, args.envs, processes=args.async_envs)
    space, n_actions = envs.single_observation_space, envs.single_action_space.n
    v_max = args.v_max or (2.0 if "Pong" in params.env_name else 10.0)  # see docs/chapter08.md
    options = {"dueling": dueling, "sigma": args.sigma if noisy else None, "normalise": params.normalise}
    options |= {"support": (-v_max, v_max, 51) if distributional else None, "dtype": encoders.fast_dtype(args.device)}
    net = dqn_model.DQN(space, n_actions, **options).to(args.device)
    tgt_net = ptan.agent.TargetNet(net)
    selector = common.EpsilonGreedyActionSelector(epsilon=params.epsilon_start)
    epsilon_tracker = common.EpsilonTracker(selector, params)
    agent = ptan.agent.DQNAgent(net, selector, device=args.device)
    exp_source = stream.ExperienceStream(envs, agent, seed=args.seed)
    alpha, n = 0.5 if prioritised else 0.0, args.n_step if n_step else 1
    buffer = priority_ring.PrioritisedRing(exp_source, params.replay_size, alpha=alpha, n_step=n, gamma=params.gamma)
    optimizer = torch.optim.Adam(net.parameter_groups(params.learning_rate), fused=True)

    def process_batch(engine, batch):
        optimizer.zero_grad()
        loss, errors = calc_loss(batch.for_net(args.device), net, tgt_net.target_model, double, params.huber)
        loss.backward()
        optimizer.step()
        buffer.update_priorities(batch.indices, priority_ring.priorities_from_errors(errors))
        epsilon_tracker.frame(engine.state.iteration * steps)
        if engine.state.iteration * steps % params.target_net_sync < steps:
            tgt_net.sync()
        return {"loss": loss.item(), "epsilon": selector.epsilon, "beta": buffer.beta, **net.snr_metrics()}

    engine = Engine(process_batch)
    save = {
        "net": net,
        "target": tgt_net.target_model,
        "optimizer": optimizer,
        "epsilon": epsilon_tracker,
        "replay": buffer,
    }
    figures = {"distributions": return_distributions.ReturnDistributionFigure(net, buffer)} if distributional else {}
    common.setup_ignite(engine, params, exp_source, NAME, args=args, save=save, figures=figures)
    return engine.run(common.batch_generator(buffer, params.replay_initial, params.batch_size * steps, steps))


if __name__ == "__main__":
    parser = cli.parser(__doc__)
    parser.add_argument("--without", choices=PARTS, action="append", default=[], help="leave out a part; repeatable")
    parser.add_argument("-n", dest="n_step", type=cli.positive, default=3, metavar="N", help="steps in a return")
    parser.add_argument("--v-max", type=cli.above_zero, metavar="V", help="support: -V to V (Pong: 2, else 10)")
    parser.add_argument("--sigma", type=cli.above_zero, default=0.1, metavar="S", help="initial sigma of the noise")
    cli.add_env_options(parser, envs=1)
    cli.main(train, parser, NAME)

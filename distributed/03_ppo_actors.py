#!/usr/bin/env python3
"""PPO with actors that run in this process, in other processes, or on a Ray cluster.

Idea    the environments of 02_ppo_fast.py are divided among actors; the learner sends its weights to the actors, and
        they return trajectory segments. With --async, actors play during updates; V-trace corrects the policy lag
Parent  02_ppo_fast.py, with actors in place of its sampler
Keeps   close: the same steps and updates up to rounding; with --async, statistics
Paper   Espeholt et al., IMPALA: scalable distributed deep-RL with importance weighted actor-learner architectures,
        2018, https://arxiv.org/abs/1802.01561
Run     ./03_ppo_actors.py --actors 8 --engine process
Read    lib/ppo/segments.py for the exchange of weights and segments, then lib/actors/fleet.py for the actors
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from lib import cli
from lib.hyperparameters import PPO_FAST_HYPERPARAMS
from lib.nets import encoders
from lib.ppo.actor import ActorSettings
from lib.ppo.fast import FastModel, FastTrainer
from lib.ppo.learner import PPOLearner, join_learners
from lib.ppo.segments import Segments
from lib.run.setup import setup_ignite

import torch
from ignite.engine import Engine

NAME = Path(__file__).stem


def train(params, args):
    group = join_learners(args.device)
    acting = ActorSettings.of(params, args, group)
    model = FastModel(
        acting.env.single_observation_space, acting.env.single_action_space, encoders.fast_dtype(group.device)
    ).to(group.device)
    optimizer = torch.optim.Adam(model.parameters(), params.learning_rate, betas=(0.9, 0.99), eps=1e-5, fused=True)
    trainer = FastTrainer(model, optimizer, params, group)
    learner = PPOLearner(trainer)
    segments = Segments(acting, learner, args.asynchronous)
    if group.rank:  # only the first learner has a run folder
        segments.follow()
        sys.exit()

    def process_batch(engine, batch):
        trainer.settings = params.annealed(segments.steps_done)
        return learner.train(batch)

    engine = Engine(process_batch)
    setup_ignite(
        engine, params, segments, NAME, args=args, save={"net": model, "optimizer": optimizer, "learner": learner}
    )
    return engine.run(segments)


if __name__ == "__main__":
    parser = cli.parser(__doc__, PPO_FAST_HYPERPARAMS)
    parser.add_argument("--actors", type=cli.positive, metavar="K", help="actors per learner (default: one per core)")
    parser.add_argument("--async", dest="asynchronous", action="store_true", help="let actors play during updates")
    parser.add_argument("--actor-cpus", type=cli.above_zero, default=1.0, metavar="F", help="CPUs of an actor on Ray")
    cli.add_engine_options(parser)
    cli.main(train, parser, NAME)

#!/usr/bin/env python3
"""PPO whose actors play elsewhere: in this process, in others, on a Ray cluster; the learner gets their segments.

Idea    the sampler becomes actors that share its environments; weights go out to them, trajectory segments come back
Parent  01_ppo.py, with its sampler dealt out to actors
Keeps   close: the same steps, learnt from in the same way, but for rounding; with --async `statistics`
Paper   Espeholt et al., IMPALA: scalable distributed deep-RL with importance weighted actor-learner architectures,
        2018, https://arxiv.org/abs/1802.01561
Run     ./02_ppo_actors.py --actors 8 --engine process
Read    lib/ppo/segments.py, then lib/actors, its contract first
"""

from pathlib import Path

import torch
from ignite.engine import Engine

from lib import cli, common
from lib.actors.engines import ENGINES
from lib.hyperparameters import PPO_HYPERPARAMS
from lib.nets import precision
from lib.ppo.actor import Acting
from lib.ppo.learner import PPOLearner
from lib.ppo.model import Model
from lib.ppo.segments import Segments
from lib.ppo.update import Trainer

NAME = Path(__file__).stem
PLACE = ("engine", "patience", "address", "actor_cpus")  # where the actors are changes no number
LAG = "play on while the learner learns; drop segments whose weights are more than LAG updates old (without LAG: 2)"


def train(params, args):
    acting = Acting(
        params.env_name,
        params.envs,
        args.actors,
        params.rollout,
        args.seed,
        engine=args.engine,
        patience=args.patience,
        address=args.address,
        cpus=args.actor_cpus,
        dtype=precision.fast_dtype(torch.device("cpu")),
    )
    model = Model(acting.space, acting.n_actions, precision.fast_dtype(args.device)).to(args.device)
    optimizer = torch.optim.Adam(model.parameters(), params.learning_rate, betas=(0.9, 0.99), eps=1e-5, fused=True)
    trainer = Trainer(
        model,
        optimizer,
        minibatch=params.minibatch,
        epochs=params.epochs,
        gamma=params.gamma,
        lam=params.lam,
        clip=params.clip,
        entropy=params.entropy,
        gradient_norm=params.gradient_norm,
        kl_target=params.kl_target,
        kl_final=params.kl_final,
        final_temperature=params.final_temperature,
        device=args.device,
    )
    learner = PPOLearner(trainer, args.learners)
    segments = Segments(acting, learner, args.max_lag)

    def process_batch(engine, batch):
        return learner.train(batch, segments.progress(params.stop_reward))

    engine = Engine(process_batch)
    save = {"net": model, "optimizer": optimizer, "learner": learner}
    common.setup_ignite(engine, params, segments, NAME, args=args, save=save)
    return engine.run(segments)


if __name__ == "__main__":
    parser = cli.parser(__doc__, PPO_HYPERPARAMS, free=PLACE)
    parser.add_argument("--actors", type=cli.positive, default=2, metavar="K", help="that share the environments")
    parser.add_argument("--engine", choices=ENGINES, default="process", help="where they are")
    parser.add_argument("--async", dest="max_lag", type=cli.positive, nargs="?", const=2, metavar="LAG", help=LAG)
    parser.add_argument("--learners", type=cli.positive, default=1, metavar="K", help="that share each minibatch")
    parser.add_argument("--patience", type=cli.positive, default=60, metavar="SECONDS", help="for a segment")
    parser.add_argument("--address", metavar="HOST:PORT", help="of a Ray cluster (default: a Ray of its own)")
    parser.add_argument("--actor-cpus", type=cli.above_zero, metavar="F", help="on Ray (default: 1, or a share)")
    cli.main(train, parser, NAME)

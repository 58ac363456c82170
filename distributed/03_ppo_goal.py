#!/usr/bin/env python3
"""PPO with a goal: entropy weight, KL target, epochs and temperature follow the progress toward `stop_reward`.

Idea    the policy explores at first. The nearer the mean return is to the goal, the less random its actions and the
        smaller its updates. Unlike its parents, this script uses the goal
Parent  02_ppo_fast.py
Keeps   exact with all schedules left out; with them, it changes the algorithm
Paper   none
Run     ./03_ppo_goal.py --cuda
Read    lib/ppo/goal.py for the schedules, lib/ppo/progress.py for the progress
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from lib import cli, common
from lib.envs import vector_env
from lib.hyperparameters import PPO_GOAL_HYPERPARAMS
from lib.nets import precision
from lib.ppo.fast import normalise_by_first_rollout
from lib.ppo.goal import SCHEDULES, GoalModel, GoalSettings, GoalTrainer
from lib.ppo.rollout import Agent, Sampler

import torch
from ignite.engine import Engine

NAME = Path(__file__).stem


def train(params, args):
    envs = vector_env.make_vector_env(params.env_name, params.envs, processes=args.async_envs)
    dtype = precision.fast_dtype(args.device)
    model = GoalModel(envs.single_observation_space, envs.single_action_space.n, dtype).to(args.device)
    sampler = Sampler(envs, Agent(model, args.device), params.rollout, args.seed)
    optimizer = torch.optim.Adam(model.parameters(), params.learning_rate, betas=(0.9, 0.99), eps=1e-5, fused=True)
    settings = GoalSettings.of(params)
    trainer = GoalTrainer(model, optimizer, settings, args.device)

    def process_batch(engine, rollout):
        progress = sampler.progress(params.stop_reward)
        trainer.settings = settings.at(progress, args.without)
        return trainer.update(rollout) | {"progress": progress.mean}

    engine = Engine(process_batch)
    common.setup_ignite(engine, params, sampler, NAME, args=args, save={"net": model, "optimizer": optimizer})
    return engine.run(normalise_by_first_rollout(sampler, model))


if __name__ == "__main__":
    parser = cli.parser(__doc__, PPO_GOAL_HYPERPARAMS)
    parser.add_argument("--without", choices=SCHEDULES, action="append", default=[], help="leave it out; repeatable")
    cli.add_env_option(parser)
    cli.main(train, parser, NAME)

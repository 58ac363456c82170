"""A script in the manner of the second edition's chapter 8: a namespace, --cuda, and no train function."""

import argparse
import random
from types import SimpleNamespace

import gymnasium as gym
import ptan
import torch
import torch.optim as optim
from ignite.engine import Engine

import fakes  # noqa: F401 - registers the environment
from lib import common, dqn_model

CHAIN = SimpleNamespace(
    **{
        "env_name": "fakes:Chain-v0",
        "stop_reward": 0.9,
        "run_name": "chain",
        "replay_size": 1000,
        "replay_initial": 100,
        "target_net_sync": 25,
        "epsilon_frames": 400,
        "epsilon_start": 1.0,
        "epsilon_final": 0.02,
        "learning_rate": 0.003,
        "gamma": 0.98,
        "batch_size": 16,
    }
)

if __name__ == "__main__":
    random.seed(common.SEED)
    torch.manual_seed(common.SEED)
    params = CHAIN
    parser = argparse.ArgumentParser()
    parser.add_argument("--cuda", default=False, action="store_true", help="Enable cuda")
    parser.add_argument("-n", type=int, default=2)
    args = parser.parse_args()
    device = torch.device("cuda" if args.cuda else "cpu")
    params.batch_size *= 2

    env = gym.make(params.env_name)
    net = dqn_model.DQN(env.observation_space.shape, env.action_space.n).to(device)
    tgt_net = ptan.agent.TargetNet(net)
    selector = ptan.actions.EpsilonGreedyActionSelector(epsilon=params.epsilon_start)
    epsilon_tracker = common.EpsilonTracker(selector, params)
    agent = ptan.agent.DQNAgent(net, selector, device=device)
    exp_source = ptan.experience.ExperienceSourceFirstLast(env, agent, gamma=params.gamma, steps_count=args.n)
    buffer = ptan.experience.ExperienceReplayBuffer(exp_source, buffer_size=params.replay_size)
    optimizer = optim.Adam(net.parameters(), lr=params.learning_rate)

    def process_batch(engine, batch):
        optimizer.zero_grad()
        loss = common.calc_loss_dqn(batch, net, tgt_net.target_model, gamma=params.gamma**args.n, device=device)
        loss.backward()
        optimizer.step()
        epsilon_tracker.frame(engine.state.iteration)
        if engine.state.iteration % params.target_net_sync == 0:
            tgt_net.sync()
        return {"loss": loss.item(), "epsilon": selector.epsilon}

    engine = Engine(process_batch)
    common.setup_ignite(engine, params, exp_source, f"second={args.n}")

    @engine.on(ptan.ignite.PeriodEvents.ITERS_100_COMPLETED)
    def print_iteration(engine):
        print("iteration", engine.state.iteration)

    engine.run(common.batch_generator(buffer, params.replay_initial, params.batch_size))
    print("trained", engine.state.solved)

"""A script in the manner of the third edition's chapter 9: several environments, and ptan's handlers by hand.

With --parallel, a process plays and sends transitions and EpisodeEnded through a queue.
"""

import argparse
import random
import typing as tt
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import ptan
import ptan.ignite as ptan_ignite
import torch
import torch.multiprocessing as mp
import torch.optim as optim
from ignite.engine import Engine
from ignite.metrics import RunningAverage

import fakes  # noqa: F401 - registers the environment
from lib import atari_wrappers, common, dqn_model

CHAIN = common.Hyperparams(
    env_name="fakes:Chain-v0",
    stop_reward=0.9,
    run_name="chain",
    replay_size=1000,
    replay_initial=100,
    target_net_sync=25,
    epsilon_frames=400,
    epsilon_final=0.02,
    learning_rate=0.003,
    gamma=0.98,
)
PONG = common.Hyperparams(
    env_name="PongNoFrameskip-v4",
    stop_reward=18.0,
    run_name="pong",
    replay_size=1000,
    replay_initial=50,
    target_net_sync=25,
    epsilon_frames=400,
    batch_size=4,
)


@dataclass
class EpisodeEnded:
    reward: float
    steps: int
    epsilon: float


def make_env(params, stack):
    env = gym.make(params.env_name)
    return atari_wrappers.wrap_dqn(env, stack_frames=stack) if "NoFrameskip" in params.env_name else env


def make_source(envs, net, params, device):
    selector = ptan.actions.EpsilonGreedyActionSelector(epsilon=params.epsilon_start)
    tracker = common.EpsilonTracker(selector, params)
    agent = ptan.agent.DQNAgent(net, selector, device=device)
    source = ptan.experience.ExperienceSourceFirstLast(envs, agent, gamma=params.gamma, env_seed=common.SEED)
    return source, selector, tracker


def play_func(params: common.Hyperparams, net: dqn_model.DQN, dev_name: str, exp_queue: mp.Queue, stack: int):
    np.random.seed(common.SEED)
    exp_source, selector, tracker = make_source(make_env(params, stack), net, params, torch.device(dev_name))
    for frame_idx, exp in enumerate(exp_source):
        tracker.frame(frame_idx // 2)
        exp_queue.put(exp)
        for reward, steps in exp_source.pop_rewards_steps():
            exp_queue.put(EpisodeEnded(reward=reward, steps=steps, epsilon=selector.epsilon))


class BatchGenerator:
    def __init__(self, params: common.Hyperparams, exp_queue: mp.Queue):
        self.buffer = ptan.experience.ExperienceReplayBuffer(experience_source=None, buffer_size=params.replay_size)
        self.exp_queue = exp_queue
        self.params = params
        self.epsilon = 1.0
        self._rewards_steps: tt.List[tt.Tuple[float, int]] = []

    def pop_rewards_steps(self):
        result = list(self._rewards_steps)
        self._rewards_steps.clear()
        return result

    def __iter__(self):
        while True:
            for _ in range(4):  # the book takes what is there, so that its replay ratio depends on the machine
                exp = self.exp_queue.get()
                if isinstance(exp, EpisodeEnded):
                    self._rewards_steps.append((exp.reward, exp.steps))
                    self.epsilon = exp.epsilon
                else:
                    self.buffer._add(exp)
            if len(self.buffer) >= self.params.replay_initial:
                yield self.buffer.sample(self.params.batch_size)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--dev", default="cpu")
    parser.add_argument("--envs", type=int, default=3)
    parser.add_argument("--stack", type=int, default=2)
    parser.add_argument("--pong", action="store_true", help="a few iterations of Pong with the book's wrappers")
    parser.add_argument("--parallel", action="store_true")
    args = parser.parse_args()
    random.seed(common.SEED)
    np.random.seed(common.SEED)  # ptan's random actions; if the first episode were won, its mean would solve the task
    torch.manual_seed(common.SEED)
    params = PONG if args.pong else CHAIN
    device = torch.device(args.dev)
    envs = [make_env(params, args.stack) for _ in range(args.envs)]
    net = dqn_model.DQN(envs[0].observation_space.shape, envs[0].action_space.n).to(device)
    tgt_net = ptan.agent.TargetNet(net)
    optimizer = optim.Adam(net.parameters(), lr=params.learning_rate)

    if args.parallel:
        mp.set_start_method("spawn")
        net.share_memory()
        exp_queue = mp.Queue(maxsize=2)
        player = mp.Process(target=play_func, args=(params, net, args.dev, exp_queue, args.stack), daemon=True)
        player.start()
        exp_source = batches = BatchGenerator(params, exp_queue)
        steps = 1
    else:
        params.batch_size *= args.envs
        exp_source, selector, tracker = make_source(envs, net, params, device)
        buffer = ptan.experience.ExperienceReplayBuffer(exp_source, buffer_size=params.replay_size)
        batches = common.batch_generator(buffer, params.replay_initial, params.batch_size, args.envs)
        steps = args.envs

    def process_batch(engine, batch):
        optimizer.zero_grad()
        loss = common.calc_loss_dqn(batch, net, tgt_net.target_model, gamma=params.gamma, device=device)
        loss.backward()
        optimizer.step()
        if not args.parallel:
            tracker.frame(engine.state.iteration * args.envs)
        if engine.state.iteration % params.target_net_sync == 0:
            tgt_net.sync()
        return {"loss": loss.item()}

    engine = Engine(process_batch)
    ptan_ignite.EndOfEpisodeHandler(exp_source, bound_avg_reward=params.stop_reward).attach(engine)
    ptan_ignite.EpisodeFPSHandler(fps_mul=steps).attach(engine)

    @engine.on(ptan_ignite.EpisodeEvents.EPISODE_COMPLETED)
    def episode_completed(trainer: Engine):
        if trainer.state.episode % 50 == 0:
            print("Episode", trainer.state.episode, f"{trainer.state.metrics['avg_fps']:.1f}")

    @engine.on(ptan_ignite.EpisodeEvents.BOUND_REWARD_REACHED)
    def game_solved(trainer: Engine):
        print("solved", trainer.state.episode, f"{trainer.state.metrics['avg_fps']:.1f}")
        trainer.should_terminate = True

    RunningAverage(output_transform=lambda v: v["loss"]).attach(engine, "avg_loss")
    ptan_ignite.PeriodicEvents().attach(engine)

    @engine.on(ptan_ignite.PeriodEvents.ITERS_10_COMPLETED)
    def ten(trainer: Engine):
        print("iteration", trainer.state.iteration)
        trainer.should_terminate |= args.pong and trainer.state.iteration >= 20

    engine.run(batches)
    print("trained", engine.state.iteration)

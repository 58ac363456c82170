"""A script in the manner of the third edition's chapter 8; --kind chooses the extension."""

import typing as tt

import gymnasium as gym
import numpy as np
import ptan
import ptan.ignite as ptan_ignite
import torch
from ignite.engine import Engine
from torch import optim

import fakes  # noqa: F401 - registers the environment
from lib import common, dqn_extra, dqn_model

BEST = common.Hyperparams(
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
    episodes_to_solve=340,
)
NETS = {"basic": dqn_model.DQN, "rainbow": dqn_extra.RainbowDQN}


def calc_loss_prio(batch, weights, net, tgt_net, gamma, device):
    states, actions, rewards, dones, next_states = common.unpack_batch(batch)
    actions_v = torch.tensor(actions).to(device)
    values = net(torch.as_tensor(states).to(device)).gather(1, actions_v.unsqueeze(-1)).squeeze(-1)
    with torch.no_grad():
        next_values = tgt_net(torch.as_tensor(next_states).to(device)).max(1)[0]
        next_values[torch.BoolTensor(dones)] = 0.0
    rewards_v, weights_v = torch.tensor(rewards).to(device), torch.tensor(weights).to(device)
    losses = weights_v * (values - next_values * gamma - rewards_v) ** 2
    return losses.mean(), (losses + 1e-5).data.cpu().numpy()


def train(params: common.Hyperparams, device: torch.device, extra: dict) -> tt.Optional[int]:
    rainbow = extra["kind"] == "rainbow"
    env = gym.make(params.env_name)
    net = NETS[extra["kind"]](env.observation_space.shape, env.action_space.n).to(device)
    tgt_net = ptan.agent.TargetNet(net)
    selector = ptan.actions.EpsilonGreedyActionSelector(epsilon=params.epsilon_start)
    tracker = common.EpsilonTracker(selector, params)
    if rainbow:
        selector = ptan.actions.ArgmaxActionSelector()
    agent = ptan.agent.DQNAgent(net, selector, device=device)
    exp_source = ptan.experience.ExperienceSourceFirstLast(env, agent, gamma=params.gamma, env_seed=common.SEED)
    if rainbow:
        buffer = dqn_extra.PrioReplayBuffer(exp_source, params.replay_size, extra["alpha"])
    else:
        buffer = ptan.experience.ExperienceReplayBuffer(exp_source, buffer_size=params.replay_size)
    optimizer = optim.Adam(net.parameters(), lr=params.learning_rate)
    seen = []

    def process_batch(engine, batch):
        optimizer.zero_grad()
        if rainbow:
            batch, indices, weights = batch
            loss, priorities = calc_loss_prio(batch, weights, net, tgt_net.target_model, params.gamma, device)
            buffer.update_priorities(indices, priorities)
            buffer.update_beta(engine.state.iteration)
        else:
            loss = common.calc_loss_dqn(batch, net, tgt_net.target_model, gamma=params.gamma, device=device)
        loss.backward()
        optimizer.step()
        tracker.frame(engine.state.iteration)
        if engine.state.iteration % params.target_net_sync == 0:
            tgt_net.sync()
        if engine.state.iteration % 50 == 0 and not rainbow:
            states = np.asarray([np.asarray(each.state) for each in buffer.sample(200)])
            engine.state.metrics["values"] = common.calc_values_of_states(states, net, device)
        return {"loss": loss.item()}

    engine = Engine(process_batch)
    metrics = () if rainbow else ("values",)
    common.setup_ignite(engine, params, exp_source, f"book={extra['kind']}", metrics, tuner_reward_episode=200)

    @engine.on(ptan_ignite.EpisodeEvents.EPISODE_COMPLETED)
    def episode_completed(trainer):
        assert trainer.state.metrics["avg_fps"] >= 0.0
        assert trainer.state.metrics["time_passed"] > 0.0
        seen.append((trainer.state.episode, trainer.state.episode_reward, trainer.state.episode_steps))

    @engine.on(ptan_ignite.PeriodEvents.ITERS_100_COMPLETED)
    def hundred(trainer):
        assert trainer.state.iteration % 100 == 0
        seen.append("hundred")

    result = engine.run(common.batch_generator(buffer, params.replay_initial, params.batch_size))
    assert seen.count("hundred") == result.iteration // 100
    episodes = [each for each in seen if each != "hundred"]
    assert [number for number, _, _ in episodes] == list(range(1, result.episode + 1))
    assert all(0.0 <= total <= 1.0 and 1 <= steps <= 10 for _, total, steps in episodes)
    print("trained", result.solved, result.episode, result.iteration)
    return result.episode if result.solved else None


if __name__ == "__main__":
    parser = common.argparser()
    parser.add_argument("--kind", choices=NETS, default="basic")
    args = parser.parse_args()
    extra = {"kind": args.kind, "alpha": 0.6}
    common.train_or_tune(args, train, BEST, extra_params=extra, extra_space=extra)

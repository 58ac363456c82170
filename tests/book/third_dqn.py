"""A script in the manner of the third edition's chapter 8; --kind chooses the extension."""

import typing as tt

import gymnasium as gym
import numpy as np
import ptan
import ptan.ignite as ptan_ignite
import torch
from ignite.engine import Engine
from torch import nn, optim

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

NETS = {
    "basic": dqn_model.DQN,
    "noisy": dqn_extra.NoisyDQN,
    "prio": dqn_model.DQN,
    "dueling": dqn_extra.DuelingDQN,
    "distrib": dqn_extra.DistributionalDQN,
    "rainbow": dqn_extra.RainbowDQN,
}


def calc_loss_distrib(batch, net, tgt_net, gamma, device):
    states, actions, rewards, dones, next_states = common.unpack_batch(batch)
    next_logits, next_q = tgt_net.both(torch.as_tensor(next_states).to(device))
    best = next_q.max(1)[1].data.cpu().numpy()
    next_distr = tgt_net.apply_softmax(next_logits).data.cpu().numpy()[range(len(batch)), best]
    projected = torch.tensor(dqn_extra.distr_projection(next_distr, rewards, dones, gamma)).to(device)
    logits = net(torch.as_tensor(states).to(device))[range(len(batch)), torch.as_tensor(actions)]
    return -(nn.functional.log_softmax(logits, dim=1) * projected).sum(dim=1).mean()


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
    kind = extra["kind"]
    prio = kind in ("prio", "rainbow")
    env = gym.make(params.env_name)
    net = NETS[kind](env.observation_space.shape, env.action_space.n).to(device)
    tgt_net = ptan.agent.TargetNet(net)
    selector = ptan.actions.EpsilonGreedyActionSelector(epsilon=params.epsilon_start)
    tracker = common.EpsilonTracker(selector, params)
    if kind in ("noisy", "rainbow"):
        selector = ptan.actions.ArgmaxActionSelector()
    agent = ptan.agent.DQNAgent((lambda x: net.qvals(x)) if kind == "distrib" else net, selector, device=device)
    exp_source = ptan.experience.ExperienceSourceFirstLast(env, agent, gamma=params.gamma, env_seed=common.SEED)
    if prio:
        buffer = dqn_extra.PrioReplayBuffer(exp_source, params.replay_size, extra["alpha"])
    else:
        buffer = ptan.experience.ExperienceReplayBuffer(exp_source, buffer_size=params.replay_size)
    optimizer = optim.Adam(net.parameters(), lr=params.learning_rate)
    seen = []

    def process_batch(engine, batch):
        optimizer.zero_grad()
        if prio:
            batch, indices, weights = batch
            loss, priorities = calc_loss_prio(batch, weights, net, tgt_net.target_model, params.gamma, device)
            buffer.update_priorities(indices, priorities)
            buffer.update_beta(engine.state.iteration)
        elif kind == "distrib":
            loss = calc_loss_distrib(batch, net, tgt_net.target_model, params.gamma, device)
        else:
            loss = common.calc_loss_dqn(batch, net, tgt_net.target_model, gamma=params.gamma, device=device)
        loss.backward()
        optimizer.step()
        if kind in ("noisy", "rainbow"):
            net.reset_noise()
        tracker.frame(engine.state.iteration)
        if engine.state.iteration % params.target_net_sync == 0:
            tgt_net.sync()
        metrics = engine.state.metrics
        if engine.state.iteration % 50 == 0 and kind == "basic":
            states = np.asarray([np.asarray(each.state) for each in buffer.sample(200)])
            metrics["values"] = common.calc_values_of_states(states, net, device)
        if engine.state.iteration % 50 == 0 and kind == "dueling":
            adv, val = net.adv_val(torch.as_tensor(np.asarray([each.state for each in batch])).to(device))
            metrics["adv"], metrics["val"] = adv.mean().item(), val.mean().item()
        if engine.state.iteration % 50 == 0 and kind == "noisy":
            metrics["snr_1"], metrics["snr_2"] = net.noisy_layers_sigma_snr()
        return {"loss": loss.item()}

    engine = Engine(process_batch)
    common.setup_ignite(engine, params, exp_source, f"book={kind}", extra_metrics=extra["metrics"])

    @engine.on(ptan_ignite.EpisodeEvents.EPISODE_COMPLETED)
    def episode_completed(trainer):
        metrics = trainer.state.metrics
        assert metrics["avg_fps"] >= 0.0
        assert metrics["time_passed"] > 0.0
        seen.append((trainer.state.episode, trainer.state.episode_reward, trainer.state.episode_steps))

    @engine.on(ptan_ignite.PeriodEvents.ITERS_100_COMPLETED)
    def hundred(trainer):
        assert trainer.state.iteration % 100 == 0
        seen.append("hundred")

    @engine.on(ptan_ignite.EpisodeEvents.BOUND_REWARD_REACHED)
    def solved(trainer):
        print("bound", trainer.state.solved, f"{trainer.state.metrics['avg_reward']:.3f}")

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
    metrics = {"basic": ("values",), "dueling": ("adv", "val"), "noisy": ("snr_1", "snr_2")}.get(args.kind, ())
    extra = {"kind": args.kind, "alpha": 0.6, "metrics": metrics}
    common.train_or_tune(args, train, BEST, extra_params=extra, extra_space=extra)

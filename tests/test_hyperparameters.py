import dataclasses

import pytest

from lib.hyperparameters import FAST_HYPERPARAMS, HYPERPARAMS, PPO_HYPERPARAMS


def test_pong_has_the_books_hyperparameters():
    pong = HYPERPARAMS["pong"]
    book = {
        "env_name": "PongNoFrameskip-v4",
        "stop_reward": 18.0,
        "run_name": "pong",
        "replay_size": 100000,
        "replay_initial": 10000,
        "target_net_sync": 1000,
        "epsilon_frames": 10**5,
        "epsilon_start": 1.0,
        "epsilon_final": 0.02,
        "learning_rate": 0.0001,
        "gamma": 0.99,
        "batch_size": 32,
    }
    assert {name: getattr(pong, name) for name in book} == book


def test_every_game_is_stored_under_its_run_name():
    assert list(HYPERPARAMS) == ["pong", "breakout-small", "breakout", "invaders"]
    for table in (HYPERPARAMS, FAST_HYPERPARAMS, PPO_HYPERPARAMS):
        assert [params.run_name for params in table.values()] == list(table)


def test_hyperparameters_are_frozen_and_can_be_replaced():
    pong = HYPERPARAMS["pong"]
    with pytest.raises(dataclasses.FrozenInstanceError):
        pong.gamma = 0.5  # type: ignore[misc]
    assert dataclasses.replace(pong, gamma=0.5).gamma == 0.5


def test_exploration_by_noise_lowers_epsilon():
    pong = HYPERPARAMS["pong"]
    without = pong.without_epsilon()
    assert (without.epsilon_start, without.epsilon_final) == (0.0, 0.0)
    to_zero = pong.with_epsilon_to_zero()
    assert (to_zero.epsilon_start, to_zero.epsilon_final) == (1.0, 0.0)


@pytest.mark.parametrize(
    "change",
    [
        {"gamma": 1.5},
        {"epsilon_final": -0.1},
        {"batch_size": 0},
        {"learning_rate": 0.0},
        {"learning_rate": float("nan")},
        {"stop_reward": float("nan")},
        {"milestone": float("inf")},
        {"batch_size": 10_001},
        {"max_steps": 10_000},
        {"replay_initial": 100_001},
        {"replay_size": 10**13},
        {"run_name": "a:b"},
        {"run_name": "../x"},
        {"run_name": ""},
        {"checkpoint_every": 0},
    ],
)
def test_invalid_hyperparameters_of_dqn_are_refused_by_name(change):
    [(name, value)] = change.items()
    with pytest.raises(ValueError, match=name) as error:
        dataclasses.replace(HYPERPARAMS["pong"], **change)
    assert repr(value) in str(error.value)


@pytest.mark.parametrize(
    ("change", "allowed"),
    [
        ({"lam": 1.5}, ["0", "1"]),
        ({"clip": 0.0}, ["above 0", "at most 1"]),
        ({"clip": 1.5}, ["above 0", "at most 1"]),
        ({"kl_target": 0.0}, ["finite", "above 0", "none"]),
        ({"kl_final": 1.0}, ["at most kl_target, 0.02", "none"]),
        ({"final_temperature": 1e-50}, ["between 0.01 and 1"]),
        ({"entropy": -1.0}, ["finite", "at least 0"]),
        ({"entropy": float("inf")}, ["finite", "at least 0"]),
        ({"gradient_norm": float("inf")}, ["finite", "above 0"]),
        ({"epochs": 0}, ["at least 1"]),
        ({"rollout": 1000000007}, ["envs * rollout", "between 2 and 1e9", "16"]),
        ({"minibatch": 1}, ["a divisor of envs * rollout, 1024: one of 2, 4, 8"]),
        ({"minibatch": 48}, ["a divisor of envs * rollout, 1024: one of 2, 4, 8"]),
    ],
)
def test_invalid_hyperparameters_of_ppo_are_refused_with_what_is_allowed(change, allowed):
    [(name, value)] = change.items()
    with pytest.raises(ValueError, match=f"^{name} is ") as error:
        dataclasses.replace(PPO_HYPERPARAMS["pong"], **change)
    given, _, rest = str(error.value).partition(";")
    assert given == f"{name} is {value!r}"
    for fact in allowed:
        assert fact in rest


def test_without_a_target_any_final_divergence_is_allowed():
    params = dataclasses.replace(PPO_HYPERPARAMS["pong"], kl_target=None, kl_final=1.0)
    assert params.kl_final == 1.0

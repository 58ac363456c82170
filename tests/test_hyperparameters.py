import dataclasses
import json
import re
from types import SimpleNamespace

import numpy as np
import pytest

from lib.errors import UsageError
from lib.hyperparameters import (
    FAST_HYPERPARAMS,
    HYPERPARAMS,
    PPO_FAST_HYPERPARAMS,
    PPO_HYPERPARAMS,
    Hyperparameters,
    as_hyperparameters,
)
from lib.run import restoring
from lib.run.overrides import override

BOOK = {
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


def test_pong_has_the_books_hyperparameters():
    pong = HYPERPARAMS["pong"]
    assert {name: getattr(pong, name) for name in BOOK} == BOOK


def test_every_game_is_stored_under_its_run_name():
    assert list(HYPERPARAMS) == ["pong", "breakout-small", "breakout", "invaders"]
    for table in (HYPERPARAMS, FAST_HYPERPARAMS, PPO_HYPERPARAMS, PPO_FAST_HYPERPARAMS):
        assert [params.run_name for params in table.values()] == list(table)


def test_a_field_can_be_assigned_and_the_table_is_unchanged():
    params = dataclasses.replace(HYPERPARAMS["pong"])
    params.batch_size *= 3
    assert (params.batch_size, HYPERPARAMS["pong"].batch_size) == (96, 32)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("batch_size", 0, "batch_size is 0; it has to be at least 1"),
        ("gamma", 1.5, "gamma is 1.5; it has to be between 0 and 1"),
        ("replay_initial", 200_000, "replay_initial is 200000; it has to be at most replay_size, 100000"),
        ("replay_size", 5_000, "replay_size cannot be 5000: with it, replay_initial is 10000; it has"),
        ("replay_size", 1e5 + 0.5, "replay_size is 100000.5; it has to be a whole number"),
        ("batch_size", "32", "batch_size is '32'; it has to be a whole number"),
        ("huber", 1, "huber is 1; it has to be true or false"),
        ("replay_size", True, "replay_size is True; it has to be a whole number"),
        ("stop_reward", 2**63, "it has to be between -2**63 and 2**63"),
        ("stop_reward", "high", "stop_reward is 'high'; it has to be a number or none"),
    ],
)
def test_an_assignment_that_is_refused_leaves_the_object_as_it_was(name, value, message):
    params = dataclasses.replace(HYPERPARAMS["pong"])
    with pytest.raises(ValueError, match=re.escape(message)):
        setattr(params, name, value)
    assert params == HYPERPARAMS["pong"]


def test_numbers_of_numpy_become_plain_ones():
    params = dataclasses.replace(HYPERPARAMS["pong"], stop_reward=np.int64(15), gamma=np.float32(0.5))
    params.replay_size = np.int64(20_000)  # type: ignore[assignment]
    assert [type(value) for value in (params.stop_reward, params.gamma, params.replay_size)] == [int, float, int]


def test_a_floating_point_number_without_a_fraction_is_a_whole_number():
    params = dataclasses.replace(HYPERPARAMS["pong"], epsilon_frames=1e5)
    params.replay_size = 2e4  # type: ignore[assignment]
    assert [type(value) for value in (params.epsilon_frames, params.replay_size, params.gamma)] == [int, int, float]


def test_a_subclass_may_add_fields_of_any_type():
    @dataclasses.dataclass(kw_only=True)
    class Own(Hyperparameters):
        layers: tuple[int, ...] = (64, 64)
        options: dict[str, int] = dataclasses.field(default_factory=dict)

    own = Own(**dataclasses.asdict(HYPERPARAMS["pong"]), options={"n": 3})
    own.layers = (32,)
    assert dataclasses.replace(own, gamma=0.5).layers == (32,)
    recorded = json.loads(json.dumps(dataclasses.asdict(own)))
    assert Own(**recorded) == own
    restoring.Settings(recorded).load_state_dict(restoring.Settings(dataclasses.asdict(own)).state_dict())
    with pytest.raises(UsageError, match="--set cannot change layers; change it with --config or in the script"):
        override(own, ["layers=3"])


def test_a_dict_of_hyperparameters_is_told_what_to_be():
    with pytest.raises(ValueError, match=r"are a dict; give SimpleNamespace\(\*\*params\)"):
        as_hyperparameters(BOOK)


def test_an_unknown_field_cannot_be_assigned():
    params = dataclasses.replace(HYPERPARAMS["pong"])
    with pytest.raises(AttributeError, match="there is no field 'gama'; choose one of env_name, "):
        params.gama = 0.9
    assert params == HYPERPARAMS["pong"]


def test_a_namespace_becomes_hyperparameters():
    book = SimpleNamespace(**{name: getattr(HYPERPARAMS["pong"], name) for name in BOOK}, comment="ignored")
    params = as_hyperparameters(book)
    assert params == dataclasses.replace(HYPERPARAMS["pong"], max_steps=params.max_steps, milestone=None)
    assert as_hyperparameters(params) is params


def test_a_namespace_without_a_field_is_refused():
    book = SimpleNamespace(**{name: getattr(HYPERPARAMS["pong"], name) for name in BOOK})
    del book.stop_reward, book.gamma  # gamma has a default in Hyperparams, but not in the second edition's namespaces
    with pytest.raises(ValueError, match="the hyperparameters lack stop_reward, gamma; a SimpleNamespace needs"):
        as_hyperparameters(book)


@pytest.mark.parametrize(("learn_every", "envs", "steps"), [(1, 1, 1), (8, 1, 8), (1, 3, 3), (8, 3, 9), (8, 8, 8)])
def test_steps_per_update_are_whole_steps_of_all_environments(learn_every, envs, steps):
    assert dataclasses.replace(HYPERPARAMS["pong"], learn_every=learn_every).steps_per_update(envs) == steps


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
        {"learn_every": 0},
        {"learning_rate": 0.0},
        {"learning_rate_final": 0.01},
        {"learning_rate_steps": 0},
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
        ({"kl_target": 0.0}, ["none", "above 0", "at most 1e30"]),
        ({"stop_reward": 1e80}, ["none", "between -1e30 and 1e30"]),
        ({"kl_target_final": 0.0}, ["above 0", "at most 1e30"]),
        ({"learning_rate_max_final": 1.5}, ["above 0", "at most 1"]),
        ({"entropy_final": -1.0}, ["between 0 and 1e30"]),
        ({"anneal_steps": 0}, ["none", "at least 1"]),
        ({"entropy": -1.0}, ["between 0 and 1e30"]),
        ({"entropy": float("inf")}, ["between 0 and 1e30"]),
        ({"gradient_norm": 1e80}, ["above 0", "at most 1e30"]),
        ({"epochs": 0}, ["at least 1"]),
        ({"rollout": 1000000007}, ["envs * rollout", "between 2 and 1e9", "16"]),
        ({"minibatch": 1}, ["a divisor of envs * rollout, 1024: one of 2, 4, 8"]),
        pytest.param({"minibatch": 48}, ["a divisor of envs * rollout, 1024: one of 2, 4, 8"], id="minibatch"),
    ],
)
def test_invalid_hyperparameters_of_ppo_are_refused_with_what_is_allowed(change, allowed):
    [(name, value)] = change.items()
    with pytest.raises(ValueError, match=f"^{name} is ") as error:
        dataclasses.replace(PPO_FAST_HYPERPARAMS["pong"], **change)
    given, _, rest = str(error.value).partition(";")
    assert given == f"{name} is {value!r}"
    for fact in allowed:
        assert fact in rest


def test_the_textbook_rate_falls_linearly_to_0_at_the_last_step():
    params = dataclasses.replace(PPO_HYPERPARAMS["pong"], learning_rate=8e-4, max_steps=1000)
    rates = [params.learning_rate_at(steps) for steps in (0, 250, 1000, 2000)]
    assert rates == pytest.approx([8e-4, 6e-4, 0.0, 0.0])


def test_fast_ppo_is_annealed_to_its_final_values():
    first = dataclasses.replace(
        PPO_FAST_HYPERPARAMS["pong"],
        kl_target=0.04,
        kl_target_final=0.01,
        learning_rate_max=0.9,
        learning_rate_max_final=0.1,
        entropy=0.06,
        entropy_final=0.02,
        anneal_steps=1000,
    )
    values = {
        steps: (now.kl_target, now.learning_rate_max, now.entropy)
        for steps in (0, 500, 1000, 5000)
        for now in (first.annealed(steps),)
    }
    assert values[0] == (0.04, 0.9, 0.06)
    assert values[500] == pytest.approx((0.02, 0.3, 0.04))
    assert values[1000] == values[5000] == pytest.approx((0.01, 0.1, 0.02))
    assert first.annealed(500).rollout == first.rollout


def test_without_steps_of_its_own_the_annealing_ends_with_the_run():
    params = dataclasses.replace(PPO_FAST_HYPERPARAMS["own"], max_steps=2000)
    assert params.annealed(1000).entropy == pytest.approx(0.0055)
    assert dataclasses.replace(params, max_steps=1000).annealed(1000).entropy == pytest.approx(0.001)


def test_final_values_above_the_first_ones_have_no_effect():
    params = dataclasses.replace(PPO_FAST_HYPERPARAMS["pong"], kl_target=None, entropy=0.0, learning_rate_max=1e-6)
    now = params.annealed(250_000)
    assert (now.kl_target, now.entropy, now.learning_rate_max) == (None, 0.0, 1e-6)

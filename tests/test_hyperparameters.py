import dataclasses
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lib.hyperparameters import (
    FAST_HYPERPARAMS,
    HYPERPARAMS,
    PPO_FAST_HYPERPARAMS,
    PPO_HYPERPARAMS,
    as_hyperparameters,
    explain,
)

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
TABLES: list[dict[str, Any]] = [HYPERPARAMS, FAST_HYPERPARAMS, PPO_HYPERPARAMS, PPO_FAST_HYPERPARAMS]


def test_pong_has_the_books_hyperparameters_and_every_game_its_run_name():
    pong = HYPERPARAMS["pong"]
    assert {name: getattr(pong, name) for name in BOOK} == BOOK
    assert list(HYPERPARAMS) == ["pong", "breakout-small", "breakout", "invaders"]
    for table in TABLES:
        assert [params.run_name for params in table.values()] == list(table)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("replay_size", 1e5 + 0.5, "replay_size is 100000.5; it has to be a whole number"),
        pytest.param("gamma", 1.5, "gamma is 1.5; it has to be a finite number, at least 0 and at most 1", id="gamma"),
        ("huber", 1, "huber is 1; it has to be true or false"),
        ("gama", 0.9, "there is no field 'gama'; choose one of env_name, "),
    ],
)
def test_an_assignment_that_is_refused_leaves_the_object_as_it_was(name, value, message):
    params = dataclasses.replace(HYPERPARAMS["pong"])
    with pytest.raises((ValueError, AttributeError), match=re.escape(message)):
        setattr(params, name, value)
    assert params == HYPERPARAMS["pong"]


def test_numbers_become_plain_ones_of_the_fields_type():
    params = dataclasses.replace(HYPERPARAMS["pong"], stop_reward=np.int64(15), gamma=np.float32(0.5))
    params.replay_size = 2e4  # type: ignore[assignment]
    params.batch_size *= 3
    values = [params.stop_reward, params.gamma, params.replay_size, params.batch_size]
    assert list(map(repr, values)) == ["15.0", "0.5", "20000", "96"]
    assert HYPERPARAMS["pong"].batch_size == 32


@pytest.mark.parametrize(
    ("change", "allowed"),
    [
        pytest.param({"minibatch": 48}, "a divisor of envs * rollout, 1024: one of 2, 4, 8", id="minibatch"),
        pytest.param({"clip": 1.5}, "a finite number, above 0 and at most 1", id="inherited"),
    ],
)
def test_values_that_do_not_fit_together_are_refused_by_name(change, allowed):
    [(name, value)] = change.items()
    with pytest.raises(ValueError, match=re.escape(f"{name} is {value!r}; it has to be {allowed}")):
        dataclasses.replace(PPO_FAST_HYPERPARAMS["pong"], **change)


def test_assigned_values_that_do_not_fit_together_are_refused_by_the_run():
    params = dataclasses.replace(HYPERPARAMS["pong"], max_steps=20_000)
    params.max_steps = 10_000
    with pytest.raises(ValueError, match=r"max_steps is 10000; it has to be above replay_initial, 10000"):
        as_hyperparameters(params)


def test_a_namespace_becomes_hyperparameters_if_it_has_the_books_fields():
    book = SimpleNamespace(**BOOK, comment="ignored")
    params = as_hyperparameters(book)
    assert params == dataclasses.replace(HYPERPARAMS["pong"], max_steps=params.max_steps, milestone=None)
    del book.stop_reward
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'stop_reward'"):
        as_hyperparameters(book)


def test_every_hyperparameter_is_explained():
    for table in TABLES:
        lines = [line for line in explain(table["pong"]).splitlines() if not line.startswith(" ")]
        assert [line.partition("=")[0] for line in lines] == [field.name for field in dataclasses.fields(table["pong"])]
        assert all(re.search(r"=\S+ +[a-zA-Z0-9]\S", line) for line in lines)


def test_the_textbook_rate_falls_linearly_to_0_at_the_last_step():
    params = dataclasses.replace(PPO_HYPERPARAMS["pong"], learning_rate=8e-4, max_steps=1000)
    rates = [params.learning_rate_at(steps) for steps in (0, 250, 1000, 2000)]
    assert rates == pytest.approx([8e-4, 6e-4, 0.0, 0.0])


def test_fast_ppo_is_annealed_to_its_final_values():
    finals = {"kl_target_final": 0.01, "learning_rate_max_final": 0.1, "entropy_final": 0.02, "anneal_steps": 1000}
    first = dataclasses.replace(
        PPO_FAST_HYPERPARAMS["pong"], kl_target=0.04, learning_rate_max=0.9, entropy=0.06, **finals
    )

    def values(steps):
        now = first.annealed(steps)
        return now.kl_target, now.learning_rate_max, now.entropy

    assert values(0) == (0.04, 0.9, 0.06)
    assert values(500) == pytest.approx((0.02, 0.3, 0.04))
    assert values(1000) == values(5000) == pytest.approx((0.01, 0.1, 0.02))
    own = dataclasses.replace(PPO_FAST_HYPERPARAMS["own"], max_steps=2000)
    assert own.annealed(1000).entropy == pytest.approx(0.0055)  # without steps of its own, it ends with the run

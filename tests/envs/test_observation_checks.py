import re

import numpy as np
import pytest
from gymnasium import spaces

from lib.envs.observation_checks import copy_of, problems


def test_observations_are_converted_to_the_type_of_their_space():
    space = spaces.Dict({"a": spaces.Box(-1.0, 1.0, (2,)), "b": spaces.Tuple([spaces.MultiBinary(2)])})
    converted = copy_of({"a": [0, 1], "b": [[0, 1]]}, space)
    assert space.contains(converted)
    assert converted["a"].tolist() == [0.0, 1.0]


DICT = spaces.Dict({"a": spaces.Box(-1.0, 1.0, (2,)), "b": spaces.Discrete(5, start=2)})
PARTS = {"a": np.zeros(2, np.float32), "b": 2}


@pytest.mark.parametrize(
    ("space", "observation", "problem"),
    [
        (spaces.Discrete(5), -1, " is -1; its space is Discrete(5)"),
        (spaces.Discrete(5), 5, " is 5; "),
        (spaces.Discrete(5), 2.5, " is 2.5; "),
        (spaces.Discrete(5), float("nan"), " is nan; "),
        (spaces.Discrete(5), "x", " is 'x'; "),
        (spaces.MultiBinary(2), np.array([0, 2]), " is array([0, 2]); its space is MultiBinary(2)"),
        (spaces.MultiDiscrete([2, 3]), np.array([1, 3]), " is array([1, 3]); "),
        (spaces.MultiDiscrete([2, 3]), np.array([1.0, 2.0]), " is float64; its space says int64"),
        (DICT, {**PARTS, "a": None}, "['a'] is None; its space is Box("),
        (DICT, {"a": PARTS["a"]}, " lacks 'b'"),
        (DICT, {**PARTS, "b": 7}, "['b'] is 7; "),
        (DICT, {**PARTS, "a": np.array([0.0, np.nan])}, "['a'] has nan at [1]"),
        (DICT, [1, 2], " is [1, 2]; it has to be a dictionary of 'a', 'b'"),
        (spaces.Tuple([DICT, spaces.Discrete(3)]), (PARTS, 3), "[1] is 3; "),
        (spaces.Box(-(2**63), 2**63 - 1, (2,), np.int64), np.array([0, -(2**63)]), " has -9.22337e+18 at [1]; "),
        (spaces.Box(0, 2**64 - 1, (2,), np.uint64), np.array([2**62, 0], np.uint64), " has 4.61169e+18 at [0]; "),
        (spaces.Tuple([DICT, spaces.Discrete(3)]), (PARTS,), "it has to be a tuple of 2 elements"),
    ],
)
def test_observations_of_every_space_are_checked(space, observation, problem):
    [found] = problems(observation, space, every_number=False)
    assert problem in found


def test_integers_that_an_unsigned_space_can_hold_are_converted():
    space = spaces.Box(0, 255, (3,), np.uint8)
    assert list(problems([0, 7, 255], space, every_number=True)) == []
    for wrong in ([0, 7, 256], [0, -1, 7]):
        [found] = problems(wrong, space, every_number=True)
        assert "all numbers have to be finite, from 0 to 255" in found
    image = spaces.Box(0, 255, (84, 84), np.uint8)
    assert list(problems(np.full((84, 84), 256), image, every_number=False))  # 256 would become 0


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(5, start=-2),
        spaces.MultiBinary([2, 3]),
        spaces.MultiDiscrete([2, 3]),
        DICT,
        spaces.Tuple([DICT, spaces.Text(4)]),
    ],
)
def test_samples_of_a_space_are_accepted(space):
    space.seed(1)
    assert [list(problems(space.sample(), space, every_number=True)) for _ in range(50)] == [[]] * 50


@pytest.mark.parametrize(
    ("dtype", "number", "problem"),
    [
        (np.int8, np.int64(200), r"has 200 at \[1\]; all numbers have to be finite, from -128 to 127"),
        (np.int32, np.int64(-(2**40)), r"has -1.09951e\+12 at \[1\]"),
        (np.float16, np.float64(1e5), r"has 100000 at \[1\]; all numbers have to be finite, from -65504 to 65504"),
    ],
)
def test_a_number_that_its_spaces_type_cannot_hold_is_reported(dtype, number, problem):
    bound = np.iinfo(dtype).max if np.dtype(dtype).kind == "i" else np.inf
    [found] = problems(np.array([0, number, 0]), spaces.Box(-bound, bound, (3,), dtype), every_number=True)
    assert re.search(problem, found)


def test_a_number_of_a_multidiscrete_observation_does_not_wrap_around():
    [found] = problems(np.array([0, 257, 1]), spaces.MultiDiscrete([3, 3, 3], dtype=np.int8), every_number=True)
    assert found.startswith(" is array([  0, 257,   1]); its space is MultiDiscrete")

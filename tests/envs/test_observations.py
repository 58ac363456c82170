"""Observations of any environment become images, boards or vectors."""

from typing import Any

import cv2
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import GrayscaleObservation, ResizeObservation, TransformObservation

import fakes
from lib.envs import observations
from lib.envs.checked_env import CheckedEnv
from lib.envs.masks import stacks_frames
from lib.envs.observations import observation_kind
from lib.envs.single_env import make_env
from lib.envs.states import States
from lib.errors import UsageError

VECTOR, BOARD, IMAGE = "vector", "board", "image"
INT64 = np.iinfo(np.int64)


def box(*shape, low=0.0, high=1.0, dtype=np.float32):
    return spaces.Box(low, high, shape, dtype)


def states_of(space):
    return States(CheckedEnv(fakes.Shape(space), "Shape"))


def same(observation):
    return observation


def moved(observation):
    return np.moveaxis(observation, 2, 0)


def parts(observation):
    row, column = observation["place"]
    return np.concatenate([np.eye(3)[row], np.eye(4)[column], observation["speed"]])


def resized(*channels):
    return np.squeeze(
        [cv2.resize(each.round().astype(np.uint8), (84, 84), interpolation=cv2.INTER_AREA) for each in channels]
    )


def grey(image):
    """Convert colours from 0 to 255 as gymnasium's wrappers do."""
    space = box(*image.shape, high=255, dtype=np.uint8)
    env = TransformObservation(fakes.Shape(space), lambda _: image.astype(np.uint8), space)
    return ResizeObservation(GrayscaleObservation(env), (84, 84)).reset()[0]


BYTES: dict[str, Any] = {"high": 255, "dtype": np.uint8}
CASES = {  # space, kind and shape of the states, and what a state is computed from (None: not compared)
    "vector": (fakes.SHAPES["Vector"], VECTOR, (6,), same),
    "codes": (fakes.SHAPES["Codes"], VECTOR, (6,), lambda codes: codes / 12),
    "parts": (fakes.SHAPES["Parts"], VECTOR, (9,), parts),
    "number": (box(), VECTOR, (1,), same),
    "integers without bounds": (box(2, low=INT64.min, high=INT64.max, dtype=np.int64), VECTOR, (2,), same),
    "grid of shades": (box(50, 40), VECTOR, (2000,), np.ravel),
    "times on a grid": (box(6, 2, low=-1e300, high=1e300, dtype=np.float64), VECTOR, (12,), np.ravel),
    "large flags": (spaces.MultiBinary([2, 40, 40]), VECTOR, (3200,), np.ravel),
    "board": (fakes.SHAPES["Board"], BOARD, (1, 9, 8), lambda board: board / 2),
    "digits": (fakes.SHAPES["Digits"], BOARD, (1, 9, 8), lambda digits: digits / 3),
    "planes": (fakes.SHAPES["Planes"], BOARD, (3, 7, 7), lambda planes: moved(planes) / 255),
    "square, channels first": (box(12, 8, 8), BOARD, (12, 8, 8), same),
    "as many rows as channels": (box(3, 10, 3), BOARD, (3, 3, 10), moved),
    "channels first": (box(2, 9, 5), BOARD, (2, 9, 5), same),
    "many channels": (box(5, 4, 26), BOARD, (26, 5, 4), moved),
    "column": (box(6, 1, 1), VECTOR, (6,), np.ravel),
    "grey": (box(40, 50, **BYTES, low=1), IMAGE, (4, 84, 84), resized),
    "grey of real numbers": (box(40, 50, low=-255.0, high=255.0), IMAGE, (4, 84, 84), lambda x: resized((x + 255) / 2)),
    "colours": (box(40, 50, 3, **BYTES), IMAGE, (4, 84, 84), grey),
    "colours first": (box(3, 40, 50, **BYTES, low=1), IMAGE, (4, 84, 84), lambda image: grey(np.moveaxis(image, 0, 2))),
    "colours of real numbers": (box(40, 50, 3), IMAGE, (4, 84, 84), lambda image: grey((255 * image).round())),
    "frame of real numbers": (box(84, 84), IMAGE, (4, 84, 84), lambda frame: (255 * frame).round()),
    "four channels of real numbers": (box(60, 50, 4), IMAGE, (4, 84, 84), lambda image: resized(*255 * moved(image))),
    "two channels": (box(2, 64, 64, **BYTES), IMAGE, (2, 84, 84), lambda image: resized(*image)),
}


@pytest.mark.parametrize("name", CASES)
def test_observations_become_images_boards_or_vectors_of_real_numbers(name):
    space, kind, shape, expected = CASES[name]
    env = states_of(space)
    state, plain = np.asarray(env.reset(seed=3)[0]), fakes.Shape(space).reset(seed=3)[0]
    assert observation_kind(shape) == kind
    assert env.observation_space.shape == state.shape == shape
    is_precise = name in ("vector", "integers without bounds", "times on a grid")
    assert state.dtype == (np.uint8 if kind == IMAGE else np.float64 if is_precise else np.float32)
    assert env.observation_space.contains(state)
    assert stacks_frames(env.observation_space) == name.startswith(("grey", "colours", "frame"))
    if expected is not None:
        assert np.allclose(state.squeeze(), np.squeeze(expected(plain)), rtol=1e-6, atol=1e-6)


def test_the_kind_of_a_state_depends_on_its_shape():
    assert observation_kind((1, 36, 36)) == IMAGE
    assert observation_kind((2, 35, 40)) == BOARD
    with pytest.raises(ValueError, match=r"it has to be \(channels, height, width\) or \(numbers,\)"):
        observation_kind((84, 84))


def test_numbers_outside_of_an_images_bounds_do_not_wrap_around(monkeypatch):
    env = states_of(box(90, 80, high=255.0))
    monkeypatch.setattr(env.unwrapped.observation_space, "sample", lambda: np.full((90, 80), 400.0, np.float32))
    assert np.min(env.reset(seed=7)[0]) == 255


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (box(2, 3, 4, 5), "of 4 dimensions"),
        (spaces.Tuple([spaces.Text(5)]), r"Tuple\(.*no network here can use"),
        (spaces.Sequence(spaces.Discrete(3)), r"Sequence\(.*no network here can use.* a Box, Discrete"),
    ],
)
def test_observations_that_no_network_takes_are_refused(space, message):
    with pytest.raises(UsageError, match=message):
        states_of(space)


class Mission(spaces.Space):
    """A space that gymnasium does not know, as in MiniGrid."""

    def sample(self, *_, **__):
        return "go to the door"


@pytest.mark.parametrize("mission", [Mission(), spaces.Text(20)])
def test_unusable_entries_of_a_dict_are_left_out_and_a_single_usable_entry_is_not_flattened(caplog, mission):
    board, speed = spaces.Box(0, 10, (7, 7, 3), np.uint8), spaces.Box(-1.0, 1.0, (2,), np.float64)
    observations.log_once.cache_clear()
    assert states_of(spaces.Dict({"image": board, "mission": mission})).reset(seed=1)[0].shape == (3, 7, 7)
    assert "left out, because no network here can use them: ['mission']." in caplog.text
    space = spaces.Dict({"cards": spaces.Box(0, 10, (3,), np.uint8), "direction": spaces.Discrete(4), "speed": speed})
    env, plain = states_of(space), fakes.Shape(space).reset(seed=1)[0]
    expected = [plain["cards"] / 10, np.eye(4)[plain["direction"]], plain["speed"]]
    assert np.allclose(env.reset(seed=1)[0], np.concatenate(expected))
    assert env.conversions == [
        "from ['cards'], ['direction'], ['speed']",
        "flattened; Discrete and MultiDiscrete numbers are one-hot",
        f"float64, divided by {[10.0] * 3 + [1.0] * 6}",
    ]
    by_number = spaces.Dict({0: mission, 1: speed, 2: spaces.Discrete(4)})  # type: ignore[dict-item]
    assert states_of(by_number).reset(seed=1)[0].shape == (6,)


def test_the_axis_of_the_channels_can_be_given(register):
    planes = box(17, 7, 11)  # as in Hungry Geese
    register("Planes-v0", fakes.Shape, kwargs={"space": planes})
    register("Planes-composite-v0", fakes.Shape, kwargs={"space": spaces.Dict(board=planes, rank=spaces.Discrete(3))})
    plain = fakes.Shape(planes).reset(seed=1)[0]
    for axis in (0, 1, 2):
        state, _ = make_env(f"Planes-v0(channel_axis={axis})").reset(seed=1)
        assert np.array_equal(state, np.moveaxis(plain, axis, 0))
    composite = make_env("Planes-composite-v0(channel_axis=0)")
    assert "(17, 7, 11)" in " ".join(composite.get_wrapper_attr("conversions"))
    with pytest.raises(UsageError, match="channel_axis='first'; it has to be 0, 1 or 2"):
        make_env("Planes-v0(channel_axis='first')")

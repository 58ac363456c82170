"""Observations of any environment become images, boards or vectors."""

import logging

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import fakes
from lib.envs import observations, single_env
from lib.envs.masks import MaskedBox
from lib.envs.observations import ObservationKind, observation_kind
from lib.envs.single_env import make_env
from lib.errors import UsageError

CONVERTED = {  # shape of the converted observation, and the number by which it is divided
    "Vector": ((6,), 1.0),
    "Codes": ((6,), 12.0),
    "Number": ((7,), 1.0),
    "Parts": ((9,), 1.0),
    "Board": ((1, 9, 8), 2.0),
    "Binary": ((1, 9, 8), 1.0),
    "Digits": ((1, 9, 8), 3.0),
    "Planes": ((3, 7, 7), 255.0),
}


@pytest.mark.parametrize(
    ("shape", "kind"),
    [
        ((5,), ObservationKind.VECTOR),
        ((1, 36, 36), ObservationKind.IMAGE),
        ((4, 84, 84), ObservationKind.IMAGE),
        ((40, 35, 90), ObservationKind.BOARD),
        ((1, 90, 35), ObservationKind.BOARD),
    ],
)
def test_the_kind_of_an_observation_depends_on_its_shape(shape, kind):
    assert observation_kind(shape) is kind
    assert observation_kind(spaces.Box(0.0, 1.0, shape)) is kind


def test_the_kind_of_an_observation_does_not_depend_on_its_mask():
    board = spaces.Box(0.0, 1.0, (1, 35, 40), np.float32)
    assert MaskedBox(board, 10).shape == (2, 35, 40)
    assert observation_kind(MaskedBox(board, 10)) is ObservationKind.BOARD


@pytest.mark.parametrize("shape", [(), (84, 84), (1, 2, 3, 4)])
def test_other_shapes_are_refused(shape):
    with pytest.raises(ValueError, match=r"it has to be \(channels, height, width\) or \(numbers,\)"):
        observation_kind(shape)


def first_observations(env_id):
    """Return the converted space, and the first observation with and without conversion."""
    env, plain = make_env(env_id), gym.make(env_id)
    return env.observation_space, np.asarray(env.reset(seed=3)[0]), plain.reset(seed=3)[0]


@pytest.mark.parametrize("name", CONVERTED)
def test_observations_become_vectors_or_boards_of_real_numbers(name):
    shape, divisor = CONVERTED[name]
    space, converted, plain = first_observations(f"fakes:{name}-v0")
    assert space.shape == converted.shape == shape
    assert space.dtype == converted.dtype == (np.float64 if name == "Vector" else np.float32)
    assert space.contains(converted)
    if name == "Number":
        expected = np.eye(7)[plain]
    elif name == "Parts":
        expected = np.concatenate([np.eye(3)[plain["place"][0]], np.eye(4)[plain["place"][1]], plain["speed"]])
    else:
        expected = np.moveaxis(plain, 2, 0) if name == "Planes" else plain
    assert np.allclose(converted.squeeze(), expected / divisor)


def test_channels_are_the_shorter_one_of_the_first_and_the_last_axis():
    for shape, expected in (((3, 9, 8), (3, 9, 8)), ((9, 8, 3), (3, 9, 8)), ((5, 6), (1, 5, 6)), ((), (1,))):
        env = fakes.Shape(spaces.Box(0.0, 1.0, shape, np.float32))
        prepared, kind = observations.prepare(env, "Shape")
        state, _ = prepared.reset(seed=1)
        assert state.shape == prepared.observation_space.shape == expected
        assert kind is (ObservationKind.VECTOR if len(expected) == 1 else ObservationKind.BOARD)


@pytest.mark.parametrize(
    ("space", "grey"),
    [
        (spaces.Box(0, 255, (40, 50, 3), np.uint8), None),
        (spaces.Box(0, 255, (3, 40, 50), np.uint8), None),
        (spaces.Box(0, 255, (40, 50), np.uint8), lambda image: image),
        (spaces.Box(1, 255, (40, 50), np.uint8), lambda image: image),
        (spaces.Box(1, 255, (40, 50, 3), np.uint8), None),
        (spaces.Box(-255.0, 255.0, (40, 50, 1), np.float32), lambda image: np.round((image[:, :, 0] + 255) / 2)),
        (spaces.Box(0.0, 1.0, (40, 50, 3), np.float32), None),
    ],
)
def test_colours_and_shades_become_grey_uint8_images(space, grey, caplog):
    caplog.set_level(logging.INFO)
    observations._log_once.cache_clear()
    prepared, kind = observations.prepare(fakes.Shape(space), "Shape")
    image, plain = prepared.reset(seed=1)[0], fakes.Shape(space).reset(seed=1)[0]
    assert kind is ObservationKind.IMAGE
    assert image.shape == prepared.observation_space.shape == (40, 50)
    assert image.dtype == prepared.observation_space.dtype == np.uint8
    assert grey is None or np.array_equal(image, grey(plain))
    assert "are used as grey images" in caplog.text


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(0.0, 1.0, (50, 40), np.float32),
        spaces.Box(0, 3, (50, 40, 1), np.int64),
        spaces.Box(-np.inf, np.inf, (50, 40, 3), np.float32),
    ],
)
def test_a_large_grid_of_other_numbers_keeps_them_as_a_vector(space, caplog):
    observations._log_once.cache_clear()
    prepared, kind = observations.prepare(fakes.Shape(space), "Shape")
    vector, plain = prepared.reset(seed=1)[0], fakes.Shape(space).reset(seed=1)[0]
    assert kind is ObservationKind.VECTOR
    assert np.allclose(vector, plain.ravel() / (3 if space.dtype == np.int64 else 1))
    assert "are flattened into vectors. They are used as images if" in caplog.text


class Colours(fakes.Catch):
    """Catch as an image with channels."""

    def __init__(self, channels):
        super().__init__(zoom=8)
        self.channels = channels
        shape = (8 * self.size, 8 * self.size, channels)
        self.observation_space = spaces.Box(0, 255, shape, np.uint8)

    def _observation(self):
        return np.repeat(super()._observation()[:, :, None], self.channels, axis=2)


@pytest.mark.parametrize("channels", [1, 3])
def test_images_with_a_channel_axis_become_stacks_of_grey_frames(channels, monkeypatch):
    monkeypatch.setattr(single_env, "make_plain_env", lambda env_id, render_mode=None: Colours(channels))
    env = make_env("Colours")
    assert np.asarray(env.reset(seed=0)[0]).shape == env.observation_space.shape == (4, 84, 84)


@pytest.mark.parametrize(
    ("shape", "board"),
    [
        ((12, 8, 8), (12, 8, 8)),
        ((8, 8, 12), (12, 8, 8)),
        ((3, 10, 3), (3, 3, 10)),
        ((9, 5, 2), (2, 9, 5)),
        ((2, 9, 5), (2, 9, 5)),
        ((6, 1, 1), (1, 6, 1)),
        ((1, 1, 6), (1, 1, 6)),
    ],
)
def test_the_channels_of_a_board_come_first(shape, board):
    space = spaces.Box(0.0, 1.0, shape, np.float32)
    env = observations.prepare(fakes.Shape(space), "Shape")[0]
    observation, plain = env.reset(seed=1)[0], fakes.Shape(space).reset(seed=1)[0]
    assert env.observation_space.shape == observation.shape == board
    assert np.array_equal(observation, plain if board == shape else np.moveaxis(plain, 2, 0))


def test_bounds_that_float32_cannot_hold_are_infinite(recwarn):
    space = spaces.Box(-1e300, 1e300, (3, 4, 4), np.float64)
    env = observations.prepare(fakes.Shape(space), "Shape")[0]
    assert isinstance(env.observation_space, spaces.Box)
    assert np.isinf(env.observation_space.high).all()
    assert not recwarn.list


def test_numbers_outside_of_an_image_s_bounds_do_not_wrap_around(monkeypatch):
    space = spaces.Box(0.0, 255.0, (90, 80), np.float32)
    env = observations.prepare(fakes.Shape(space), "Odd-v0")[0]
    monkeypatch.setattr(env.unwrapped.observation_space, "sample", lambda: np.full((90, 80), 400.0, np.float32))
    assert env.reset(seed=7)[0].min() == 255


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Box(0.0, 1.0, (2, 3, 4, 5)), "of 4 dimensions"),
        (spaces.Tuple([spaces.Box(0, 1, (2,)), spaces.Text(5)]), r"Tuple\(.*no network here can use"),
        (spaces.Box(0, 255, (50, 50, 4), np.uint8), "images of 4 channels"),
        (spaces.OneOf([spaces.Discrete(2), spaces.Box(0, 1, (2,))]), r"OneOf\(.*no network here can use"),
        (spaces.Text(5), r"Text\(.*no network here can use.* a Box, Discrete"),
        (spaces.Sequence(spaces.Discrete(3)), r"Sequence\(.*no network here can use.* a Box, Discrete"),
    ],
)
def test_observations_that_no_network_takes_are_refused(space, message):
    with pytest.raises(UsageError, match=message):
        observations.prepare(fakes.Shape(space), "Shape")


@pytest.mark.parametrize(
    ("space", "shape"),
    [
        (spaces.MultiBinary([15, 15]), (1, 15, 15)),
        (spaces.MultiDiscrete(np.full((2, 40, 3), 4)), (2, 40, 3)),
        (spaces.MultiBinary([2, 40, 40]), (3200,)),  # neither a board nor an image
        (spaces.MultiBinary([2, 2, 3, 3]), (36,)),
        (spaces.MultiDiscrete(np.full((2, 2, 2, 2), 3)), (48,)),
    ],
)
def test_binary_and_discrete_spaces_are_flattened_unless_they_are_boards(space, shape):
    prepared, _ = observations.prepare(fakes.Shape(space), "Shape")
    assert prepared.observation_space.shape == prepared.reset(seed=1)[0].shape == shape


def test_integers_behind_a_users_own_flattening_wrapper_are_divided_too():
    parts = spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Box(0, 12, (3,), np.int64)})
    flat = gym.wrappers.FlattenObservation(fakes.Shape(parts))
    own = gym.wrappers.ReshapeObservation(flat, (2, 3))
    prepared, _ = observations.prepare(own, "Shape")
    assert prepared.observation_space.shape == (1, 2, 3)
    converted, plain = prepared.reset(seed=1)[0], own.reset(seed=1)[0]
    assert np.allclose(converted[0], plain / [[1, 1, 1], [12, 12, 12]])


def test_conversion_of_integers_is_logged_once(caplog):
    observations._log_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            make_env("fakes:Codes-v0")
        make_env("fakes:Vector-v0")
    [message] = caplog.messages
    assert message.startswith("fakes:Codes-v0: ")
    assert "real numbers, each divided by its largest value" in message
    assert "12" in message


def test_integers_with_the_bounds_of_their_type_are_not_divided(caplog):
    observations._log_once.cache_clear()
    space = spaces.Box(np.iinfo(np.int64).min, np.iinfo(np.int64).max, (2,), np.int64)
    prepared, _ = observations.prepare(fakes.Shape(space), "Shape")
    assert np.array_equal(prepared.reset(seed=1)[0], fakes.Shape(space).reset(seed=1)[0].astype(np.float64))
    assert "converted to real numbers." in caplog.text


class Mission(spaces.Space):
    """A space that gymnasium does not know, as in MiniGrid."""

    def sample(self, *_, **__):
        return "go to the door"


@pytest.mark.parametrize("mission", [Mission(), spaces.Text(20)])
def test_unusable_entries_of_a_dict_are_left_out_and_a_single_usable_entry_is_not_flattened(caplog, mission):
    board = spaces.Box(0, 10, (7, 7, 3), np.uint8)
    observations._log_once.cache_clear()
    prepared, kind = observations.prepare(fakes.Shape(spaces.Dict({"image": board, "mission": mission})), "Grid")
    assert kind is ObservationKind.BOARD
    assert prepared.reset(seed=1)[0].shape == (3, 7, 7)
    assert "left out" in caplog.text
    assert ": 'mission'." in caplog.text
    speed = spaces.Box(-1.0, 1.0, (2,), np.float64)
    more = spaces.Dict({"image": board, "direction": spaces.Discrete(4), "mission": mission, "speed": speed})
    prepared, kind = observations.prepare(fakes.Shape(more), "Grid")
    assert kind is ObservationKind.VECTOR
    converted, plain = prepared.reset(seed=1)[0], fakes.Shape(more).reset(seed=1)[0]
    parts = {"direction": np.eye(4)[plain["direction"]], "image": plain["image"].ravel() / 10, "speed": plain["speed"]}
    assert np.allclose(converted, np.concatenate([parts[name] for name in more.spaces if name in parts]))
    assert observations.conversions(prepared) == [
        "flattened in the order 'direction', 'image', 'speed'; Discrete and MultiDiscrete numbers are one-hot",
        f"float64, divided by {[1.0] * 4 + [10.0] * 147 + [1.0] * 2}",
    ]
    by_number = spaces.Dict({0: mission, 1: speed, 2: spaces.Discrete(4)})  # type: ignore[dict-item]
    prepared, _ = observations.prepare(fakes.Shape(by_number), "Numbers")
    assert prepared.reset(seed=1)[0].shape == (6,)

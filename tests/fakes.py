"""Toy environments with known optimal values, environments that fail on demand, and fake actors.

The environments are registered with gymnasium, so that scripts under test can use `--env-id fakes:Catch-v0`.
"""

import dataclasses
import heapq
import itertools
import math
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from lib.actors.engines import InlineEngine, Lost, Played, Weights
from lib.actors.fleet import Fleet
from lib.envs import vector_env

ZOOM = 12  # turns Catch's 7 x 7 grid into an image of 84 x 84 pixels


class Toy(gym.Env):
    """An environment whose subclasses define `begin`, `observe` and `play`, from an action to its reward and the ends.

    `space` is the observation space, or n for vectors of n numbers from 0 to 1. `t` counts the steps of the episode.
    """

    play: Any
    observe: Any

    def __init__(self, space, actions=2):
        self.observation_space = spaces.Box(0.0, 1.0, (space,), np.float32) if isinstance(space, int) else space
        self.action_space: Any = spaces.Discrete(actions)

    def reset(self, *, seed=None, options=None):
        assert options is None  # also if it is reset alone, among environments that step together
        super().reset(seed=seed)
        self.t = 0
        self.begin()
        return self.observe(), self.info()

    def step(self, action):
        self.t += 1
        reward, terminated, truncated = self.play(action)
        return self.observe(), float(reward), bool(terminated), bool(truncated), self.info()

    def begin(self):
        pass

    def info(self):
        return {}


class Counting(Toy):
    """The step number is both the reward and, plus `first`, the observation. A step takes `seconds`."""

    made = 0  # instances in this process

    def __init__(self, length=4, truncates=False, first=0, seconds=0.0):
        super().__init__(spaces.Box(0, 255, (1,), np.uint8))
        Counting.made += 1
        self.length, self.truncates, self.first, self.seconds = length, truncates, first, seconds
        self.seeds = []

    def reset(self, *, seed=None, options=None):
        self.seeds.append(seed)
        return super().reset(seed=seed)

    def step(self, action):
        time.sleep(self.seconds)
        return super().step(action)

    def play(self, action):
        end = self.t == self.length
        return self.t, end and not self.truncates, end and self.truncates

    def observe(self):
        return np.array([self.first + self.t], np.uint8)


class Alone(Counting):
    """Counting of which one can be open in a process, as of a simulator with a fixed port."""

    is_open = False

    def __init__(self):
        super().__init__()
        if Alone.is_open:
            raise RuntimeError("port 5005 is in use")
        Alone.is_open = True

    def close(self):
        Alone.is_open = False


class Unbuildable(Counting):
    """Environment that no other process can unpickle, because it needs a module that does not exist."""

    def __reduce__(self):
        return eval, ("__import__('no_such_module')",)


class Random(Counting):
    """Random observations: two instances agree only after the same seed and the same actions."""

    def begin(self):
        self.shown = 0

    def play(self, action):
        self.shown = self.np_random.integers(0, 255) + action
        return super().play(action)

    def observe(self):
        return np.array([self.shown]).astype(np.uint8)


class Levels(Random):
    """Random with a level that rises in every episode, and decides about lengths and rewards."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.first += int(self.np_random.integers(1, 4))
        self.length = 3 + self.first % 3
        return np.array([self.first % 250], np.uint8), {}

    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, reward + self.first, *rest

    def get_state(self):
        return {"first": np.array([self.first])}

    def set_state(self, state):
        [self.first] = state["first"].tolist()


class Curriculum(Levels):
    state_dict, load_state_dict = Levels.get_state, Levels.set_state


class Chain(Toy):
    """Chain of states: `length` right actions in a row earn 1, and a wrong action ends the episode with 0.

    In state s (a one-hot vector) action s % 2 is right. Its optimal value is gamma ** (length - 1 - s). The optimal
    value of the other action is 0.
    """

    def __init__(self, length=3):
        super().__init__(length)
        self.length = length

    def begin(self):
        self.s = 0

    def play(self, action):
        right = action == self.s % 2
        won = right and self.s == self.length - 1
        self.s += right and not won
        return won, won or not right, False

    def observe(self):
        return np.eye(self.length, dtype=np.float32)[self.s]


class Catch(Toy):
    """A ball falls through a grid, and a paddle at the bottom earns 1 if it catches the ball and -1 otherwise.

    The grid has `size` rows and columns, and a cell `zoom` x `zoom` pixels.
    """

    def __init__(self, size=7, zoom=1):
        super().__init__(spaces.Box(0, 255, (size * zoom, size * zoom), np.uint8), actions=3)
        self.size, self.zoom = size, zoom

    def begin(self):
        self.column = int(self.np_random.integers(self.size))
        self.paddle = self.size // 2

    def play(self, action):
        self.paddle = min(max(self.paddle + int(action) - 1, 0), self.size - 1)
        landed = self.t == self.size - 1
        return ((1.0 if self.column == self.paddle else -1.0) if landed else 0.0), landed, False

    def observe(self):
        screen = np.zeros((self.size, self.size), np.uint8)
        screen[self.t, self.column] = 255
        screen[-1, self.paddle] = 255
        return screen.repeat(self.zoom, axis=0).repeat(self.zoom, axis=1)


class Shown(Catch):
    """Catch that can be rendered, in colours that do not occur in its observations."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(self, render_mode=None):
        super().__init__(zoom=ZOOM)
        self.render_mode = render_mode

    def render(self):
        grey = self.observe()[::ZOOM, ::ZOOM].repeat(20, axis=0).repeat(20, axis=1)
        return np.stack([grey, grey // 2, np.full_like(grey, 40)], axis=-1)


class Coded(Toy):
    """Images that encode the state of the game in four pixels, in observations and rendered frames alike.

    The four numbers are two random numbers of the episode, the step, and a hash of all random draws and actions so
    far. Episodes have 2 to 9 steps, and rewards are fractions. The constructor draws from a global generator.

    Args:
        plain: observe only the four numbers.
        dies: file that is created in the fourth step of an episode, before the process dies. If it exists, the process
            does not die.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012

    def __init__(self, render_mode=None, plain=False, dies=None):
        np.random.random()  # which must not change a run if it makes further environments
        super().__init__(spaces.Box(0, 255, (4,) if plain else (84, 84), np.uint8))
        self.render_mode, self.plain, self.dies = render_mode, plain, dies

    def begin(self):
        self.drawn = self.np_random.integers(256, size=2).tolist()
        self.length = int(self.np_random.integers(2, 10))
        self.mixed = 0

    def play(self, action):
        if self.dies and self.t == 4 and not self.dies.exists():
            self.dies.touch()
            os._exit(7)
        self.mixed = int(7 * self.mixed + 50 * action + self.np_random.integers(50)) % 256
        end = self.t == self.length
        return self.mixed / 3, end and self.length % 2, end and not self.length % 2

    def observe(self):
        return self._screen(1, 4)[0] if self.plain else self._screen(84, 84)

    def render(self):
        return np.stack([self._screen(12, 16)] * 3, axis=-1)

    def _screen(self, height, width):
        screen = np.zeros((height, width), np.uint8)
        screen[0, :4] = (*self.drawn, self.t, self.mixed)
        return screen


class Alternating(Toy):
    """A constant observation. An action earns 1 if it differs from the one before, so a deterministic policy earns 0.

    A uniformly random policy earns 9.5 of 19 on average.
    """

    def __init__(self):
        super().__init__(2)

    def begin(self):
        self.last = None

    def play(self, action):
        reward, self.last = self.last not in (None, action), action
        return reward, self.t == 20, False

    def observe(self):
        return np.ones(2, np.float32)


class Shape(Toy):
    """Random observations from any space. The second of its five actions earns 1.

    Args:
        space: observation space.
        mask: how the environment reports the action mask: "info", "method", "observation", or None for no mask. In each
            step all actions except one are allowed, and a forbidden action fails an assertion.
        start: number of the first action.
        length: steps per episode.
    """

    def __init__(self, space, mask=None, start=0, length=5):
        if mask == "observation":
            space = spaces.Dict({"observation": space, "action_mask": spaces.MultiBinary(5)})
        super().__init__(space)
        self.action_space = spaces.Discrete(5, start=start)
        self.length, self.mask = length, mask
        if mask == "method":
            self.action_masks = lambda: self._mask() == 1

    def reset(self, *, seed=None, options=None):
        self.observation_space.seed(seed)
        return super().reset(seed=seed)

    def step(self, action):
        assert type(action) is int
        assert action in self.action_space
        assert self.mask is None or self._mask()[action], f"{action} is not allowed in step {self.t}"
        return super().step(action)

    def play(self, action):
        return action == self.action_space.start + 1, self.t == self.length, False

    def observe(self):
        observation = self.observation_space.sample()
        return observation | {"action_mask": self._mask()} if self.mask == "observation" else observation

    def info(self):
        return {"action_mask": self._mask()} if self.mask == "info" else {}

    def _mask(self):
        return (np.arange(5) != self.t % 5).astype(np.int8)


class Talkative(Catch):
    """Catch with infos that hold growing arrays and a name that gymnasium's wrappers use, too."""

    def info(self):
        return {"path": np.arange(self.t + 1), "episode": "mine"}


class Forgetful(Shown):
    """Catch that ignores its seed, so that an episode cannot be restored from its seed and actions."""

    begun = itertools.count()

    def begin(self):
        super().begin()
        self.column = next(self.begun) % self.size


class Failing(Catch):
    """Catch that does something else in its constructor, or in its `at`-th step, counted over all episodes.

    In the constructor, it may "ask" a process of its own, "wait" without end in the processes of a ProcessVectorEnv
    after printing a line, or "fail" in the second of these processes. In a step, it may "raise" an error that cannot be
    pickled, "die", or return the reward "nan".
    """

    def __init__(self, how, at=102, zoom=1):
        super().__init__(zoom=zoom)
        self.how, self.left = how, at
        if how == "ask":
            simulator = multiprocessing.get_context("spawn").Process(target=int)
            simulator.start()
            simulator.join()
        if how == "wait" and multiprocessing.parent_process() is not None:
            print("waiting for a licence", flush=True)
            time.sleep(600)
        if how == "fail" and multiprocessing.current_process().name.endswith("-1"):
            raise RuntimeError("only one game can be open")

    def play(self, action):
        self.left -= 1
        reward, *ends = super().play(action)
        if self.left:
            return reward, *ends
        if self.how == "raise":
            raise type("LocalError", (RuntimeError,), {})("the paddle broke")
        if self.how == "die":
            os._exit(7)
        return float("nan") if self.how == "nan" else reward, *ends


@dataclasses.dataclass
class Count(Played):
    """Segment of a Counter."""

    began: int  # number of segments before its newest episodes
    nth: int  # of the actor's segments
    weight: int  # value of the weights that the actor has copied
    pid: int


class Counter:
    """Fake actor that numbers its segments. `before` is called with it before each segment."""

    def __init__(self, number, state=None, before=lambda actor: None):
        self.number = number
        self.count = 0 if state is None else state["steps_done"] // 10
        self.began = self.count if state is None else state.get("began", self.count)
        self.before = before

    def set_model(self, model):
        self.version, self.weight = model.version, model.tensors["a"].clone()

    def get_trajectory_segment(self):
        self.before(self)
        self.count += 1
        played = (self.version, 10, 10 * self.count, 0.1, {"environment": 0.08})
        return Count(*played, began=self.began, nth=self.count, weight=int(self.weight), pid=os.getpid())

    def state_dict(self):
        return {"steps_done": 10 * self.count, "began": self.began}

    def __str__(self):
        return f"at {self.count}"


def fail_on_purpose(actor):
    """Raise an error in the third segment of actor 1."""
    if (actor.number, actor.count) == (1, 2):
        raise RuntimeError("out of numbers")


def play_and_hang(connection, engine):
    """Send the process ids of two actors that hang in their second segments, and wait. Runs in a child process."""
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)  # for workers of Ray
    makes = [partial(Counter, before=lambda actor: time.sleep(600 * actor.count))] * 2
    fleet = Fleet(engine, [""] * 2)
    fleet.start(makes)
    pids = set()
    while len(pids) < 2 or fleet.idle():
        for index in fleet.idle():
            fleet.order(index, Weights(1, {"a": torch.ones(())}, {}))
        pids |= {segment.pid for _, segment in fleet.take()}
    connection.send(pids)
    time.sleep(600)


class FakeEngine(InlineEngine):
    """Engine of actors in this process, on a fake clock.

    `delay` is a function (index, method) that returns the seconds until the answer, or None for no answer.
    """

    def __init__(self, delay):
        super().__init__()
        self.now, self.killed = 100.0, []
        self._delay, self._answers, self._numbers = delay, [], itertools.count()

    def send(self, index, method, *arguments):
        delay = self._delay(index, method)
        if delay is not None:
            answer: Any = self._workers[index].answer(method, *arguments)
            if method == "play":
                answer.seconds, answer.parts = delay, {"act": 0.2 * delay, "environment": 0.6 * delay}
            heapq.heappush(self._answers, (self.now + delay, next(self._numbers), index, answer))

    def lose(self, index):
        """Let an actor die now."""
        self._answers = [each for each in self._answers if each[2] != index]
        heapq.heapify(self._answers)
        heapq.heappush(self._answers, (self.now, -1, index, Lost("was killed by SIGKILL")))

    def receive(self, timeout):
        next_at = self._answers[0][0] if self._answers else math.inf
        self.now = min(self.now + timeout, max(self.now, next_at))
        came = []
        while self._answers and self._answers[0][0] <= self.now:
            came.append(heapq.heappop(self._answers)[2:])
        return came

    def kill(self, index):
        self.killed.append(index)


def start_two_and_wait(connection):
    """Start two programs, send their process ids, and wait. Runs in a child process."""
    programs = [subprocess.Popen(["sleep", "60"]) for _ in range(2)]
    connection.send([program.pid for program in programs])
    time.sleep(60)


class Linear(nn.Module):
    """Action values of a 7 x 7 screen or of a single number."""

    def __init__(self, size):
        super().__init__()
        self.layer = nn.Linear(size, 2)

    def forward(self, states):
        return self.layer(states.reshape(len(states), -1).float() / 255.0)


class Table(nn.Module):
    """Action values from a table. A state is the number of its row, (1,)."""

    def __init__(self, rows):
        super().__init__()
        self.rows = nn.Parameter(torch.tensor(rows))

    def forward(self, states):
        return self.rows[states.long().squeeze(1)]


class Recall(Toy):
    """Episodes of four steps. The first observation shows 0 or 1; taking that as the last action is rewarded by 1."""

    def __init__(self):
        super().__init__(2)

    def begin(self):
        self.shown = int(self.np_random.integers(2))

    def play(self, action):
        return self.t == 4 and action == self.shown, self.t == 4, False

    def observe(self):
        return np.array([0.5, self.t / 4] if self.t else [self.shown, 0.0], np.float32)


class Match(Toy):
    """Each step rewards the share of an action's numbers that are right, or the nearness of real numbers.

    The observation is 0 or 1. For 0, the right numbers are the lowest ones, or -1; for 1, the highest ones, or 1.
    Episodes have 8 steps. The first option of every choice is forbidden if `masked`.
    """

    def __init__(self, actions, masked=False):
        super().__init__(2)
        self.action_space, self.masked, self.played = actions, masked, []

    def play(self, action):
        assert self.action_space.contains(action), (action, self.action_space)
        assert action.dtype == self.action_space.dtype
        self.played.append(action)
        if isinstance(self.action_space, spaces.Box):
            reward = 1.0 - abs(action - (2.0 * self.high - 1.0)).clip(0.0, 2.0).mean()
        elif isinstance(self.action_space, spaces.MultiBinary):
            reward = (action == self.high).mean()
        else:
            space = self.action_space
            lowest = space.start + self.masked
            reward = (action == (space.start + space.nvec - 1 if self.high else lowest)).mean()
        return reward, False, self.t == 8

    def observe(self):
        self.high = int(self.np_random.integers(2))
        return np.array([self.high, self.t / 8], np.float32)

    def info(self):
        return {"action_mask": tuple(np.arange(size) > 0 for size in self.action_space.nvec)} if self.masked else {}


def register(name: str, environment: Callable[..., gym.Env] | str, **kwargs: object) -> None:
    """Register an environment class, or its import path, as `fakes:<name>-v0`."""
    gym.register(f"{name}-v0", cast(Any, environment), kwargs=kwargs)


def register_late() -> None:
    register("Late", Counting)


TOYS = (Alone, Alternating, Chain, Counting, Curriculum, Levels, Recall, Shown, Coded, Talkative, Forgetful)
for environment in TOYS:
    register(environment.__name__, environment)
register("Catch", Catch, zoom=ZOOM)
register("Heat", Shape, space=spaces.Box(0.0, 1.0, (2, 2, 7, 7), np.float32))
register("Numbers", Coded, plain=True)
PONG = {"game": "pong", "full_action_space": False, "frameskip": 1, "repeat_action_probability": 0.0}
register("ShortPong", "ale_py.env:AtariEnv", **PONG, max_num_frames_per_episode=400)  # episodes of 100 steps
for how in ("ask", "wait", "fail", "raise", "die", "nan"):
    register(f"Failing-{how}", Failing, how=how, zoom=ZOOM)
SHAPES: dict[str, spaces.Space[Any]] = {
    "Vector": spaces.Box(-1.0, 1.0, (6,), np.float64),
    "Codes": spaces.Box(0, 12, (6,), np.int64),
    "Number": spaces.Discrete(7),
    "Parts": spaces.Dict({"place": spaces.MultiDiscrete([3, 4]), "speed": spaces.Box(-1.0, 1.0, (2,), np.float32)}),
    "Board": spaces.Box(-2, 2, (9, 8), np.int8),
    "Digits": spaces.MultiDiscrete(np.full((9, 8), 4)),
    "Planes": spaces.Box(0, 255, (7, 7, 3), np.uint8),
    "Image": spaces.Box(0, 255, (50, 40, 3), np.uint8),
    "Frames": spaces.Box(0, 255, (4, 84, 84), np.uint8),
}
ACTION_SPACES: dict[str, spaces.Space[Any]] = {
    "Choices": spaces.MultiDiscrete([3, 2], start=[1, -1]),
    "Bits": spaces.MultiBinary([2, 2]),
    "Numbers2": spaces.Box(np.array([-1.0, -np.inf]), np.array([2.0, np.inf]), dtype=np.float64),
}
for name, space in ACTION_SPACES.items():
    register(f"Match-{name}", Match, actions=space)
register("Match-masked", Match, actions=spaces.MultiDiscrete([3, 4]), masked=True)
register("Seventh", Shape, space=SHAPES["Vector"], start=7)
for name, space in SHAPES.items():
    register(name, Shape, space=space)
    register(f"{name}-info", Shape, space=space, mask="info")
    register(f"{name}-method", Shape, space=space, mask="method")
register("Board-observation", Shape, space=SHAPES["Board"], mask="observation")
MASKED = [f"fakes:{name}-v0" for name in ("Vector-info", "Parts-method", "Board-method", "Image-info")]


def first_states(env_id: str, num_envs: int = 4) -> tuple[spaces.Box, np.ndarray]:
    """Return the observation space of some environments, and their first states, (num_envs, ...)."""
    envs = vector_env.make_vector_env(env_id, num_envs)
    return envs.single_observation_space, envs.reset(seed=1)[0]

"""Replay a finished episode from its seed and actions, in an environment that can render."""

import math
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from lib.envs.atari import is_atari, reset_with_no_ops
from lib.envs.single_env import make_env
from lib.errors import UsageError
from lib.experience.episodes import Episode, EpisodeTrace
from lib.run.video_file import Video, frames_per_second
from lib.system.seeds import undisturbed

MAX_KEPT_ENVS = 64

FrameSink = Callable[[np.ndarray], object]


class Playback(NamedTuple):
    """Result of replaying an episode.

    Attributes:
        total: undiscounted return.
        length: agent steps.
        matches: True if return, length and the state before the last action equal those of training.
    """

    total: float
    length: int
    matches: bool


class _Position(NamedTuple):
    """An environment, and how far it has been played since its seeded reset.

    Attributes:
        env: the environment.
        state: its current state.
        actions_taken: number of actions since its seeded reset.
        at_episode_start: True if no action of the current episode has been taken.
    """

    env: gym.Env
    state: Any
    actions_taken: int
    at_episode_start: bool = True


class EpisodeReplayer:
    """Environment with rendering, in which finished episodes are replayed.

    Args:
        env_id: gymnasium id.

    Attributes:
        env: the environment.
        frames_per_second: agent steps in one second of the game.
        repeat_action_probability: probability of sticky actions in an Atari game; 0.0 for other environments.

    Raises:
        UsageError: if the environment cannot render or no video can be written on this machine.
    """

    def __init__(self, env_id: str):
        self._env_id = env_id
        self._kept: dict[int, _Position] = {}  # by seed
        try:
            self.env = self._make_env()
            self._try_recording()
        except UsageError as error:
            raise UsageError(
                f"--record-every cannot record {env_id}: {error}. Run it without --record-every"
            ) from error
        self.frames_per_second = frames_per_second(self.env)
        self.repeat_action_probability = 0.0
        if is_atari(self.env):
            emulator: Any = self.env.unwrapped
            self.repeat_action_probability = emulator.ale.getFloat("repeat_action_probability")

    def _make_env(self) -> gym.Env:
        return make_env(self._env_id, render_mode="rgb_array")

    @cached_property
    def _start_up_frames(self) -> int:
        """Frames of the key presses that some Atari games need before they can be played."""
        with closing(make_env(self._env_id)) as env:  # its number of no-ops is changed
            reset_with_no_ops(env, 0)
            emulator: Any = env.unwrapped
            return int(emulator.ale.getEpisodeFrameNumber())

    def _try_recording(self) -> None:
        with undisturbed(), tempfile.TemporaryDirectory() as folder:
            self.env.reset(seed=0)
            video = Video(Path(folder) / "video.webm", 1.0)
            _render(self.env, [video.write])
            video.close()

    def play(
        self,
        episode: Episode,
        trace: EpisodeTrace,
        sinks: Sequence[FrameSink],
        stopped: Callable[[], bool] = lambda: False,
    ) -> Playback | None:
        """Replay an episode.

        Args:
            episode: return and length of the episode in training.
            trace: seed and actions to replay.
            sinks: functions that receive every rendered frame (height, width, 3), including the first and the last.
            stopped: function that is called before every step. The replay is abandoned if it returns True.

        Returns:
            The result, or None if the replay was abandoned.
        """
        position = self._position_before(trace)
        env, playback = position.env, None
        try:
            playback = self._play_from(position, episode, trace, sinks, stopped)
        finally:
            if env is not self.env and playback is not None and playback.matches:
                self._kept[trace.seed] = _Position(env, env.reset()[0], trace.first + playback.length)
            elif env is not self.env:
                env.close()
        return playback

    def close(self) -> None:
        """Close all environments."""
        for position in self._kept.values():
            position.env.close()
        self.env.close()

    def _play_from(
        self,
        position: _Position,
        episode: Episode,
        trace: EpisodeTrace,
        sinks: Sequence[FrameSink],
        stopped: Callable[[], bool],
    ) -> Playback | None:
        """Replay an episode from a position at its start or before; see `play`."""
        start = self._go_to_start(position, trace, stopped)
        if start is None:
            return None
        env, last_state, total, length, ended = start.env, start.state, 0.0, 0, False
        state = last_state
        _render(env, sinks)
        for action in trace.actions[trace.first :]:
            if stopped():
                return None
            last_state = state
            state, reward, terminated, truncated, info = env.step(action)
            _render(env, sinks)
            total, length, ended = total + float(reward), length + 1, terminated or truncated
            if ended:
                # RecordEpisodeStatistics sums the rewards before they are clipped.
                total = float(info["episode"]["r"]) if "episode" in info else total
                break
        matches = (
            start.at_episode_start
            and ended
            and length == episode.length
            and _returns_close(total, episode.total)
            and np.array_equal(np.asarray(last_state), np.asarray(trace.last_state))
        )
        return Playback(total, length, matches)

    def _go_to_start(self, position: _Position, trace: EpisodeTrace, stopped: Callable[[], bool]) -> _Position | None:
        """Return an environment at the episode's start, or None if the replay was abandoned.

        Some episodes depend on the episodes before them. Their environments are kept after a replay, so that the next
        episode of the same seed continues from there.
        """
        env, state, ended = position.env, position.state, True
        for action in trace.actions[position.actions_taken : trace.first]:
            if stopped():
                return None
            state, _, terminated, truncated, _ = env.step(action)
            ended = terminated or truncated
            if ended:
                state, _ = env.reset()
        return _Position(env, state, trace.first, at_episode_start=ended)

    def _position_before(self, trace: EpisodeTrace) -> _Position:
        if trace.no_ops is not None or not trace.first:
            return _Position(self.env, self._reset(trace), 0)
        position = self._kept.pop(trace.seed, None)
        if position is None or position.actions_taken > trace.first:
            env = self._make_env()
            position = _Position(env, env.reset(seed=trace.seed)[0], 0)
        while len(self._kept) >= MAX_KEPT_ENVS:  # the oldest seeds are the least likely to occur again
            self._kept.pop(next(iter(self._kept))).env.close()
        return position

    def _reset(self, trace: EpisodeTrace) -> Any:
        if trace.no_ops is None:
            return self.env.reset(seed=trace.seed)[0]
        emulator: Any = self.env.unwrapped
        max_frames = emulator.spec.kwargs["max_num_frames_per_episode"]
        # Native environments do not count the no-ops as part of the episode. A new frame limit applies only after the
        # ROM is loaded again.
        emulator.ale.setInt("max_num_frames_per_episode", max_frames + trace.no_ops)
        emulator.load_game()
        return reset_with_no_ops(self.env, trace.no_ops - self._start_up_frames)


def _render(env: gym.Env, sinks: Sequence[FrameSink]) -> None:
    frame: Any = env.render()
    for sink in sinks:
        sink(frame)


def _returns_close(total: float, other: float) -> bool:
    """Compare returns. Vector environments round rewards to float32."""
    return math.isclose(total, other, rel_tol=1e-5, abs_tol=1e-5)

"""Videos of training episodes.

A finished episode is replayed in a separate environment that can render, from the seed and the actions of training.
Training itself is not disturbed: native environments draw no colours, and others may run on another machine.
"""

import logging
import math
import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from ignite.engine import Engine

from lib.envs.atari import is_atari, reset_with_no_ops
from lib.envs.single_env import single_env
from lib.errors import UsageError
from lib.experience.episodes import Again, Episode
from lib.run.episodes import Episodes
from lib.run.evaluation import Untimed
from lib.run.video_file import Animation, Video, frames_per_second
from lib.system.seeds import undisturbed

log = logging.getLogger(__name__)

FOLDER = "videos"
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
    """Environment, the number of actions that it has taken since its seeded reset, and its current state."""

    env: gym.Env
    actions_taken: int
    state: Any


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
        except (UsageError, gym.error.DependencyNotInstalled) as error:
            raise UsageError(
                f"--record-every cannot record {env_id}: {error}. Run it without --record-every"
            ) from error
        self.frames_per_second = frames_per_second(self.env)
        self.repeat_action_probability = 0.0
        self._start_up_frames = 0  # some Atari games need key presses before they can be played
        if is_atari(self.env):
            emulator: Any = self.env.unwrapped
            self.repeat_action_probability = emulator.ale.getFloat("repeat_action_probability")
            reset_with_no_ops(self.env, 0)
            self._start_up_frames = emulator.ale.getEpisodeFrameNumber()

    def _make_env(self) -> gym.Env:
        return single_env(self._env_id, render_mode="rgb_array")

    def _try_recording(self) -> None:
        with undisturbed(), tempfile.TemporaryDirectory() as folder:
            self.env.reset(seed=0)
            video = Video(Path(folder) / "video.webm", 1.0)
            _render(self.env, [video.write])
            video.close()

    def play(
        self, episode: Episode, again: Again, sinks: Sequence[FrameSink], stopped: Callable[[], bool] = lambda: False
    ) -> Playback | None:
        """Replay an episode.

        Args:
            episode: the episode's return and length in training.
            again: the seed and actions to replay.
            sinks: functions that receive every rendered frame (height, width, 3), including the first and the last.
            stopped: function that is called before every step. The replay is abandoned if it returns True.

        Returns:
            The result, or None if the replay was abandoned.
        """
        env, actions_taken, state = self._start(again)
        ended = True
        for action in again.actions[actions_taken : again.begins]:
            if stopped():
                return None
            state, _, terminated, truncated, _ = env.step(action)
            ended = terminated or truncated
            if ended:
                state, _ = env.reset()
        at_episode_start, total, length, last_state = ended, 0.0, 0, state
        _render(env, sinks)
        for action in again.actions[again.begins :]:
            if stopped():
                return None
            last_state = state
            state, reward, terminated, truncated, info = env.step(action)
            _render(env, sinks)
            total, length = total + float(reward), length + 1
            ended = terminated or truncated
            if ended:
                # RecordEpisodeStatistics sums the rewards before they are clipped.
                total = float(info["episode"]["r"]) if "episode" in info else total
                break
        matches = (
            at_episode_start
            and ended
            and length == episode.length
            and _close(total, episode.total)
            and np.array_equal(np.asarray(last_state), np.asarray(again.last_state))
        )
        if matches and env is not self.env:
            self._kept[again.seed] = _Position(env, again.begins + length, env.reset()[0])
        return Playback(total, length, matches)

    def close(self) -> None:
        """Close all environments."""
        for position in self._kept.values():
            position.env.close()
        self.env.close()

    def _start(self, again: Again) -> _Position:
        """Return an environment from which the episode can be reached.

        If an episode depends on the episodes before it, its environment is kept at the end of the replayed episode.
        The next episode of the same seed continues there, so earlier actions are not taken twice.
        """
        if again.no_ops is not None or not again.begins:
            return _Position(self.env, 0, self._reset(again))
        position = self._kept.pop(again.seed, None)
        if position is None or position.actions_taken > again.begins:
            env = self._make_env()
            position = _Position(env, 0, env.reset(seed=again.seed)[0])
        while len(self._kept) >= MAX_KEPT_ENVS:  # the oldest seeds are the least likely to occur again
            self._kept.pop(next(iter(self._kept))).env.close()
        return position

    def _reset(self, again: Again) -> Any:
        if again.no_ops is None:
            return self.env.reset(seed=again.seed)[0]
        emulator: Any = self.env.unwrapped
        max_frames = emulator.spec.kwargs["max_num_frames_per_episode"]
        # Native environments do not count the no-ops as part of the episode. A new limit needs a reload of the ROM.
        emulator.ale.setInt("max_num_frames_per_episode", max_frames + again.no_ops)
        emulator.load_game()
        return reset_with_no_ops(self.env, again.no_ops - self._start_up_frames)


def cut_back(run: Path, number: int) -> None:
    """Remove what a resumed run will record again: videos of episodes after `number`, and unfinished videos."""
    for path in (run / FOLDER).glob("episode-*.webm"):
        match = re.match(r"episode-(\d+)-return-", path.name)
        if match is None or int(match[1]) > number:
            path.unlink()


class Recorder:
    """Handler that records every n-th finished episode. Attach it to EPISODE_COMPLETED.

    Args:
        replayer: environment in which episodes are replayed.
        run: run folder. Videos are written to its folder FOLDER.
        every: interval between recorded episodes.
        episodes: counter of finished episodes.
        native: True if the run plays ale_py's native environments.
        untimed: context manager whose time does not count as training, such as Speed.apart.
        stopped: function that returns True if the run has to end at once. The current video is then left out.

    Attributes:
        video: path of the newest episode's video, relative to the run folder; "" if it has none.
        on_video: function that receives the animation of each new video and its episode.
    """

    def __init__(
        self,
        replayer: EpisodeReplayer,
        run: Path,
        every: int,
        episodes: Episodes,
        native: bool,
        untimed: Untimed,
        stopped: Callable[[], bool],
    ):
        self.replayer = replayer
        self.run = run
        self.every = every
        self.episodes = episodes
        self.untimed = untimed
        self.stopped = stopped
        self.video = ""
        self.on_video: Callable[[Animation, Episode], object] = lambda animation, episode: None
        self._repeatable = not (native and replayer.repeat_action_probability > 0.0)
        self._warned = False
        if not self._repeatable:
            log.warning(
                "No videos will be recorded. This game repeats actions at random (repeat_action_probability %g), and "
                "native environments do not report when, so its episodes cannot be replayed. Use a game without "
                "sticky actions, such as PongNoFrameskip-v4, or one of the scripts 00 to 04 of chapter 9.",
                replayer.repeat_action_probability,
            )

    def __call__(self, engine: Engine) -> None:
        self.video = ""
        episode = self.episodes.last
        assert episode is not None
        if self._repeatable and self.episodes.count % self.every == 0:
            with self.untimed(), undisturbed():
                self._record(self.episodes.count, episode)

    def _record(self, number: int, episode: Episode) -> None:
        if episode.again is None:
            log.info("No video of episode %d: it ended before the run was resumed.", number)
            return
        again = episode.again()
        fps = self.replayer.frames_per_second
        video = Video(self.run / FOLDER / f"episode-{number}.part.webm", fps)
        animation = Animation(fps, episode.length + 1)
        playback = None
        try:
            playback = self.replayer.play(episode, again, (video.write, animation.add), self.stopped)
        except Exception as error:  # noqa: BLE001 - an error of the user's environment must not end the training
            reason = f"{type(error).__name__}: {error}"
            self._warn_once("No video of episode %d: its environment failed in the replay with %s.", number, reason)
            return
        finally:
            if playback is None or not playback.matches:
                video.discard()
        if playback is None:
            log.info("No video of episode %d: the run is stopping.", number)
        elif not playback.matches:
            self._warn_about_mismatch(number, episode, playback)
        else:
            self._keep(video, number, episode)
            self.on_video(animation, episode)

    def _keep(self, video: Video, number: int, episode: Episode) -> None:
        """Give the video its final name. It replaces a video of the same episode from before a resume."""
        for old in video.path.parent.glob(f"episode-{number}-return-*.webm"):
            old.unlink()
        path = video.close_as(f"episode-{number}-return-{episode.total:.7g}")
        self.video = f"{FOLDER}/{path.name}"

    def _warn_about_mismatch(self, number: int, episode: Episode, playback: Playback) -> None:
        same_outcome = (playback.total, playback.length) == (episode.total, episode.length)
        self._warn_once(
            "No video of episode %d: in training it had a return of %g in %d steps. Its replay had %g in %d steps%s. "
            "The environment is not deterministic.",
            *(number, episode.total, episode.length, playback.total, playback.length),
            " but other states" if same_outcome else "",
        )

    def _warn_once(self, message: str, *values: Any) -> None:
        if not self._warned:
            log.warning(f"{message} Such episodes get no video. This warning is shown once.", *values)
        self._warned = True


def _render(env: gym.Env, sinks: Sequence[FrameSink]) -> None:
    frame: Any = env.render()
    for sink in sinks:
        sink(frame)


def _close(total: float, other: float) -> bool:
    """Compare returns. Vector environments round rewards to float32."""
    return math.isclose(total, other, rel_tol=1e-5, abs_tol=1e-5)

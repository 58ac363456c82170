"""Videos of training's episodes: each is played again, after it has ended, in an environment that can be looked at.

So recording never touches what trains: native environments draw no colours, and others may be in another process or on
another machine.
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
from lib.envs.single_env import make_env
from lib.errors import UsageError
from lib.experience.episodes import Episode, EpisodeTrace
from lib.run import evaluation, video_file
from lib.run.episodes import Episodes
from lib.system.seeds import undisturbed

log = logging.getLogger(__name__)


Show = Callable[[np.ndarray], Any]


FOLDER = "videos"


STANDING = 64  # environments that are kept where they stand at most


class Played(NamedTuple):
    """What came of playing an episode again.

    Attributes:
        total, length: its return and length.
        same: whether it was the same episode: return, length, and the state in which the last action was taken.
    """

    total: float
    length: int
    same: bool


class EpisodeReplayer:
    """An environment that can be looked at, in which finished episodes are played again.

    Args:
        env_id: gymnasium id.

    Attributes:
        env: the environment; per_second: how many pictures of it are a second of the game.
        sticky: how probable it is that an Atari game takes the action before again; 0.0 for what is no Atari game.

    Raises:
        UsageError: it cannot be looked at, or no video can be written here.
    """

    def __init__(self, env_id: str):
        self._env_id = env_id
        self._standing: dict[int, tuple[gym.Env, int, Any]] = {}  # by seed
        try:
            self.env = self._make()
            self._try_out()
        except (UsageError, gym.error.DependencyNotInstalled) as error:
            raise UsageError(
                f"--record-every cannot record {env_id}: {error}. Run it without --record-every"
            ) from error
        self.per_second = video_file.per_second(self.env)
        emulator: Any = self.env.unwrapped
        self.sticky = 0.0
        self._start_up = 0  # frames of an Atari game that presses keys before it can be played
        if is_atari(self.env):
            self.sticky = emulator.ale.getFloat("repeat_action_probability")
            reset_with_no_ops(self.env, 0)
            self._start_up = emulator.ale.getEpisodeFrameNumber()

    def _make(self) -> gym.Env:
        return make_env(self._env_id, render_mode="rgb_array")

    def _try_out(self) -> None:
        with undisturbed(), tempfile.TemporaryDirectory() as folder:
            self.env.reset(seed=0)
            picture: Any = self.env.render()
            video = video_file.Video(Path(folder) / "video.webm", 1.0)
            video.show(picture)
            video.close()

    def play(
        self, episode: Episode, again: EpisodeTrace, show: Sequence[Show], stopped: Callable[[], bool] = lambda: False
    ) -> Played | None:
        """Play an episode.

        Args:
            episode: as it was in training.
            again: what it is played again from.
            show: each called with every picture (height, width, 3) of it, as the environment draws it, the first and
                the last one included.
            stopped: asked before every step whether it is to be left.

        Returns:
            None if it was left.
        """
        env, at, state = self._stand(again)
        ended = True
        for action in again.actions[at : again.begins]:
            if stopped():
                return None
            state, _, terminated, truncated, _ = env.step(action)
            ended = terminated or truncated
            if ended:
                state, _ = env.reset()
        begun, total, length, last_state = ended, 0.0, 0, state
        _show(env, show)
        for action in again.actions[again.begins :]:
            if stopped():
                return None
            last_state = state
            state, reward, terminated, truncated, info = env.step(action)
            _show(env, show)
            total, length = total + float(reward), length + 1
            ended = terminated or truncated
            if ended:
                # Below the reward clipping, RecordEpisodeStatistics has kept the return as the game counts it.
                total = float(info["episode"]["r"]) if "episode" in info else total
                break
        same = begun and ended and length == episode.length and _equal(total, episode.total)
        same = same and np.array_equal(np.asarray(last_state), np.asarray(again.last_state))
        if same and env is not self.env:
            self._standing[again.seed] = (env, again.begins + length, env.reset()[0])
        return Played(total, length, same)

    def close(self) -> None:
        """Close all environments."""
        for env, _, _ in self._standing.values():
            env.close()
        self.env.close()

    def _stand(self, again: EpisodeTrace) -> tuple[gym.Env, int, Any]:
        """An environment, how many of the actions it has taken, and what it shows.

        One whose episodes follow on each other is kept where the last one ended, so that the next need not begin with
        all that was before.
        """
        if again.no_ops is not None or not again.begins:
            return self.env, 0, self._begin(again)
        env, at, state = self._standing.pop(again.seed, (None, 0, None))
        if env is None or at > again.begins:
            env, at = self._make(), 0
            state, _ = env.reset(seed=again.seed)
        while len(self._standing) >= STANDING:  # those whose seed will not come again
            self._standing.pop(next(iter(self._standing)))[0].close()
        return env, at, state

    def _begin(self, again: EpisodeTrace) -> Any:
        if again.no_ops is None:
            return self.env.reset(seed=again.seed)[0]
        emulator: Any = self.env.unwrapped
        limit = emulator.spec.kwargs["max_num_frames_per_episode"]
        # A native game does not count these frames among an episode's. The ROM's loading makes the bound count.
        emulator.ale.setInt("max_num_frames_per_episode", limit + again.no_ops)
        emulator.load_game()
        return reset_with_no_ops(self.env, again.no_ops - self._start_up)


def _show(env: gym.Env, show: Sequence[Show]) -> None:
    picture: Any = env.render()
    for each in show:
        each(picture)


def cut_back(run: Path, number: int) -> None:
    """Remove the videos of the episodes after this one, as a run that goes on from it plays them anew, and halves of
    videos, which a process that was killed has left."""
    for path in (run / FOLDER).glob("episode-*.webm"):
        match = re.match(r"episode-(\d+)-return-", path.name)
        if match is None or int(match[1]) > number:
            path.unlink()


class Recorder:
    """Writes a video of every so many-th episode when it has ended.

    Args:
        replayer: in which it is played again.
        run: the run folder; videos are in its folder FOLDER.
        every: which episodes: those whose number can be divided by this.
        episodes: counts them.
        native: whether the run plays ale_py's native environments.
        apart: a context for what is no training; see timing.Speed.apart.
        stopped: tells whether the run was told to end at once; the video under way is left out then.

    Attributes:
        video: of the newest episode, its path in the run folder; "" where there is none.
        on_video: called with the animation of each new video and with its episode; see pictures.Animation.
    """

    def __init__(
        self,
        replayer: EpisodeReplayer,
        run: Path,
        every: int,
        episodes: Episodes,
        native: bool,
        apart: evaluation.Apart,
        stopped: Callable[[], bool],
    ):
        self.replayer = replayer
        self.run = run
        self.every = every
        self.episodes = episodes
        self.apart = apart
        self.stopped = stopped
        self.video = ""
        self.on_video: Callable[[video_file.Animation, Episode], Any] = lambda animation, episode: None
        self._repeatable = not (native and replayer.sticky > 0.0)
        self._warned = False
        if not self._repeatable:
            log.warning(
                "No videos: this game repeats actions by chance (repeat_action_probability %g), and native "
                "environments do not tell when, so that its episodes cannot be played again. Take a game without, "
                "such as PongNoFrameskip-v4, or one of the scripts 00 to 04 of chapter 9.",
                replayer.sticky,
            )

    def __call__(self, engine: Engine) -> None:
        """To be called when an episode has been counted."""
        self.video = ""
        episode = self.episodes.last
        assert episode is not None
        if self._repeatable and self.episodes.count % self.every == 0:
            with self.apart(), undisturbed():
                self._record(self.episodes.count, episode)

    def _record(self, number: int, episode: Episode) -> None:
        if episode.trace is None:
            log.info("No video of episode %d: it had ended before the run was resumed.", number)
            return
        again = episode.trace()
        stem = f"episode-{number}"
        video = video_file.Video(self.run / FOLDER / f"{stem}.part.webm", self.replayer.per_second)
        animation = video_file.Animation(self.replayer.per_second, episode.length + 1)
        played, failure = None, ""
        try:
            played = self.replayer.play(episode, again, (video.show, animation.show), self.stopped)
        except Exception as error:  # noqa: BLE001 - it is another's code, for which training is not to end
            failure = f"{type(error).__name__}: {error}"
        finally:
            if played is None or not played.same:
                video.close()
                video.path.unlink(missing_ok=True)
        if failure:
            self._warn("No video of episode %d: played again, its environment failed with %s.", number, failure)
        elif played is None:
            log.info("No video of episode %d: the run was told to stop.", number)
        elif not played.same:
            self._warn(
                "No video of episode %d: its seed and actions gave a return of %g in %d steps in training, and %g in "
                "%d when they were played again%s. The environment does not repeat itself.",
                *(number, episode.total, episode.length, played.total, played.length),
                ", but other states" if (played.total, played.length) == (episode.total, episode.length) else "",
            )
        else:
            for other in video.path.parent.glob(f"{stem}-return-*.webm"):  # of a stretch that was lost and played anew
                other.unlink()
            path = video.keep_as(f"{stem}-return-{episode.total:.7g}")
            self.video = f"{FOLDER}/{path.name}"
            self.on_video(animation, episode)

    def _warn(self, message: str, *values: Any) -> None:
        if not self._warned:
            log.warning(f"{message} Such episodes get no video; this is said only once.", *values)
        self._warned = True


def _equal(total: float, other: float) -> bool:
    """Whether two returns are the same; the rewards of environments that step together are rounded to float32."""
    return math.isclose(total, other, rel_tol=1e-5, abs_tol=1e-5)

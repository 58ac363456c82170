"""Videos of training episodes.

A finished episode is replayed from its seed and actions in a separate environment that can render. It cannot be filmed
during training, because native environments render no colours, and actors may run on another machine.
"""

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ignite.engine import Engine

from lib.errors import CallInterrupted, Fault, UsageError
from lib.experience.episodes import Episode
from lib.run.episode_replayer import EpisodeReplayer, Playback
from lib.run.episodes import Episodes
from lib.run.evaluation import Untimed
from lib.run.video_file import Animation, Video
from lib.system.seeds import undisturbed

log = logging.getLogger(__name__)

FOLDER = "videos"


def cut_back(run: Path, number: int) -> None:
    """Remove the videos of episodes after `number`, which a resumed run will record again."""
    for path in (run / FOLDER).glob("episode-*.webm"):
        match = re.fullmatch(r"episode-(\d+)-return-.*\.webm", path.name)
        if match and int(match[1]) > number:
            path.unlink()


class Recorder:
    """Handler of EPISODE_COMPLETED that records every n-th episode.

    Args:
        replayer: environment in which episodes are replayed.
        run: run folder. Videos are written to its subfolder FOLDER.
        every: interval between recorded episodes.
        episodes: counter of finished episodes.
        native: True if the run plays ale_py's native environments.
        untimed: function that returns a context manager; time spent in it does not count as training.
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
        self._warned: set[str] = set()  # kinds of warnings that were logged
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
        if episode.trace is None:
            log.info("No video of episode %d: it ended before the run was resumed.", number)
            return
        trace = episode.trace()
        fps = self.replayer.frames_per_second
        animation = Animation(fps, episode.length + 1)
        video = playback = None
        try:
            video = Video(self.run / FOLDER / f"episode-{number}.part.webm", fps)
            playback = self.replayer.play(episode, trace, (video.write, animation.add), self.stopped)
        except (OSError, UsageError) as error:
            self._warn_once("No video of episode %d: %s.", number, error)
            return
        except CallInterrupted as error:  # the run ends after this iteration, which is saved
            log.warning("No video of episode %d: %s.", number, error)
            return
        except Exception as error:  # noqa: BLE001 - an error of the user's environment must not end the training
            reason = f"{type(error).__name__}: {error}"
            self._warn_once(
                "No video of episode %d: its environment raised an error during the replay: %s.", number, reason
            )
            return
        finally:
            if video is not None and (playback is None or not playback.matches):
                video.discard()
        if playback is None:
            log.info("No video of episode %d: the run is stopping.", number)
        elif not playback.matches:
            self._warn_about_mismatch(number, episode, playback)
        elif self._keep(video, number, episode):
            self.on_video(animation, episode)

    def _keep(self, video: Video, number: int, episode: Episode) -> bool:
        """Give the video its final name, and return whether all of it was written.

        It replaces a video of the same episode from before a resume.
        """
        for old in video.path.parent.glob(f"episode-{number}-return-*.webm"):
            old.unlink()
        try:
            path = video.close_as(f"episode-{number}-return-{episode.total:.7g}")
        except (Fault, OSError) as error:
            self._warn_once("No video of episode %d: %s.", number, error)
            return False
        self.video = f"{FOLDER}/{path.name}"
        return True

    def _warn_about_mismatch(self, number: int, episode: Episode, playback: Playback) -> None:
        same_outcome = (playback.total, playback.length) == (episode.total, episode.length)
        self._warn_once(
            "No video of episode %d: in training it had a return of %g in %d steps. Its replay had a return of "
            "%g in %d steps%s. The environment is not deterministic.",
            *(number, episode.total, episode.length, playback.total, playback.length),
            ", but different states" if same_outcome else "",
        )

    def _warn_once(self, message: str, *values: Any) -> None:
        if message not in self._warned:
            log.warning(f"{message} Such episodes get no video. This warning is shown once.", *values)
        self._warned.add(message)

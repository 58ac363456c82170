"""The parts of a run: objects that its set-up, its checkpoints and its end share."""

import logging
from collections.abc import Mapping
from contextlib import suppress

import gymnasium as gym
from ignite.engine import Engine
from torch import nn

from lib.envs.checked_env import close_all
from lib.envs.single_env import make_env
from lib.errors import UsageError
from lib.experience.interface import ExperienceSource
from lib.hyperparameters import RunParameters
from lib.run import learning_rate, tracking
from lib.run.episodes import Episodes
from lib.run.evaluation import EPISODES_BETWEEN, PeriodicEvaluation
from lib.run.events import register_events
from lib.run.folder import GrowingFiles, RunFolder
from lib.run.initial_weights import load_initial_weights
from lib.run.options import RunOptions
from lib.run.policy import GreedyPolicy
from lib.run.restoring import Stateful
from lib.run.speed import Speed
from lib.run.stopping import Stopper
from lib.run.tensorboard import FigureFunction, TensorBoard
from lib.run.videos import EpisodeReplayer
from lib.system.clock import since_process_start
from lib.system.seeds import undisturbed

log = logging.getLogger(__name__)


class RunParts:
    """The objects of a run. Created before anything is attached to the engine.

    Args:
        engine, save, figures: see setup.setup_ignite.
        params: checked hyperparameters.
        source: experience source.
        script: name of the script.
        options: options of the run.
        is_book_script: whether setup_ignite was called as in the book, without `args`. Such a script does not read
            engine.state.stopped.

    Attributes:
        time_limit: seconds after the start of the process at which the run stops; None for no limit.
        warm_up: agent steps before learning starts. 0 if a restored replay makes them unnecessary.
        run: run folder.
        episodes: counter of the episodes.
        speed: speed of the run.
        periodic_evaluation: schedule of --evaluate-every; None if there is none.
        replayer: environment for videos; None without --record-every.
        opened: environments of evaluations and videos, which the run closes.
        stopper: reason for the end of the run.
        source_is_started: whether the set-up has started the experience source. Otherwise the loop starts it.
        tracker: tracker of --track; None if there is none.
    """

    def __init__(
        self,
        engine: Engine,
        params: RunParameters,
        source: ExperienceSource,
        script: str,
        options: RunOptions,
        save: Mapping[str, Stateful] | None,
        figures: Mapping[str, FigureFunction],
        is_book_script: bool,
    ):
        learning_rate.require(params, options.stop_after)
        for name in ("init", "evaluate_every"):
            if save is None and getattr(options, name) is not None:
                raise UsageError(
                    f"--{name.replace('_', '-')} needs the network, which this script does not pass to setup_ignite; "
                    "leave it out, or pass save={'net': net}"
                )
        self.engine = engine
        self.params = params
        self.source = source
        self.script = script
        self.options = options
        self.save = save
        self.figures = figures
        self.is_book_script = is_book_script
        self.time_limit: float | None = options.time_limit
        if self.time_limit is not None and not options.owns_process:
            self.time_limit += since_process_start()
        self.warm_up = params.warm_up
        self.source_is_started = False
        self.tracker: tracking.Tracker | None = None
        self._board: TensorBoard | None = None
        if options.init is not None and options.resume is None:
            load_initial_weights(options.init, save or {})
        register_events(engine)
        self.opened: list[gym.Env | EpisodeReplayer] = []
        try:
            # Before the run folder, so that environments that cannot be made leave no folder and no changed run behind.
            with undisturbed():
                self.replayer = self._open_replayer() if options.record_every else None
                evaluation_envs = self._open_evaluation_envs() if options.evaluate_every else []
            self.run = RunFolder(script, params, options, self._net())
        except BaseException:
            close_all(self.opened)
            raise
        log.info("Run folder: %s", self.run.path)
        self.episodes = Episodes(
            source,
            params.stop_reward,
            params.milestone,
            trained=options.init is not None,
            owns_process=options.owns_process,
        )
        self.speed = Speed(source, params.log_every)
        self.stopper = Stopper(
            self.steps, options.stop_after or params.max_steps, self.time_limit, saves=save is not None
        )
        self.periodic_evaluation: PeriodicEvaluation | None = None
        if options.evaluate_every is not None:
            self.periodic_evaluation = PeriodicEvaluation(
                options.evaluate_every,
                self.policy(),
                evaluation_envs,
                options.seed,
                self.steps,
                self.stopper.interrupted,
            )
        source.stop_asked = self.stopper.should_stop

    def _open_replayer(self) -> EpisodeReplayer:
        replayer = EpisodeReplayer(self.params.env_name)
        self.opened.append(replayer)
        return replayer

    def _open_evaluation_envs(self) -> list[gym.Env]:
        envs: list[gym.Env] = []
        for _ in range(EPISODES_BETWEEN):
            try:
                envs.append(make_env(self.params.env_name))
            except UsageError as error:
                raise UsageError(
                    f"--evaluate-every needs {EPISODES_BETWEEN} more environments. Leave it out, or "
                    f"correct the environment: {error}"
                ) from error
            self.opened.append(envs[-1])
        return envs

    def steps(self) -> int:
        """Return the agent steps so far."""
        return self.source.steps_done

    def is_at_step_limit(self) -> bool:
        """Return whether the run has reached its step limit: --stop-after, or max_steps without it."""
        return self.steps() >= self.stopper.step_limit

    def _net(self) -> nn.Module | None:
        net = (self.save or {}).get("net")
        assert net is None or isinstance(net, nn.Module)
        return net

    def policy(self) -> GreedyPolicy:
        """Return the greedy policy of the run's network."""
        assert self.save is not None
        net = self.save["net"]
        assert isinstance(net, nn.Module)
        return GreedyPolicy(net)

    def open_board(self) -> None:
        """Open TensorBoard's files."""
        self._board = TensorBoard(self.run.path, self.tracker)

    @property
    def board(self) -> TensorBoard:
        """TensorBoard's files, which have to be open."""
        assert self._board is not None
        return self._board

    def growing_files(self) -> GrowingFiles:
        """Return the growing files. TensorBoard's are flushed before their sizes are taken, if they are open by now."""
        return GrowingFiles(self.run.path, (lambda: None) if self._board is None else self._board.flush)

    def abort_setup(self) -> None:
        """Close everything that the set-up has opened, and unlock the run folder."""
        if self.tracker is not None:
            self.tracker.fail()
        if self._board is not None:
            with suppress(OSError):
                self._board.close()
        close_all([self.source, *self.opened] if self.source_is_started else self.opened)
        self.run.close()

    def discard_if_new(self) -> None:
        """Remove the folder of a new run that was refused before it played."""
        if not self.options.resume and not self.steps():
            self.run.discard()

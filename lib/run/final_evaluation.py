"""Greedy play at the end of a run: it confirms that the game is solved, and its returns are part of the result."""

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from lib.envs.single_env import make_env
from lib.experience.interface import Stopped
from lib.hyperparameters import RunParameters
from lib.run import console, evaluation
from lib.run.checkpoint_files import BEST, LAST
from lib.run.episodes import Episodes, reaches
from lib.run.next_steps import tool_command
from lib.run.options import RunOptions
from lib.run.policy import GreedyPolicy
from lib.run.run_folder import Run
from lib.system.seeds import tagged_seed, undisturbed

log = logging.getLogger(__name__)


class FinalEvaluation:
    """Evaluation of a run's network in single environments, without exploration.

    Args:
        policy: policy of the network.
        params: hyperparameters of the run.
        options: options of the run.
        run: folder of the run.
        episodes: training episodes of the run.
        should_stop: function that returns whether the run has to stop.
        untimed: function that returns the context manager of an evaluation during training, whose time does not count.
    """

    def __init__(
        self,
        policy: GreedyPolicy,
        params: RunParameters,
        options: RunOptions,
        run: Run,
        episodes: Episodes,
        should_stop: Callable[[], bool],
        untimed: Callable[[], AbstractContextManager[None]],
    ):
        self._policy = policy
        self._params = params
        self._options = options
        self._run = run
        self._episodes = episodes
        self._should_stop = should_stop
        self._untimed = untimed
        self._confirmed: dict[str, Any] | None = None  # the evaluation that confirmed that the game is solved

    def confirm(self) -> bool | None:
        """Return whether greedy play reaches stop_reward; None if the run has to stop first."""
        goal = self._params.stop_reward
        assert goal is not None
        if self._should_stop():
            return None
        log.info(
            "The mean training return has reached %g. %d greedy episodes have to confirm it.", goal, evaluation.EPISODES
        )
        try:
            with self._untimed(), undisturbed():
                evaluated = self._play(stopped=self._should_stop)
        except Stopped:
            return None
        if not reaches(evaluated["mean"], goal):
            console.log_evaluation(evaluated)
            log.info(
                "Greedy play has not reached %g, so the run goes on. The next check is at least %d episodes away.",
                goal,
                self._episodes.CONFIRM_INTERVAL,
            )
            return False
        self._confirmed = evaluated
        return True

    @property
    def has_confirmed(self) -> bool:
        """Whether an evaluation has confirmed that the game is solved, so that `write` need not play another one."""
        return self._confirmed is not None

    def write(self, result: Mapping[str, Any]) -> None:
        """Write the result with the evaluation, which is played unless it has confirmed that the game is solved."""
        evaluated = self._confirmed
        if evaluated is None:
            log.info("Evaluation: %d episodes in single environments, without exploration.", evaluation.EPISODES)
            evaluated = self._play(progress=not self._options.quiet)
        below = evaluation.is_clearly_below(evaluated, list(self._episodes.returns))
        evaluated |= {"training_mean": self._episodes.mean, "below_training": below}
        self._run.write_json("result.json", {**result, "evaluation": evaluated})
        console.log_evaluation(evaluated)
        if below:
            which = BEST if self.has_confirmed else LAST  # the checkpoint of the network that has just played
            less_greedy = self._policy.less_greedy
            advice = tool_command("evaluate", self._run.path, self._params.env_name, *less_greedy, which=which)
            console.warn_of_greedy_play(evaluated["mean"], self._episodes.mean, advice)

    def _play(self, **options: Any) -> dict[str, Any]:
        """Evaluate the network; see evaluation.evaluate for the options.

        Its episodes are not those of tools/evaluate.py, because they may have decided when training ended.
        """
        make = partial(make_env, self._params.env_name)
        # Worker processes import the main program, which setup_ignite refuses without `if __name__ == "__main__":`.
        processes = None if self._options.owns_process else 1
        seed = tagged_seed("final evaluation", self._options.seed)
        return evaluation.evaluate(self._policy, make, seed=seed, processes=processes, **options)

"""Greedy play at the end of a run, part of its result."""

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

from lib.envs.single_env import make_env
from lib.hyperparameters import RunParameters
from lib.run import evaluation
from lib.run.checkpoint_files import LAST
from lib.run.console import tool_command
from lib.run.episodes import Episodes
from lib.run.folder import RunFolder
from lib.run.options import RunOptions
from lib.run.policy import GreedyPolicy
from lib.system.seeds import tagged_seed

log = logging.getLogger(__name__)


class FinalEvaluation:
    """Evaluation of a run's network in single environments, without exploration.

    Args:
        policy: policy of the network.
        params: hyperparameters of the run.
        options: options of the run.
        run: folder of the run.
        episodes: training episodes of the run.
    """

    def __init__(
        self,
        policy: GreedyPolicy,
        params: RunParameters,
        options: RunOptions,
        run: RunFolder,
        episodes: Episodes,
    ):
        self._policy = policy
        self._params = params
        self._options = options
        self._run = run
        self._episodes = episodes

    def write(self, result: Mapping[str, Any]) -> None:
        """Play the evaluation, and write the result with it."""
        log.info("Evaluation: %d episodes in single environments, without exploration.", evaluation.EPISODES)
        make = partial(make_env, self._params.env_name)
        # Worker processes import the main program, which setup_ignite refuses without `if __name__ == "__main__":`.
        processes = None if self._options.owns_process else 1
        # Its episodes are not those of tools/evaluate.py.
        seed = tagged_seed("final evaluation", self._options.seed)
        show = not self._options.quiet
        evaluated = evaluation.evaluate(self._policy, make, seed=seed, processes=processes, progress=show)
        below = evaluation.is_clearly_below(evaluated, list(self._episodes.returns))
        evaluated |= {"training_mean": self._episodes.mean, "below_training": below}
        self._run.write_json("result.json", {**result, "evaluation": evaluated})
        evaluation.log_result(evaluated)
        if below:
            less_greedy = self._policy.less_greedy
            advice = tool_command("evaluate", self._run.path, self._params.env_name, *less_greedy, which=LAST)
            evaluation.warn_of_greedy_play(evaluated["mean"], self._episodes.mean, advice)

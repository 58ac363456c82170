"""--init: start a new run with the weights of a trained network."""

import logging
import textwrap
from collections.abc import Mapping
from pathlib import Path

from torch import nn

from lib.envs.preprocessing import without_options
from lib.errors import UsageError
from lib.run import checkpoint_reading
from lib.run.checkpoint_files import BEST, find_checkpoint
from lib.run.folder import read_params
from lib.run.restoring import Stateful

log = logging.getLogger(__name__)


def require_same_game(model: Path, env_name: str, script: str) -> None:
    """Reject a network that was trained on another game.

    Args:
        model: folder of a run, or of models/.
        env_name: gymnasium id of the new run.
        script: name of the script that starts it.

    Raises:
        UsageError: if the network was trained on another id. The message names the script that trained it, because
            the networks of other scripts may not fit.
    """
    params = read_params(model)
    recorded = params["hyperparameters"]
    trained_on = without_options(str(recorded.get("env_name")))
    # A script may add its own options to the id later. A network that does not fit them is refused then.
    if trained_on != without_options(env_name):
        remedy = "give" if params["script"] == script else f"start {params['script']}.py with"
        # With --env-id, the run would not get the game's own settings.
        game = params.get("game")
        option = f"--game {game} and no --env-id" if game == recorded.get("run_name") else f"--env-id {trained_on}"
        raise UsageError(
            f"--init {model} was trained on {trained_on}, not on {env_name}; {remedy} {option}, or give a model of "
            f"{env_name}"
        )


def load_initial_weights(model: Path, objects: Mapping[str, Stateful]) -> None:
    """Load the weights of a model's best checkpoint into a run's networks.

    Args:
        model: folder of a run, or of models/.
        objects: objects that the run saves; "net" and, if present, "target" get the weights.

    Raises:
        UsageError: if the network has a different architecture.
        Fault: if the checkpoint is damaged.
    """
    file = find_checkpoint(model, BEST)
    try:
        weights = checkpoint_reading.load(file).get("net")
    except checkpoint_reading.Damaged as fault:
        raise checkpoint_reading.Damaged(
            f"{fault}. Restore it, or move it away, so that --init loads another one"
        ) from fault
    if not isinstance(weights, Mapping):
        raise UsageError(f"{file} has no network; it was probably saved by another version of this program")
    for name in ("net", "target"):
        network = objects.get(name)
        if isinstance(network, nn.Module):
            _load(network, weights, file, model)
    log.info("Initial weights: %s", file)


def _load(network: nn.Module, weights: Mapping[str, object], file: Path, model: Path) -> None:
    try:
        network.load_state_dict(weights)
    except (RuntimeError, TypeError, AttributeError) as error:
        script = read_params(model)["script"]
        problem = textwrap.shorten(str(error).strip().splitlines()[-1], 160, placeholder=" ...")
        raise UsageError(
            f"the network of {file} does not fit this script's network ({problem}); it was trained by {script}.py. "
            "Give a model that this version of this script, or of one with the same network, has trained on the same "
            "observations and actions"
        ) from error

"""What the scripts of chapters 8 and 9 share: hyperparameters, batches, the loss, exploration, the ignite wiring."""

import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from ignite.engine import Engine, Events
from ptan.actions import EpsilonGreedyActionSelector
from ptan.agent import TargetNet
from ptan.experience import ExperienceFirstLast, ExperienceReplayBuffer
from ptan.ignite import EpisodeEvents
from torch import nn

from lib import checkpoint, console, evaluation, losses, memory, recording, telemetry, timing, vector_env
from lib.dqn_model import Normalising
from lib.errors import UsageError
from lib.experience import ReplayBuffer
from lib.greedy import Greedy
from lib.hyperparameters import HYPERPARAMS, Hyperparameters, RunParameters
from lib.replay import Batch, Ring
from lib.runs import Run, RunOptions
from lib.stopping import ENDED, SOLVED, Stopper, as_ctrl_c

if TYPE_CHECKING:
    from matplotlib.figure import Figure  # takes most of a second, and few runs draw

__all__ = [
    "HYPERPARAMS",
    "EpsilonTracker",
    "Hyperparameters",
    "batch_generator",
    "calc_loss_dqn",
    "setup_ignite",
    "unpack_batch",
]

log = logging.getLogger(__name__)


def unpack_batch(
    batch: Sequence[ExperienceFirstLast],
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Transitions as arrays.

    Args:
        batch: transitions whose last_state is None where the episode ended there.

    Returns:
        states (batch, ...), actions (batch,) int64, rewards (batch,) float32, dones (batch,) uint8 and
        last_states (batch, ...), in which a missing last state is the first one: its value is masked anyway.

    Raises:
        TypeError: an action is no whole number.
    """
    states = [np.asarray(exp.state) for exp in batch]
    dones = [exp.last_state is None for exp in batch]
    last_states = [
        state if done else np.asarray(exp.last_state) for exp, state, done in zip(batch, states, dones, strict=True)
    ]
    actions = np.array([exp.action for exp in batch])
    if actions.dtype.kind not in "iu":
        raise TypeError(f"the actions of the batch are {actions.dtype}; they have to be whole numbers")
    return (
        np.stack(states),
        actions.astype(np.int64),
        np.array([exp.reward for exp in batch], dtype=np.float32),
        np.array(dones, dtype=np.uint8),
        np.stack(last_states),
    )


def calc_loss_dqn(
    batch: Sequence[ExperienceFirstLast] | Batch,
    net: nn.Module,
    tgt_net: nn.Module,
    gamma: float,
    device: torch.device | str = "cpu",
    no_grad: bool = True,
    huber: bool = False,
) -> torch.Tensor:
    """Mean squared temporal-difference error, Mnih et al. (2015), algorithm 1.

    Args:
        batch: transitions.
        net, tgt_net: from states (batch, ...) to action values (batch, n_actions).
        gamma: discount factor between a state and its last_state; a Batch brings its own.
        device: where both networks are.
        no_grad: whether the targets are computed without recording a graph. The gradient is the same either
            way, as no gradient goes through the targets; recording it only costs time and memory.
        huber: whether errors cost as Huber has it, see losses.penalties.

    Returns:
        A scalar, to be minimised in net's parameters.

    Raises:
        ValueError: a network gives another shape.
        TypeError: a network gives no floating-point numbers, or a batch's actions are not whole ones.
    """
    states, actions, rewards, discounts, last_states = _tensors(batch, gamma, device)
    q_values = net(states)
    _check("q_values", q_values, (len(batch), None))
    values = losses.of_actions(q_values, actions)
    with torch.no_grad() if no_grad else nullcontext():
        next_q_values = tgt_net(last_states)
        _check("next_q_values", next_q_values, tuple(q_values.shape))
        targets = losses.q_targets(rewards, discounts, next_q_values)
    return losses.penalties(values - targets.detach(), huber).mean()


def _tensors(
    batch: Sequence[ExperienceFirstLast] | Batch, gamma: float, device: torch.device | str
) -> tuple[torch.Tensor, ...]:
    """states, actions, rewards, discounts and last_states."""
    if isinstance(batch, Batch):
        moved = batch.for_net(device)
        return moved.states, moved.actions, moved.returns, moved.discounts, moved.next_states
    states, actions, rewards, dones, last_states = (
        torch.as_tensor(array, device=device) for array in unpack_batch(batch)
    )
    return states, actions, rewards, gamma * (1.0 - dones.float()), last_states


def _check(name: str, tensor: torch.Tensor, shape: tuple[int | None, ...]) -> None:
    fits = tensor.ndim == len(shape) and all(
        want in (None, size) for want, size in zip(shape, tensor.shape, strict=True)
    )
    if not fits:
        wanted = ", ".join("any" if want is None else str(want) for want in shape)
        raise ValueError(f"{name} have the shape {tuple(tensor.shape)}; it has to be ({wanted})")
    if not tensor.is_floating_point():
        raise TypeError(f"{name} are {tensor.dtype}; they have to be of a floating-point type")


class EpsilonTracker:
    """Linear decay of an epsilon-greedy selector's epsilon.

    Args:
        selector: its `epsilon` is set, at once and by every call of `frame`.
        params: epsilon_start, epsilon_final, epsilon_frames.
    """

    def __init__(self, selector: EpsilonGreedyActionSelector, params: Hyperparameters):
        self.selector = selector
        self.params = params
        self.frame(0)

    def frame(self, i: int) -> None:
        """Set epsilon to max(epsilon_final, epsilon_start - i / epsilon_frames)."""
        self.i = i
        decayed = self.params.epsilon_start - i / self.params.epsilon_frames
        self.selector.epsilon = max(self.params.epsilon_final, decayed)

    def state_dict(self) -> dict[str, int]:
        return {"i": self.i}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.frame(state["i"])


def batch_generator(
    buffer: ExperienceReplayBuffer | Ring,
    initial: int,
    batch_size: int,
    steps: int = 1,
    tgt_net: TargetNet | None = None,
) -> Iterator[list[ExperienceFirstLast] | Batch]:
    """Fill the replay with `initial` transitions, then forever add `steps` of them and yield a batch.

    Args:
        buffer: with PTAN's populate and sample.
        initial: agent steps; none if below 1, as on a resumed run.
        batch_size: of an iteration, all environments' share together.
        steps: agent steps between two batches: those of all environments.
        tgt_net: its two networks are normalised by the first batch's states, of a Ring, where they can be (see
            dqn_model.Normalising) and have not been yet, as they have in a resumed run.

    Raises:
        UsageError: at once, if no batch could be drawn from so few transitions.
    """
    if isinstance(buffer, Ring | ReplayBuffer):
        buffer.require(batch_size, max(0, initial) + steps)
    return _batches(buffer, initial, batch_size, steps, tgt_net)


def _batches(
    buffer: ExperienceReplayBuffer | Ring, initial: int, batch_size: int, steps: int, tgt_net: TargetNet | None
) -> Iterator[list[ExperienceFirstLast] | Batch]:
    buffer.populate(initial)
    nets = () if tgt_net is None else (tgt_net.model, tgt_net.target_model)
    while True:
        buffer.populate(steps)
        batch = buffer.sample(batch_size)
        for net in nets:
            if isinstance(net.conv, Normalising) and not net.conv.seen:
                net.conv.normalise_by(net.split(batch.for_net(net.conv.seen.device).states)[0])
        nets = ()
        yield batch


def setup_ignite(
    engine: Engine,
    params: RunParameters,
    exp_source: Any,
    run_name: str,
    extra_metrics: Sequence[str] = (),
    *,
    args: RunOptions | None = None,
    save: Mapping[str, Any] | None = None,
    figures: Mapping[str, "Callable[[], Figure]"] | None = None,
) -> Run:
    """Attach everything that a run needs around its loop: telemetry, stopping, checkpoints, resume.

    Args:
        engine: its process function returns at least {"loss": float}; every value is written as train/<name>, and a
            function among them is asked for it only then.
        params: hyperparameters; stop_reward and max_steps say when to stop, milestone what is noted on the way.
        exp_source: what acts; its finished episodes are counted after every iteration.
        run_name: the script's name.
        extra_metrics: more names of engine.state.metrics to write as train/<name>.
        args: what the command line said; None for a new run with the defaults.
        save: by name, the objects with a state_dict that a checkpoint holds, at least "net"; None for no
            checkpoints. On a resumed run they are brought back here, before this returns. A solved run ends with an
            evaluation of its net in result.json, and with the picture of its curve.
        figures: by name, what draws a picture for TensorBoard, see telemetry.TensorBoard.attach_figures; saved too if
            it has a state_dict.

    Returns:
        The run folder. When the run ends, engine.state.stopped is a key of stopping.EXIT_CODES.

    Raises:
        UsageError: the run to resume is in use, or its episodes cannot be recorded.
        Fault: no checkpoint of the run to resume can be read.
    """
    args = args or RunOptions()
    console.start_console()
    replayer = recording.Replayer(params.env_name) if args.record_every else None
    telemetry.register_events(engine)
    run = Run(run_name, params, args)
    log.info("Run folder: %s", run.path)

    def steps() -> int:
        return getattr(exp_source, "steps_done", engine.state.iteration)  # ptan's own source makes one an iteration

    episodes = telemetry.Episodes(exp_source, steps, params.stop_reward, params.milestone)
    files = telemetry.GrowingFiles(run.path)
    stopper = Stopper(steps, args.stop_after or params.max_steps, args.time_limit)
    speed = timing.Speed(exp_source, steps, params.log_every)
    if hasattr(exp_source, "stop_asked"):
        exp_source.stop_asked = stopper.asked
    remembering = {name: figure for name, figure in (figures or {}).items() if hasattr(figure, "state_dict")}
    state = {"source": exp_source, "episodes": episodes, **(save or {}), **remembering}
    if not getattr(params, "checkpoint_replay", True):
        state.pop("replay", None)

    content = checkpoint.newest(run.checkpoints) if args.resume else None
    if content is not None:
        checkpoint.restore(state, content)
        log.info("Resumed at step %s.", f"{steps():,}")
    elif args.resume and telemetry.last_step(run.path) > params.warm_up:
        raise UsageError(f"{run.path} has learnt, but has no checkpoint; start a new run")
    elif args.resume:
        log.info("Nothing had been learnt yet: the run starts again from its beginning.")
    warm_up = 0 if content is not None and "replay" in content else params.warm_up
    if steps() + warm_up >= stopper.step_limit:
        filling = f", and fills its replay with {warm_up:,} more first" if warm_up else ""
        raise UsageError(f"{run.path} is at step {steps():,} already{filling}; give --stop-after more than that")
    # Only now, when nothing can be refused any more, is a file of the run changed.
    if args.resume:
        run.go_on()
    files.load_state_dict(content["files"] if content is not None else {})
    if args.record_every:
        recording.cut_back(run.path, episodes.count)
    board = telemetry.TensorBoard(run.path)
    files.flush = board.flush
    late = {
        "iteration": checkpoint.Iteration(engine),
        "average": board.average,
        "random": checkpoint.RandomState(),
    }
    resumed = None if content is None else {name: content[name] for name in late}
    content = None  # and with it the second copy of the replay

    # The order of these is the order of what happens when an iteration is completed.
    speed.attach(engine)
    engine.add_event_handler(Events.ITERATION_COMPLETED(every=20), memory.Trimmer())
    stopper.watch_loss(engine)
    episodes.attach(engine)
    board.attach(engine, speed, extra_metrics)
    if figures:
        board.attach_figures(engine, steps, figures)
    if args.evaluate_every and save is not None:
        env = vector_env.single_env(params.env_name)
        evaluating = evaluation.evaluator(Greedy(save["net"], args.device), env, args.seed, stopper.interrupted)
        board.attach_evaluation(evaluating, evaluation.SPREAD, steps)
        evaluation.attach(engine, evaluating, args.evaluate_every, steps, speed.apart)
        engine.add_event_handler(Events.COMPLETED, env.close)
    episode_file = telemetry.EpisodeFile(run.path / "episodes.csv", episodes)
    if replayer is not None and args.record_every:
        native = getattr(exp_source, "native", False)
        recorder = recording.Recorder(
            replayer, run.path, args.record_every, episodes, native, speed.apart, stopper.interrupted
        )
        recorder.on_video = lambda animation, episode: board.write_video(animation, episode.step)
        episode_file.video = lambda: recorder.video
        engine.add_event_handler(EpisodeEvents.EPISODE_COMPLETED, recorder)
        engine.add_event_handler(Events.COMPLETED, replayer.close)
    engine.add_event_handler(EpisodeEvents.EPISODE_COMPLETED, episode_file)
    console.attach_start(engine, speed, warm_up)
    if not args.quiet:
        console.attach_lines(engine, episodes, speed)
        console.attach_bars(engine, exp_source, episodes, stopper.step_limit, warm_up)
    stopper.watch_ends(engine)
    if save is not None:
        checkpoint.attach(engine, state | late | {"files": files}, run.checkpoints, params.checkpoint_every, stopper)

    @engine.on(Events.STARTED)
    def started(engine: Engine) -> None:
        # As the last of its handlers: ignite has reset the iteration and the average by now, and nothing comes
        # after it that draws random numbers.
        if resumed is not None:
            checkpoint.restore(late, resumed)
            if episodes.solved is not None:
                stopper.solved(engine)

    @engine.on(Events.COMPLETED)
    def completed(engine: Engine) -> None:
        stopped = stopper.reason or ENDED
        engine_state: Any = engine.state
        engine_state.stopped = stopped
        result = telemetry.result(engine, stopped, episodes, speed)
        run.write_json("result.json", result)
        frame_skip = getattr(exp_source, "frame_skip", 1)
        checkpoints = None if save is None else run.checkpoints
        described = {"seed": args.seed, "script": run_name} | args.knobs | dataclasses.asdict(params)
        board.write_final(described, result, steps())
        console.log_result(engine, stopped, episodes, speed, frame_skip, checkpoints)
        board.close()
        if hasattr(exp_source, "close"):
            exp_source.close()
        run.close()
        stopper.release_signals()
        if save is not None and stopped == SOLVED:
            with as_ctrl_c():
                try:
                    conclude(Greedy(save["net"], args.device), result)
                except KeyboardInterrupt:
                    log.info(
                        "The evaluation was stopped; the run is solved and saved. Evaluate with --resume %s", run.path
                    )
            log.info("Picture of the curve: %s", evaluation.draw(run.path, params.stop_reward))

    def conclude(policy: Greedy, result: dict[str, Any]) -> None:
        log.info("Evaluation: %d episodes of the plain environment, without exploring.", evaluation.EPISODES)
        env = vector_env.single_env(params.env_name)
        found = evaluation.evaluate(policy, env, seed=args.seed, progress=not args.quiet)
        env.close()
        run.write_json("result.json", result | {"evaluation": found})
        console.log_evaluation(found)

    return run

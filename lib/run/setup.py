"""setup_ignite: attach everything that a run needs around its loop."""

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ignite.engine import Engine, Events

from lib.envs.single_env import make_env
from lib.errors import UsageError
from lib.hyperparameters import RunParameters
from lib.run import checkpoint, console, evaluation, run_folder, videos
from lib.run.curve import draw_curve
from lib.run.episodes import EpisodeFile, Episodes, last_step
from lib.run.events import EpisodeEvents, register_events
from lib.run.growing_files import GrowingFiles
from lib.run.options import RunOptions
from lib.run.policy import GreedyPolicy
from lib.run.result import describe_result
from lib.run.speed import Speed
from lib.run.stopping import ENDED, SOLVED, Stopper, as_ctrl_c
from lib.run.tensorboard import TensorBoard
from lib.system import memory
from lib.system.console_log import start_console
from lib.system.seeds import RandomState

if TYPE_CHECKING:
    from matplotlib.figure import Figure

log = logging.getLogger(__name__)


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
) -> run_folder.Run:
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
    start_console()
    replayer = videos.EpisodeReplayer(params.env_name) if args.record_every else None
    register_events(engine)
    run = run_folder.Run(run_name, params, args)
    log.info("Run folder: %s", run.path)

    def steps() -> int:
        return getattr(exp_source, "steps_done", engine.state.iteration)  # ptan's own source makes one an iteration

    episodes = Episodes(exp_source, steps, params.stop_reward, params.milestone)
    files = GrowingFiles(run.path)
    stopper = Stopper(steps, args.stop_after or params.max_steps, args.time_limit)
    speed = Speed(exp_source, steps, params.log_every)
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
    elif args.resume and last_step(run.path) > params.warm_up:
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
        videos.cut_back(run.path, episodes.count)
    board = TensorBoard(run.path)
    files.flush = board.flush
    late = {
        "iteration": checkpoint.Iteration(engine),
        "average": board.average,
        "random": RandomState(),
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
        env = make_env(params.env_name)
        evaluating = evaluation.evaluator(GreedyPolicy(save["net"], args.device), env, args.seed, stopper.interrupted)
        board.attach_evaluation(evaluating, evaluation.SPREAD, steps)
        evaluation.attach(engine, evaluating, args.evaluate_every, steps, speed.apart)
        engine.add_event_handler(Events.COMPLETED, env.close)
    episode_file = EpisodeFile(run.path / "episodes.csv", episodes)
    if replayer is not None and args.record_every:
        native = getattr(exp_source, "native", False)
        recorder = videos.Recorder(
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
        result = describe_result(engine, stopped, episodes, speed)
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
                    conclude(GreedyPolicy(save["net"], args.device), result)
                except KeyboardInterrupt:
                    log.info(
                        "The evaluation was stopped; the run is solved and saved. Evaluate with --resume %s", run.path
                    )
            log.info("Picture of the curve: %s", draw_curve(run.path, params.stop_reward))

    def conclude(policy: GreedyPolicy, result: dict[str, Any]) -> None:
        log.info("Evaluation: %d episodes of the plain environment, without exploring.", evaluation.EPISODES)
        env = make_env(params.env_name)
        found = evaluation.evaluate(policy, env, seed=args.seed, progress=not args.quiet)
        env.close()
        run.write_json("result.json", result | {"evaluation": found})
        console.log_evaluation(found)

    return run

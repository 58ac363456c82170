"""Command lines of new and resumed runs, and the names of runs."""

import dataclasses
import json
import pickle

import pytest

from finished_runs import edit_params
from lib import cli
from lib.errors import UsageError
from lib.hyperparameters import HYPERPARAMS, PPO_FAST_HYPERPARAMS, PPO_HYPERPARAMS
from lib.run import arguments
from lib.run.folder import new_folder, write_json
from running import PROJECT

PONG = HYPERPARAMS["pong"]
TUNED = PROJECT / "configs/pong-cpu.json"


def parser(table=HYPERPARAMS, named=None):
    """Return the parser of a script with some options of its own."""
    parser = cli.parser("Summary.\n\nRest.", table, named)
    parser.add_argument("--envs", type=cli.positive, default=3)
    parser.add_argument("--speed", choices=("low", "high"), default="low")
    parser.add_argument("--without", choices=("noisy", "double"), action="append", default=[])
    parser.add_argument("--fast", action="store_true")
    cli.add_env_options(parser)
    cli.add_engine_options(parser)
    return parser


def resolve(*argv, script="02_n_envs", **options):
    return arguments.resolve(parser(**options), list(map(str, argv)), script)


@pytest.fixture
def config(tmp_path):
    """Function that writes a --config file and returns its path."""

    def write(**content):
        (tmp_path / "mine.json").write_text(json.dumps(content))
        return tmp_path / "mine.json"

    return write


@pytest.fixture
def run(tmp_path):
    """The folder of a run with --seed 7 --set batch_size=8 --envs 4 --without noisy."""
    new = ("--seed", 7, "--set", "batch_size=8", "--envs", 4, "--without", "noisy")
    path = new_folder(tmp_path, "pong-02_n_envs")
    write_json(path / "params.json", arguments.describe("02_n_envs", *resolve(*new)))
    return path


def test_a_script_has_the_books_hyperparameters_and_its_options_as_attributes():
    params, args = resolve()
    assert params == PONG
    assert (args.envs, args.without, args.seed, args.game) == (3, [], 1, "pong")
    assert resolve("--game", "breakout")[0] == HYPERPARAMS["breakout"]
    assert resolve("--set", "run_name=5")[0].run_name == "5"
    with pytest.raises(AttributeError, match="no option 'players'"):
        _ = args.players
    assert pickle.loads(pickle.dumps(args)) == args  # the options are sent to other processes


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ["--set", "batchsize=3"],
            "--set takes FIELD=VALUE (see --set help), not 'batchsize=3'; did you mean batch_size=...?",
        ),
        (["--set", "lr=3"], "not 'lr=3'; did you mean learning_rate=...?"),
        (["--set", "batch_size=3.5"], "batch_size is 3.5; it has to be a whole number, at least 1 (see --set help)"),
        (["--set", "env_name=Acrobot-v1"], "would keep the goal and the name of another game; use --env-id"),
        (["--game", "chess"], "invalid choice: 'chess' (choose from 'pong', 'breakout-small', 'breakout', 'invaders')"),
        (["--env-arg", "size=3"], "--env-arg needs --env-id"),
        (["--device", "abacus"], "finds no device 'abacus' on this machine; use one of cpu"),
        (["--seed", "5000000000"], "'5000000000' is not a whole number, at least 0 and at most 2147483647"),
    ],
)
def test_wrong_use_is_reported_in_one_line_with_the_allowed_values(argv, message):
    with pytest.raises(UsageError) as error:
        resolve(*argv)
    assert message in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_ppo_has_plain_settings_for_another_environment_unless_a_game_is_given():
    table = PPO_FAST_HYPERPARAMS
    own, args = resolve("--env-id", "CartPole-v1", table=table)
    assert own == dataclasses.replace(
        table["vectors"], env_name="CartPole-v1", run_name="CartPole-v1", stop_reward=475.0
    )
    for env_id, game in {"fakes:Board-v0": "own", "fakes:Parts-method-v0": "vectors", "Pendulum-v1": "vectors"}.items():
        assert resolve("--env-id", env_id, table=table)[1].game == game
    assert args.changes == ""
    assert resolve("--env-id", "CartPole-v1", "--game", "pong", table=table)[0].gamma == table["pong"].gamma
    for env_id, clip in {"CartPole-v1": 0.2, "QbertNoFrameskip-v4": 0.1, "fakes:ShortPong-v0": 0.1}.items():
        assert resolve("--env-id", env_id, table=PPO_HYPERPARAMS)[0].clip == clip  # textbook PPO has two sets
    with pytest.raises(UsageError, match="needs --env-id"):
        resolve("--game", "own", table=table)


def test_another_environment_has_the_goal_that_it_is_registered_with_unless_another_is_set():
    assert resolve("--env-id", "CartPole-v1")[0].stop_reward == 475.0
    assert resolve("--env-id", "CartPole-v1", "--set", "stop_reward=2")[0].stop_reward == 2.0
    assert resolve("--env-id", "examples.snake:Snake")[0].stop_reward == 7.0  # gymnasium makes the newest version
    params = resolve("--env-id", "ALE/Freeway-v5")[0]
    assert (params.run_name, params.stop_reward, params.milestone) == ("ALE-Freeway-v5", None, None)


def test_arguments_of_the_constructor_are_part_of_the_id_and_recorded():
    arguments = [word for each in ("zoom=12", "wind=8x8", "rest=[0, ':']", "dry=false") for word in ("--env-arg", each)]
    params, _ = resolve("--env-id", "fakes:Catch-v0", *arguments)
    assert params.env_name == "fakes:Catch-v0(zoom=12, wind='8x8', rest=[0, ':'], dry=False)"
    assert resolve("--env-id", params.env_name, "--env-arg", "zoom=13")[0].env_name.startswith("fakes:Catch-v0(zoom=13")
    assert params.run_name == "fakes-Catch-v0-zoom-12-wind-8x8-rest-0-dry-False"


def test_a_config_sets_hyperparameters_and_options_and_the_command_line_wins(config):
    file = config(replay_initial=200_000, gamma=0.9, envs=5, speed="high", without=["noisy"], fast=True)
    params, args = resolve("--config", file, "--set", "gamma=0.95", "--set", "replay_size=300000", "--speed", "low")
    assert (params.replay_initial, params.gamma) == (200_000, 0.95)
    assert (args.envs, args.speed, args.without, args.fast) == (5, "low", ["noisy"], True)
    for content, message in (
        ({"replay_initial": 200_000}, "replay_initial is 200000; it has to be at most replay_size"),
        ({"gama": 0.9, "envs": 2}, "gama is unknown; the names are env_name, "),
        ({"envs": 0}, "argument --envs: '0' is not a whole number, at least 1"),
    ):
        with pytest.raises(UsageError, match=message):
            resolve("--config", config(**content))


def test_only_env_id_and_game_decide_about_the_environment(config):
    """Otherwise the goal and the name of the run would be those of another environment."""
    file = config(env_name="CartPole-v1", stop_reward=300.0, gamma=0.5)
    message = "its env_name is 'CartPole-v1', and this run plays PongNoFrameskip-v4; give --game or --env-id"
    with pytest.raises(UsageError, match=message):
        resolve("--config", file)
    assert resolve("--config", file, "--env-id", "CartPole-v1")[0].stop_reward == 300.0
    params = resolve("--config", file, "--env-id", "MountainCar-v0")[0]
    assert (params.env_name, params.gamma, params.stop_reward) == ("MountainCar-v0", 0.5, -110.0)


def test_the_settings_of_a_run_can_be_used_again_and_are_explained(run, capsys):
    params, args = resolve("--config", run / "params.json", "--seed", 9)
    assert params == dataclasses.replace(PONG, batch_size=8)
    assert (args.envs, args.without, args.seed) == (4, ["noisy"], 9)
    with pytest.raises(SystemExit) as end:
        resolve("--resume", run, "--set", "help")
    assert end.value.code == 0
    assert "batch_size=8                transitions sampled per" in capsys.readouterr().out


def test_a_resume_takes_all_settings_from_the_run_and_accepts_equal_ones(run):
    params, args = resolve("--resume", run)
    assert (params.batch_size, args.seed, args.game, args.envs, args.without) == (8, 7, "pong", 4, ["noisy"])
    again = ("--seed", 7, "--set", "batch_size=8", "--envs", 4, "--without", "noisy", "--config", run / "params.json")
    assert resolve("--resume", run.name, "--runs-dir", run.parent, *again) == (
        params,
        dataclasses.replace(args, runs_dir=run.parent),
    )


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--set", "batch_size=16"], "batch_size is 8, not 16"),
        (["--envs", "3"], "envs is 4, not 3"),  # the default, but given explicitly
        (["--without", "double"], r"without is \['noisy'\], not \['noisy', 'double'\]"),
        (["--config", str(TUNED)], "replay_initial is 10000, not 5000; .*huber is False, not True"),
    ],
)
def test_a_resume_rejects_other_settings(run, argv, message):
    with pytest.raises(UsageError, match=f"has other settings: .*{message}"):
        resolve("--resume", run, *argv)


def test_a_resume_uses_the_default_of_an_option_that_was_added_later(run, config):
    edit_params(run, lambda params: params.update(knobs={}))
    assert resolve("--resume", run)[1].envs == 3
    for argv in (["--envs", 5], ["--config", config(envs=5)]):
        with pytest.raises(UsageError, match="envs is 3, not 5"):
            resolve("--resume", run, *argv)


def test_a_resume_may_change_options_on_which_no_result_depends(run):
    edit_params(run, lambda params: params["knobs"].update(async_envs=True, address="10.0.0.1:6379", patience=5))
    args = resolve("--resume", run)[1]
    assert (args.async_envs, args.patience) == (True, 5)
    assert args.address is None  # the cluster's nodes run code here, so it has to be given again
    args = resolve("--resume", run, "--no-async-envs", "--engine", "inline", "--patience", 9)[1]
    assert (args.async_envs, args.engine, args.patience) == (False, "inline", 9)


def test_a_resume_rejects_a_run_of_another_script_or_version(run):
    with pytest.raises(UsageError, match=r"02_n_envs\.py; resume it with that script, not 00_slow_grads\.py"):
        resolve("--resume", run, script="00_slow_grads")
    edit_params(run, lambda params: params["hyperparameters"].update(warp=9))
    with pytest.raises(UsageError, match="another version of this project"):
        resolve("--resume", run)


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ([], ""),
        (["--envs", 5, "--fast", "--without", "noisy", "--without", "double"], "-envs=5-without=noisy+double-fast"),
        (["--set", "learning_rate=0.0003", "--set", "huber=true", "--seed", 7], "-learning_rate=0.0003-huber-seed7"),
        (["--config", TUNED, "--set", "gamma=0.9", "--envs", 5], "-pong-cpu-envs=5-gamma=0.9"),
        (["--address", "10.0.0.1:6379/x", "--async-envs"], ""),
    ],
)
def test_a_name_says_what_was_changed(argv, expected):
    assert resolve(*argv)[1].changes == expected
    assert resolve(*argv, named="speed")[1].changes == f"=low{expected}"


def test_long_names_are_cut_and_keep_the_seed():
    fields = [word for name in ("learning_rate_final", "learning_rate") for word in ("--set", f"{name}=1.23456789e-5")]
    fields += [word for name in ("replay_size", "target_net_sync", "max_steps") for word in ("--set", f"{name}=123456")]
    long = resolve(*fields, "--set", "epsilon_frames=123456", "--seed", 7)[1].changes
    assert (len(long), long[-6:]) == (130, "-seed7")
    assert resolve("--env-id", f"{'A' * 120}-v0")[0].run_name == "A" * 60

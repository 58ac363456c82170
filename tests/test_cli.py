import argparse
import contextlib
import dataclasses
import errno
import json
import os
import pickle
from datetime import date
from pathlib import Path

import pytest
import torch

from finished_runs import edit_params
from lib import cli
from lib.errors import UsageError
from lib.hyperparameters import HYPERPARAMS, PPO_FAST_HYPERPARAMS, PPO_HYPERPARAMS
from lib.run.folder import RunFolder, read_params
from lib.run.options import RunOptions
from lib.run.overrides import explain


def resolve(*argv, script="01_baseline", knob=None):
    """Resolve the command line of a script.

    Args:
        argv: the command line.
        script: name of the script.
        knob: default of --envs, if the script has that option.
    """
    parser = cli.parser("Summary.\n\nRest.")
    if knob is not None:
        parser.add_argument("--envs", type=int, default=knob)
    return cli.resolve(parser, list(argv), script)


def test_defaults():
    params, args = resolve()
    assert params == HYPERPARAMS["pong"]
    assert args == RunOptions(owns_process=True)


@pytest.mark.parametrize("game", HYPERPARAMS)
def test_every_game_is_reachable(game):
    params, args = resolve("--game", game)
    assert params == HYPERPARAMS[game]
    assert args.game == game


@pytest.mark.parametrize(
    ("assignment", "field", "value"),
    [
        ("batch_size=64", "batch_size", 64),
        ("replay_size=1e6", "replay_size", 1_000_000),
        ("gamma=0.5", "gamma", 0.5),
        ("stop_reward=-3", "stop_reward", -3.0),
        ("stop_reward=None", "stop_reward", None),
        ("milestone=none", "milestone", None),
        ("milestone=16", "milestone", 16.0),
        ("checkpoint_replay=False", "checkpoint_replay", False),
        ("run_name=mine", "run_name", "mine"),
    ],
)
def test_set_overrides_any_field(assignment, field, value):
    params, _ = resolve("--set", assignment)
    assert getattr(params, field) == value
    assert type(getattr(params, field)) is type(value)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--set", "batchsize=3"], "no field 'batchsize'; the fields are env_name, stop_reward"),
        (["--set", "gamma"], "takes FIELD=VALUE, not 'gamma'"),
        (["--set", "batch_size=3.5"], "batch_size takes a whole number"),
        (["--set", "batch_size=inf"], "batch_size takes a whole number"),
        (["--set", "batch_size=-1"], "batch_size is -1; it has to be at least 1"),
        (["--set", "gamma=high"], "gamma takes a number"),
        (["--set", "checkpoint_replay=maybe"], "checkpoint_replay takes true or false"),
        (["--game", "chess"], "unknown game 'chess'; choose one of pong, breakout-small, breakout, invaders"),
        (["--device", "abacus"], "unknown device 'abacus'; use cpu, cuda"),
        (["--device", "meta"], "unknown device 'meta'"),
        (["--stop-after", "10000"], "within the warm-up of 10000 steps"),
        (["--stop-after", "0"], "0 is below 1"),
        (["--seed", "-1"], "-1 is not between 0 and 4294967295"),
        (["--seed", "5000000000"], "5000000000 is not between 0 and 4294967295"),
        (["--seed", "one"], "argument --seed: 'one' is not a whole number"),
        (["--stop-after", "1.5e0"], "argument --stop-after: '1.5e0' is not a whole number"),
        (["--stop-after", "inf"], "argument --stop-after: 'inf' is not a whole number"),
        (["--set", "replay_size=1e306"], "replay_size takes a whole number that fits in 64 bits"),
        (["--env-id", ""], "--env-id '' names no environment"),
        (["--set", "stop_reward=inf"], "stop_reward is inf; it has to be none or between -1e30 and 1e30"),
        (["--set", "max_steps=9000"], "max_steps is 9000; it has to be above replay_initial, 10000"),
        (["--set", "replay_initial=31"], "batch_size is 32; it has to be at most replay_initial, 31"),
        (["--set", f"run_name={'x' * 101}"], "run_name is"),
        (["--set", "learning_rate=3e38"], "learning_rate is 3e+38"),
        (["--runs-dir", __file__], "is not a folder"),
        (["--runs-dir", ""], "argument --runs-dir: the folder's name is empty"),
        (["--resume", "no-such-run"], "no run 'no-such-run'"),
        (["--resume", str(Path(__file__).parent)], "not a run: it has no params.json"),
        (["--gam", "pong"], "unrecognized arguments: --gam pong"),
    ],
)
def test_wrong_use_is_reported_in_one_line_with_the_allowed_values(argv, message):
    with pytest.raises(UsageError) as error:
        resolve(*argv)
    assert message in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_set_checks_the_hyperparameters_of_ppo():
    parser = cli.parser("Summary.", PPO_HYPERPARAMS)
    with pytest.raises(UsageError, match=r"clip is 1\.5; "):
        cli.resolve(parser, ["--set", "clip=1.5"], "01_ppo")


@pytest.mark.parametrize("table", [PPO_HYPERPARAMS, PPO_FAST_HYPERPARAMS])
def test_ppo_has_plain_settings_for_another_environment_unless_a_game_is_given(table):
    parser = cli.parser("Summary.", table)
    own, args = cli.resolve(parser, ["--env-id", "CartPole-v1"], "01_ppo")
    assert own == dataclasses.replace(table["own"], env_name="CartPole-v1", run_name="CartPole-v1", stop_reward=475.0)
    assert args.changes == ""
    of_pong, _ = cli.resolve(parser, ["--env-id", "CartPole-v1", "--game", "pong"], "01_ppo")
    assert of_pong.gamma == table["pong"].gamma
    with pytest.raises(UsageError, match="needs --env-id"):
        cli.resolve(parser, ["--game", "own"], "01_ppo")


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
@pytest.mark.parametrize("argv", [["--cuda"], ["--device", "cuda:1"]])
def test_a_missing_gpu_is_reported_with_the_cpu_as_the_alternative(argv):
    with pytest.raises(UsageError, match="use the device cpu"):
        resolve(*argv)


def test_another_environment_has_the_goal_that_it_is_registered_with_unless_another_is_set():
    assert resolve("--env-id", "CartPole-v1")[0].stop_reward == 475.0
    assert resolve("--env-id", "CartPole-v1", "--set", "stop_reward=2")[0].stop_reward == 2.0
    assert resolve("--env-id", "CartPole-v1", "--set", "stop_reward=none")[0].stop_reward is None
    assert resolve("--env-module", "examples.snake", "--env-id", "Snake-v0")[0].stop_reward == 7.0
    assert resolve("--env-id", "examples.snake:Snake")[0].stop_reward == 7.0  # gymnasium makes the newest version


def test_a_config_decides_about_the_goal_of_another_environment(tmp_path):
    config = tmp_path / "config.json"
    config.write_text('{"stop_reward": 300, "milestone": 200, "run_name": "mine", "env_name": "Acrobot-v1"}')
    params, _ = resolve("--env-id", "CartPole-v1", "--config", str(config))
    assert (params.stop_reward, params.milestone, params.run_name) == (300, 200, "mine")
    assert params.env_name == "CartPole-v1"  # the command line decides about the environment


def test_set_overrides_a_config_before_both_are_checked(tmp_path):
    config = tmp_path / "config.json"
    config.write_text('{"replay_initial": 200000, "gamma": 5}')
    params, _ = resolve("--config", str(config), "--set", "replay_size=300000", "--set", "gamma=0.9")
    assert (params.replay_initial, params.gamma) == (200_000, 0.9)
    with pytest.raises(UsageError, match=r"^--config and --set: replay_initial"):
        resolve("--config", str(config), "--set", "gamma=0.9")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"envs": 0}', "envs: 0 is below 1"),
        ('{"envs": true}', "envs is True; it has to be a number"),
        ('{"envs": [1]}', r"envs is \[1\]; it has to be a number"),
        ('{"address": 7}', "address is 7; it has to be text"),
    ],
)
def test_a_wrong_option_in_a_config_is_named(tmp_path, content, message):
    config = tmp_path / "config.json"
    config.write_text(content)
    parser = cli.parser("Summary.")
    parser.add_argument("--envs", type=cli.positive, default=1)
    parser.add_argument("--address", default=None)
    with pytest.raises(UsageError, match=message):
        cli.resolve(parser, ["--config", str(config)], "01_baseline")


def test_a_script_that_returns_no_state_is_told_what_to_return(monkeypatch):
    def train(params, args):
        pass

    monkeypatch.setattr("sys.argv", ["own.py"])
    monkeypatch.setattr(cli, "exit_codes", contextlib.nullcontext)
    monkeypatch.setattr(cli, "prepare", lambda seed: None)
    with pytest.raises(TypeError, match=r"train returned None; its last line has to be: return engine\.run"):
        cli.main(train, cli.parser("Summary."), "own")


def parser_of_players():
    """Return the parser of a script whose players are in other processes with --parallel only."""
    parser = cli.parser("Summary.")
    parser.add_argument("--parallel", action="store_true")
    cli.add_engine_options(parser, "players", "block")
    return parser


@pytest.mark.parametrize("option", [("--engine", "ray"), ("--address", "127.0.0.1:1"), ("--patience", "5")])
def test_an_engine_is_refused_if_nobody_plays_elsewhere(option):
    with pytest.raises(UsageError, match="go with --parallel"):
        cli.resolve(parser_of_players(), option, "04_wrappers")


def test_an_engine_is_refused_if_nobody_plays_elsewhere_in_a_resumed_run(run):
    with pytest.raises(UsageError, match="go with --parallel"):
        cli.resolve(parser_of_players(), ["--resume", str(run), "--engine", "ray"], "01_baseline")


def test_a_script_may_have_an_option_parallel_of_its_own():
    parser = cli.parser("Summary.")
    parser.add_argument("--parallel", action="store_true")
    assert not cli.resolve(parser, [], "own")[1].parallel


@pytest.mark.parametrize("more", [("--stop-after", "5"), ("--engine", "ray")])
def test_hyperparameters_are_explained_before_other_options_are_checked(capsys, more):
    with pytest.raises(SystemExit) as ended:
        cli.resolve(parser_of_players(), ["--set", "help", *more], "04_wrappers")
    assert ended.value.code == 0
    assert "learning_rate" in capsys.readouterr().out


def test_a_script_without_tuned_hyperparameters_says_so_and_uses_its_own(caplog):
    assert resolve("--params", "best")[1].changes.startswith("-best")
    assert not caplog.messages
    params, args = cli.resolve(cli.parser("Summary.", PPO_HYPERPARAMS), ["--params", "best"], "01_ppo")
    assert args.changes == ""
    assert params == PPO_HYPERPARAMS["pong"]
    assert [message for message in caplog.messages if "--params best has no effect" in message]


def test_the_name_of_a_run_shows_a_goal_that_was_changed():
    assert resolve("--env-id", "CartPole-v1")[1].changes == ""
    assert resolve("--env-id", "CartPole-v1", "--set", "stop_reward=14")[1].changes == "-stop_reward=14"
    assert resolve("--set", "milestone=none")[1].changes == "-milestone=None"


def test_a_script_without_settings_for_own_environments_lists_its_games():
    with pytest.raises(UsageError, match="unknown game 'own'; choose one of pong"):
        resolve("--game", "own")


def test_an_environment_without_a_registered_goal_has_none():
    params, _ = resolve("--env-id", "ALE/Freeway-v5")
    assert (params.env_name, params.run_name) == ("ALE/Freeway-v5", "ALE-Freeway-v5")
    assert (params.stop_reward, params.milestone) == (None, None)


def test_a_script_reads_its_own_option_as_an_attribute():
    _, args = resolve("--envs", "5", knob=3)
    assert args.envs == 5
    with pytest.raises(AttributeError, match="no option 'players'"):
        _ = args.players
    assert pickle.loads(pickle.dumps(args)) == args  # the options are sent to other processes


@pytest.fixture
def run(tmp_path):
    """The folder of a run of 01_baseline with --seed 7 --set batch_size=8 --envs 4."""
    params, args = resolve("--seed", "7", "--set", "batch_size=8", "--runs-dir", str(tmp_path), "--envs", "4", knob=3)
    run = RunFolder("01_baseline", params, args)
    run.close()
    return run.path


def test_a_resume_takes_all_settings_from_the_run(run):
    params, args = resolve("--resume", str(run), knob=3)
    assert (params.batch_size, args.seed, args.game, args.envs) == (8, 7, "pong", 4)
    by_name = resolve("--resume", run.name, "--runs-dir", str(run.parent), "--set", "batch_size=8", knob=3)
    assert by_name[0] == params
    assert by_name[1].resume == args.resume == run


def test_a_resume_refuses_a_config_of_the_scripts_own_options_as_well(run, tmp_path):
    config = tmp_path / "config.json"
    config.write_text('{"envs": 5}')
    for option, value in (("--config", str(config)), ("--params", "common"), ("--params", "best")):
        with pytest.raises(UsageError, match="keeps its hyperparameters; leave out --params, --config"):
            resolve("--resume", str(run), option, value, knob=3)


def test_the_settings_of_a_run_can_be_used_again(run):
    params, args = resolve("--config", str(run / "params.json"), "--seed", "9", knob=3)
    recorded = read_params(run)
    assert dataclasses.asdict(params) == recorded["hyperparameters"]
    assert (args.envs, args.seed) == (4, 9)


@pytest.mark.parametrize("table", [HYPERPARAMS, PPO_HYPERPARAMS, PPO_FAST_HYPERPARAMS])
def test_every_hyperparameter_is_explained(table):
    lines = explain(table["pong"]).splitlines()
    starts = [line.partition("=")[0] for line in lines if not line.startswith(" ")]
    assert starts == [field.name for field in dataclasses.fields(table["pong"])]
    assert all(line[28:].strip() for line in lines)


def test_set_help_shows_the_values_of_this_command_line(capsys):
    with pytest.raises(SystemExit) as end:
        resolve("--set", "help", "--set", "gamma=0.5")
    assert end.value.code == 0
    assert "gamma=0.5                   discount factor, 0 to 1." in capsys.readouterr().out


def test_the_settings_of_a_run_on_another_environment_leave_out_its_goal(run):
    edit_params(run, lambda params: params["hyperparameters"].update(gamma=0.5))
    params, _ = resolve("--env-id", "CartPole-v1", "--config", str(run / "params.json"), knob=3)
    assert (params.env_name, params.run_name, params.stop_reward) == ("CartPole-v1", "CartPole-v1", 475.0)
    assert params.gamma == 0.5
    with pytest.raises(UsageError, match="its env_name is 'PongNoFrameskip-v4', and this run plays Breakout"):
        resolve("--game", "breakout", "--config", str(run / "params.json"), knob=3)


def test_the_settings_of_a_run_may_have_options_of_its_preprocessing(run):
    edit_params(run, lambda params: params["hyperparameters"].update(env_name="PongNoFrameskip-v4?stack=2"))
    assert resolve("--config", str(run / "params.json"), knob=3)[0].env_name == "PongNoFrameskip-v4"


def test_set_help_explains_a_resumed_run(run, capsys):
    with pytest.raises(SystemExit) as end:
        resolve("--resume", str(run), "--set", "help", knob=3)
    assert end.value.code == 0
    assert "batch_size=8 " in capsys.readouterr().out


def test_an_option_is_not_taken_for_a_hyperparameter():
    with pytest.raises(UsageError, match=r"envs is an option; see 01_baseline.py --help"):
        resolve("--set", "envs=2", knob=3)
    with pytest.raises(UsageError, match="seed is an option"):
        resolve("--set", "seed=2")


def test_only_env_id_and_game_decide_about_the_environment(tmp_path):
    """Otherwise the goal and the name of the run would be those of another environment."""
    config = tmp_path / "config.json"
    config.write_text('{"env_name": "CartPole-v1", "stop_reward": 475.0}')
    message = "its env_name is 'CartPole-v1', and this run plays PongNoFrameskip-v4; give --game or --env-id"
    with pytest.raises(UsageError, match=message):
        resolve("--config", str(config))
    with pytest.raises(UsageError, match="--set env_name would keep the goal and the name of another game"):
        resolve("--set", "env_name=Acrobot-v1")


def test_a_resume_uses_the_default_of_an_option_that_was_added_later(run):
    edit_params(run, lambda params: params.update(knobs={}))
    assert resolve("--resume", str(run), knob=3)[1].envs == 3
    with pytest.raises(UsageError, match="--envs is 3, not 5"):
        resolve("--resume", str(run), "--envs", "5", knob=3)


def test_a_resume_takes_the_values_of_a_repeated_option_in_any_order(tmp_path):
    parser = cli.parser("Summary.")
    parser.add_argument("--without", action="append", default=[])
    params, args = cli.resolve(parser, ["--runs-dir", str(tmp_path), "--without", "a", "--without", "b"], "01_ppo")
    run = RunFolder("01_ppo", params, args)
    run.close()
    resumed = ["--resume", str(run.path), "--without", "b", "--without", "b", "--without"]
    assert cli.resolve(parser, [*resumed, "a"], "01_ppo")[1].without == ["a", "b"]
    with pytest.raises(UsageError, match="has other settings: --without is"):
        cli.resolve(parser, [*resumed, "c"], "01_ppo")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--set", "batch_size=16"], "batch_size is 8, not 16"),
        (["--seed", "8"], "seed is 7, not 8"),
        (["--game", "breakout"], "game is 'pong', not 'breakout'"),
        (["--env-id", "ALE/Freeway-v5"], "env_name is 'PongNoFrameskip-v4'"),
        (["--envs", "5"], "envs is 4, not 5"),
        (["--envs", "3"], "envs is 4, not 3"),  # the default, but given explicitly
    ],
)
def test_a_resume_rejects_other_settings(run, argv, message):
    with pytest.raises(UsageError, match="has other settings") as error:
        resolve("--resume", str(run), *argv, knob=3)
    assert message in str(error.value)


def test_a_resume_rejects_a_run_of_another_script(run):
    with pytest.raises(UsageError, match=r"01_baseline\.py; resume it with that script, not 00_slow_grads\.py"):
        resolve("--resume", str(run), script="00_slow_grads", knob=3)


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "cannot be read"), ("[]", "holds list, not a JSON object"), ("{}", "its format is None")],
)
def test_a_resume_rejects_a_params_json_of_another_program(run, content, message):
    (run / "params.json").write_text(content)
    with pytest.raises(UsageError, match=message):
        resolve("--resume", str(run), knob=3)


def test_a_resume_rejects_unknown_hyperparameters(run):
    edit_params(run, lambda params: params["hyperparameters"].update(warp=9))
    with pytest.raises(UsageError, match="another version of this project"):
        resolve("--resume", str(run), knob=3)


def test_a_fast_ppo_run_of_an_earlier_version_keeps_the_old_limit_of_its_learning_rate(tmp_path):
    options = RunOptions(runs_dir=tmp_path)
    run = RunFolder("02_ppo_fast", PPO_FAST_HYPERPARAMS["freeway"], options)
    run.close()
    edit_params(run.path, lambda params: params["hyperparameters"].pop("learning_rate_max"))
    parser = cli.parser("Summary.", PPO_FAST_HYPERPARAMS)
    params, _ = cli.resolve(parser, ["--resume", str(run.path)], "02_ppo_fast")
    assert dataclasses.asdict(params)["learning_rate_max"] == 0.01


def test_a_config_of_a_run_without_an_adaptive_rate_leaves_its_limit_alone(tmp_path):
    run = RunFolder("01_ppo", PPO_HYPERPARAMS["freeway"], RunOptions(runs_dir=tmp_path))
    run.close()
    argv = ["--config", str(run.path / "params.json"), "--game", "freeway"]
    params, _ = cli.resolve(cli.parser("Summary.", PPO_FAST_HYPERPARAMS), argv, "02_ppo_fast")
    assert dataclasses.asdict(params)["learning_rate_max"] == 0.001


def test_a_resume_accepts_other_values_of_free_options(run):
    parser = cli.parser("Summary.")
    cli.add_env_option(parser)
    parser.add_argument("--envs", type=int, default=3)
    assert cli.resolve(parser, ["--resume", str(run), "--async-envs"], "01_baseline")[1].async_envs
    assert not cli.resolve(parser, ["--resume", str(run)], "01_baseline")[1].async_envs
    edit_params(run, lambda params: params["knobs"].update(async_envs=True))
    assert cli.resolve(parser, ["--resume", str(run)], "01_baseline")[1].async_envs
    assert not cli.resolve(parser, ["--resume", str(run), "--no-async-envs"], "01_baseline")[1].async_envs


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"dest": "clip", "action": "store_false"}, [[], ["--own"]]),
        ({"action": "store_const", "const": 0.5}, [[], ["--own"]]),
        ({"action": "count", "default": 0}, [[], ["--own", "--own"]]),
        ({"action": argparse.BooleanOptionalAction}, [[], ["--own"], ["--no-own"]]),
        ({"default": 1.5}, [[]]),
        ({"nargs": "+", "type": int, "default": (64, 64)}, [[], ["--own", "32"]]),
        ({"nargs": 2, "type": float, "action": "append"}, [[], ["--own", "1", "2", "--own", "3", "4"]]),
        ({"nargs": "+", "action": "extend"}, [["--own", "a", "b", "--own", "c"]]),
        ({"nargs": "?", "const": 3, "type": int}, [[], ["--own"], ["--own", "4"]]),
        ({"type": lambda text: [int(part) for part in text.split(",")]}, [["--own", "64,32"]]),
        ({"type": lambda text: float(text.rstrip("%")) / 100}, [["--own", "50%"]]),
        ({"type": json.loads}, [["--own", '{"a": 1}'], ["--own", "true"]]),
        ({"type": str.lower}, [["--own", "B"]]),
        ({"type": date.fromisoformat}, [["--own", "2026-01-02"]]),
    ],
)
def test_a_resume_keeps_the_value_of_any_kind_of_option_of_a_readers_script(tmp_path, option, words):
    parser = cli.parser("Summary.")
    parser.add_argument("--own", **option)
    for number, given in enumerate(words):
        params, options = cli.resolve(parser, [*given, "--runs-dir", str(tmp_path / str(number))], "own")
        run = RunFolder("own", params, options)
        run.close()
        resumed = cli.resolve(parser, ["--resume", str(run.path)], "own")[1]
        assert (repr(resumed.knobs), resumed.changes) == (repr(options.knobs), "")
        assert cli.resolve(parser, ["--resume", str(run.path), *given], "own")[1].knobs == resumed.knobs


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ({"action": "store_const", "const": 0.5}, 0.7),
        ({"action": "count", "default": 0}, True),
        ({"nargs": "+", "type": int}, ["many"]),
        ({"nargs": "+", "type": int}, 3),
    ],
)
def test_a_resume_refuses_a_recorded_value_that_the_option_cannot_have(run, option, value):
    edit_params(run, lambda params: params["knobs"].update(own=value))
    parser = cli.parser("Summary.")
    parser.add_argument("--envs", type=int)
    parser.add_argument("--own", **option)
    with pytest.raises(UsageError, match="has a wrong own: "):
        cli.resolve(parser, ["--resume", str(run)], "01_baseline")


def test_the_names_of_the_actors_options_are_free_in_a_script_without_actors(tmp_path):
    parser = cli.parser("Summary.")
    parser.add_argument("--address", default="localhost:1")
    parser.add_argument("--patience", type=int, default=10)
    argv = ["--address", "game:5000", "--patience", "20", "--runs-dir", str(tmp_path)]
    params, options = cli.resolve(parser, argv, "own")
    assert "patience=20" in options.changes
    run = RunFolder("own", params, options)
    run.close()
    assert cli.resolve(parser, ["--resume", str(run.path)], "own")[1].knobs == options.knobs
    with pytest.raises(UsageError, match="--patience is 20, not 30"):
        cli.resolve(parser, ["--resume", str(run.path), "--patience", "30"], "own")


@pytest.mark.parametrize(
    ("argv", "facts"),
    [
        (["--env-module", "fakes"], ("--env-module fakes", "--env-id")),
        (["--env-module", "fakes", "--env-id", "a:B-v0"], ("--env-id a:B-v0", "--env-module fakes")),
    ],
)
def test_a_module_needs_the_id_that_it_registers(argv, facts):
    with pytest.raises(UsageError) as error:
        resolve(*argv)
    assert all(fact in str(error.value) for fact in facts)


def test_the_module_and_the_id_are_joined():
    assert resolve("--env-module", "fakes", "--env-id", "B-v0")[0].env_name == "fakes:B-v0"


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (
            errno.ENOSPC,
            "No space left on device: a/b. Files that were saved before are kept. To go on, make room; then",
        ),
        (errno.EIO, "Input/output error: a/b. Files that were saved before are kept"),
        (errno.ENOENT, "No such file or directory: a/b. If it or its folder was deleted or moved, put it back"),
    ],
)
def test_an_error_of_the_system_prints_one_line_that_says_what_is_kept(capsys, number, message):
    with pytest.raises(SystemExit) as end, cli.exit_codes():
        raise OSError(number, os.strerror(number), "a/b")
    assert end.value.code == 1
    assert capsys.readouterr().err.startswith(f"error: {message}")

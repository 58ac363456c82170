import dataclasses
import json

import gymnasium as gym
import pytest

from lib import cli
from lib.errors import UsageError
from lib.hyperparameters import BEST_HYPERPARAMS, HYPERPARAMS
from lib.run.folder import LONGEST_NAME
from lib.run.run_name import MAX_LENGTH, WITH_RUN_NAME, changes_in_name

PONG = HYPERPARAMS["pong"]


def name(knobs=None, defaults=None, named=None, kinds=(), params=PONG, seed=1):
    return changes_in_name(knobs or {}, defaults or {}, named, kinds, params, PONG, seed)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ""),
        ({"knobs": {"envs": 3}, "defaults": {"envs": 3}, "named": "envs"}, "=3"),
        ({"knobs": {"envs": 3}, "defaults": {"envs": 3}}, ""),
        ({"knobs": {"parallel": True, "double": False}, "defaults": {"parallel": False, "double": True}},
         "-parallel-no-double"),
        ({"knobs": {"without": ["noisy", "double"]}, "defaults": {"without": []}}, "-without=noisy+double"),
        ({"params": dataclasses.replace(PONG, learning_rate=0.0003, huber=True)}, "-learning_rate=0.0003-huber"),
        ({"params": dataclasses.replace(PONG, run_name="b")}, ""),
        ({"params": dataclasses.replace(PONG, stop_reward=14.0)}, "-stop_reward=14"),
        ({"params": dataclasses.replace(PONG, env_name="FreewayNoFrameskip-v4")}, "-env_name=FreewayNoFrameskip-v4"),
        ({"params": dataclasses.replace(PONG, learning_rate=1.234567e-4)}, "-learning_rate=0.0001234567"),
        ({"seed": 7}, "-seed7"),
        ({"kinds": ["best", "init"], "seed": 7}, "-best-init-seed7"),
        ({"knobs": {"address": "10.0.0.1:6379/x"}, "defaults": {"address": None}}, "-address=10.0.0.1_6379_x"),
    ],
)  # fmt: skip
def test_a_name_says_what_was_changed(options, expected):
    assert name(**options) == expected


def test_a_name_fits_into_a_folder_name():
    names = {name({"text": f"{'x' * 500}{end}"}, {"text": ""}, seed=seed) for end in "ab" for seed in (1, 7)}
    assert {len(each) for each in names} == {MAX_LENGTH}
    assert len(names) == 4
    assert sum(each.endswith("-seed7") for each in names) == 2


def test_a_long_run_name_leaves_less_room_but_keeps_the_seed():
    params = dataclasses.replace(PONG, run_name="r" * 100)
    names = {
        name({"text": f"{'x' * 500}{end}"}, {"text": ""}, params=params, seed=seed) for end in "ab" for seed in (1, 7)
    }
    assert {100 + len(each) for each in names} == {WITH_RUN_NAME}
    assert WITH_RUN_NAME + len("--07_pong_in_minutes") <= LONGEST_NAME
    assert len(names) == 4
    assert sum(each.endswith("-seed7") for each in names) == 2


def test_a_long_id_is_cut_to_a_run_name():
    gym.register(f"{'A' * 120}-v0", "fakes:Catch")
    params, _ = resolved("--env-id", f"{'A' * 120}-v0")
    assert (params.env_name, params.run_name) == (f"{'A' * 120}-v0", "A" * 60)


def resolved(*argv, **options):
    parser = cli.parser("A script.", named="envs")
    parser.add_argument("--envs", type=int, default=3)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--speed", choices=("low", "high"), default="low")
    parser.add_argument("--without", choices=("noisy", "double"), action="append", default=[])
    return cli.resolve(parser, list(argv), "02_n_envs")


def test_the_command_line_decides_the_name():
    assert resolved()[1].changes == "=3"
    assert resolved("--envs", "5", "--seed", "2", "--set", "gamma=0.9")[1].changes == "=5-gamma=0.9-seed2"
    assert resolved("--params", "best")[1].changes == "=3-best"


def test_the_best_hyperparameters_can_be_chosen():
    params, _ = resolved("--params", "best")
    assert params == BEST_HYPERPARAMS["pong"]
    assert resolved("--params", "common")[0] == PONG
    with pytest.raises(UsageError, match="--params best has no values for 'breakout', only for pong"):
        resolved("--params", "best", "--game", "breakout")


def test_a_config_may_have_the_null_of_an_option_without_a_default(tmp_path):
    config = tmp_path / "params.json"
    config.write_text('{"limit": null, "learning_rate_final": null}')
    params, options = resolved("--config", str(config))
    assert (params.learning_rate_final, options.limit) == (None, None)


def test_a_config_sets_hyperparameters_and_options_and_the_command_line_wins(tmp_path):
    config = tmp_path / "params.json"
    config.write_text('{"learning_rate": 0.0003, "gamma": 0.9, "envs": 5, "speed": "high"}')
    params, options = resolved("--config", str(config), "--set", "gamma=0.95", "--speed", "low")
    assert (params.learning_rate, params.gamma, options.envs, options.speed) == (0.0003, 0.95, 5, "low")
    assert options.changes == "=5-learning_rate=0.0003-gamma=0.95"


@pytest.mark.parametrize("parts", [[], ["noisy"], ["noisy", "double"]])
def test_a_config_lists_the_values_of_an_option_that_may_be_repeated(tmp_path, parts):
    config = tmp_path / "params.json"
    config.write_text(json.dumps({"without": parts}))
    assert resolved("--config", str(config))[1].without == parts
    assert resolved("--config", str(config), "--without", "double")[1].without == ["double"]


def test_a_config_is_checked_with_the_hyperparameters_of_its_game(tmp_path):
    config = tmp_path / "params.json"
    config.write_text('{"replay_initial": 2e5}')  # Pong's replay holds fewer
    assert resolved("--config", str(config), "--game", "breakout")[0].replay_initial == 200_000
    config.write_text('{"replay_size": 20000}')
    with pytest.raises(UsageError, match="--config: replay_initial is 50000; it has to be at most replay_size, 20000"):
        resolved("--config", str(config), "--game", "breakout")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"gama": 0.9, "batch_size": "many", "envs": "x", "speed": "top"}',
         "'gama' is unknown; batch_size is 'many'; it has to be a whole number; "),
        ('{"speed": "top"}', "speed is 'top'; it has to be one of low, high"),
        ('{"without": "noisy"}', "without is 'noisy'; it has to be a list"),
        ('{"without": ["top"]}', "without is 'top'; it has to be one of noisy, double"),
        ('{"gamma": 1.5}', "gamma is 1.5; it has to be between 0 and 1"),
        ('{"gamma": NaN}', "cannot be read: NaN is not valid JSON"),
        ("[1]", "holds a list; it has to be an object of names and values"),
        ("{", "cannot be read: "),
        ("[" * 100_000, "cannot be read: "),
    ],
)  # fmt: skip
def test_a_config_with_unknown_or_ill_typed_entries_is_refused(tmp_path, content, message):
    config = tmp_path / "params.json"
    config.write_text(content)
    with pytest.raises(UsageError) as error:
        resolved("--config", str(config))
    assert message in str(error.value)


def test_a_config_that_is_missing_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"none\.json cannot be read"):
        resolved("--config", str(tmp_path / "none.json"))

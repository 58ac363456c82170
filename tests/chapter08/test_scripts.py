"""Chapter 8: the loss of each extension, and short runs that have to solve a small environment."""

import copy
import dataclasses
import importlib.util
from pathlib import Path

import pytest
import torch
from ignite.engine import Events

from fakes import Table
from lib import common, dqn_model
from lib.experience.priority_ring import PrioritisedRing
from lib.experience.ring import Batch
from lib.hyperparameters import HYPERPARAMS
from lib.nets import losses
from lib.run import checkpoint
from lib.run.arguments import RunOptions
from running import PROJECT, assignments, differences, folder, result_of

SCRIPTS = sorted((PROJECT / "chapter08").glob("0*.py"))


def load(name, chapter="chapter08"):
    spec = importlib.util.spec_from_file_location(name, PROJECT / chapter / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PARTS = load("08_dqn_rainbow").PARTS


def batch_of(states, actions, returns, next_states, discounts):
    """Make a batch in the layout of Batch.for_net."""
    return Batch(
        states=torch.as_tensor(states)[:, None],
        actions=torch.as_tensor(actions),
        returns=torch.as_tensor(returns),
        next_states=torch.as_tensor(next_states)[:, None],
        discounts=torch.as_tensor(discounts),
        indices=torch.arange(len(states)),
        weights=torch.ones(len(states)),
    )


# State 0 leads to state 1 with a return of 2 over three steps. The episode ends in state 1. There the online network
# prefers action 0, the target network action 1. The values 50, 60 and 70 must not be used: they belong to other actions
# or to states after the end of the episode.
NET = [[1.0, 50.0], [3.0, 2.0], [60.0, 60.0]]
TARGET = [[50.0, 50.0], [10.0, 20.0], [70.0, 70.0]]
BATCH = ([0, 1], [0, 1], [2.0, -1.0], [1, 2], [0.125, 0.0])


@pytest.mark.parametrize("script", [("03_dqn_double",), ("07_pong_in_minutes", "chapter09")])
def test_the_double_loss_by_hand(script):
    net, target = Table(NET), Table(TARGET)
    loss = load(*script).calc_loss(batch_of(*BATCH), net, target)
    first, second = 1.0 - (2.0 + 0.125 * 10.0), 2.0 - (-1.0)
    assert loss.item() == pytest.approx((first**2 + second**2) / 2)
    loss.backward()
    assert torch.allclose(net.rows.grad, torch.tensor([[first, 0.0], [0.0, second], [0.0, 0.0]]))
    assert target.rows.grad is None


def test_without_double_the_target_network_selects_the_action():
    expected = ((1.0 - (2.0 + 0.125 * 20.0)) ** 2 + (2.0 - (-1.0)) ** 2) / 2
    loss = load("03_dqn_double").calc_loss(batch_of(*BATCH), Table(NET), Table(TARGET), double=False)
    assert loss.item() == pytest.approx(expected)


def random_batch(size=16):
    states, next_states, numbers = torch.rand(size, 3), torch.rand(size, 3), torch.randn(size)
    return batch_of(states, torch.randint(0, 4, (size,)), numbers, next_states, 0.9 * torch.rand(size).round())


def networks(**options):
    return dqn_model.DQN((3,), 4, **options), dqn_model.DQN((3,), 4, **options)


def test_rainbow_with_one_part_equals_that_extension():
    rainbow, batch = load("08_dqn_rainbow"), random_batch()
    net, target = networks()
    loss, _ = rainbow.calc_loss(batch, net, target, double=True)
    assert torch.allclose(loss, load("03_dqn_double").calc_loss(batch, net, target))
    batch.weights = torch.rand(len(batch))
    loss, errors = rainbow.calc_loss(batch, net, target, double=False)
    assert torch.allclose(errors, common.td_errors(batch, net, target))
    assert torch.allclose(loss, (batch.weights * errors.square()).mean())
    net, target = networks(support=(-2.0, 2.0, 5))
    loss, divergences = rainbow.calc_loss(batch, net, target, double=False)
    assert torch.allclose(loss, (batch.weights * divergences).mean())
    assert torch.allclose(divergences.mean(), load("07_dqn_distrib").calc_loss(batch, net, target))
    loss.backward()
    assert all(parameter.grad is None for parameter in target.parameters())


def train_briefly(monkeypatch, script, batches, huber=False, **changed):
    """Train a loaded script on some batches. Return what it saves, and the weights "before" and "after" each batch."""
    saved = {"after": []}

    def record(engine, params, exp_source, run_name, *, save, **options):
        saved.update(save)
        saved["before"] = copy.deepcopy(save["net"].state_dict())

        @engine.on(Events.ITERATION_COMPLETED)
        def note(engine):
            saved["after"].append(copy.deepcopy(save["net"].state_dict()))
            if engine.state.iteration == batches:
                engine.terminate()

    monkeypatch.setattr(common, "setup_ignite", record)
    params = dataclasses.replace(
        HYPERPARAMS["pong"],
        env_name="fakes:Chain-v0",
        replay_initial=64,
        replay_size=500,
        target_net_sync=10,
        learning_rate=0.001,
        huber=huber,
    )
    knobs = {"n_step": 2, "noise": "factorised", "alpha": 0.6, "beta": 0.4, "beta_steps": 100, "without": [], "envs": 1}
    knobs |= {"async_envs": False, "v_max": 2.0, "sigma": 0.1, "double": True} | changed
    script.train(params, RunOptions(knobs=knobs))
    return saved


def test_with_several_environments_target_copies_and_epsilon_count_agent_steps(monkeypatch):
    saved = train_briefly(monkeypatch, load("08_dqn_rainbow"), 8, envs=2, without=["noisy"])
    assert differences(saved["before"], saved["after"][0]) != []
    assert differences(saved["target"].state_dict(), saved["after"][4]) == []  # ten agent steps, two per iteration
    assert differences(saved["target"].state_dict(), saved["after"][7]) != []
    assert saved["epsilon"].selector.epsilon == pytest.approx(1.0 - 16 / 100_000)


def test_every_script_uses_the_huber_loss_if_params_ask_for_it(monkeypatch):
    calls, td_losses = [], losses.td_losses
    monkeypatch.setattr(losses, "td_losses", lambda errors, huber: calls.append(huber) or td_losses(errors, huber))
    for script in (SCRIPTS[0], SCRIPTS[2], SCRIPTS[4], SCRIPTS[-1]):
        train_briefly(monkeypatch, load(script.stem), 1, huber=True, without=["distributional"])
    assert calls == [True] * 4


def test_transitions_with_a_weight_of_zero_do_not_change_the_network(monkeypatch):
    sample = PrioritisedRing.sample
    monkeypatch.setattr(
        PrioritisedRing,
        "sample",
        lambda ring, size: dataclasses.replace(sample(ring, size), weights=torch.zeros(size)),
    )
    saved = train_briefly(monkeypatch, load("05_dqn_prio_replay"), 3)
    assert differences(saved["before"], saved["after"][-1]) == []


def test_priorities_are_the_errors_of_the_same_batch(monkeypatch):
    sampled, updated, expected = [], [], []

    def watch(owner, function, note):
        original = getattr(owner, function)
        monkeypatch.setattr(owner, function, lambda *args: note(result := original(*args), *args) or result)

    watch(PrioritisedRing, "sample", lambda batch, *_: sampled.append(batch.indices.tolist()))
    watch(PrioritisedRing, "update_priorities", lambda _, ring, *args: updated.append(args))
    watch(common, "td_errors", lambda errors, *_: expected.append(errors))
    train_briefly(monkeypatch, load("05_dqn_prio_replay"), 3)
    assert sampled == [indices.tolist() for indices, _ in updated]
    for (_, new), errors in zip(updated, expected, strict=True):
        assert new.std() > 0.0
        assert torch.allclose(new.detach(), errors.abs() + 1e-5)


@pytest.mark.parametrize("part", [None, *PARTS])
def test_rainbow_without_a_part_has_all_others(monkeypatch, part):
    rainbow, doubles = load("08_dqn_rainbow"), []
    calculate = rainbow.calc_loss
    monkeypatch.setattr(rainbow, "calc_loss", lambda *args: doubles.append(args[3]) or calculate(*args))
    saved = train_briefly(monkeypatch, rainbow, 1, without=[part])
    options, ring = saved["net"].options, saved["replay"]
    assert {
        "double": doubles[0],
        "dueling": "dueling" in options,
        "noisy": "sigma" in options and saved["epsilon"].params.epsilon_final == 0.0,
        "prioritised": ring.alpha > 0.0,
        "n_step": ring.n_step > 1,
        "distributional": "support" in options,
    } == {each: each != part for each in PARTS}


def test_the_scripts_make_dueling_networks_and_the_given_kind_of_noise(monkeypatch):
    assert train_briefly(monkeypatch, load("06_dqn_dueling"), 1)["net"].value is not None
    for noise in ("factorised", "per-state", "independent"):
        assert train_briefly(monkeypatch, load("04_dqn_noisy_net"), 1, noise=noise)["net"].advantage[0].noise == noise


def test_rainbows_range_of_returns_and_sigma_can_be_given(monkeypatch):
    saved = train_briefly(monkeypatch, load("08_dqn_rainbow"), 1, sigma=0.2, v_max=3.0)
    sigmas = saved["before"]["advantage.0.weight_sigma"]
    assert torch.allclose(sigmas, torch.tensor(0.2 / sigmas.shape[1] ** 0.5))
    assert [group["lr"] for group in saved["optimizer"].param_groups] == pytest.approx([0.001, 0.0001])
    assert torch.equal(saved["net"].support, torch.linspace(-3.0, 3.0, 51))


FIELDS = ("replay_initial=100", "replay_size=1000", "epsilon_frames=400", "learning_rate=0.003", "target_net_sync=25")
CHAIN = ["--env-id", "fakes:Chain-v0", "--quiet", *assignments(*FIELDS)]
LEARN = ["--set", "stop_reward=0.9", "--stop-after", "8000"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "options"),
    [  # Rainbow combines the ideas of 02 to 07.
        (SCRIPTS[0], []),
        (SCRIPTS[-1], []),
        *(pytest.param(script, [], marks=pytest.mark.long) for script in SCRIPTS[1:-1]),
        pytest.param(SCRIPTS[-1], [w for part in PARTS for w in ("--without", part)], marks=pytest.mark.long),
    ],
    ids=lambda value: value.stem if isinstance(value, Path) else f"without-{len(value)}",
)
def test_every_extension_solves_the_chain(answer, tmp_path, script, options):
    """On fakes.Chain, random play succeeds in one of eight episodes."""
    answer(script.relative_to(PROJECT), *CHAIN, *options, *LEARN, "--runs-dir", tmp_path)
    assert result_of(folder(tmp_path))["stopped"] == "solved"


@pytest.mark.slow
def test_rainbow_with_a_small_network_normalises_its_input_by_the_first_batch(answer, tmp_path):
    fields = assignments("normalise=true", "replay_initial=80", "replay_size=400", "batch_size=4")
    options = (*fields, "--envs", 4, "--v-max", 2, "--quiet", "--stop-after", 120, "--runs-dir", tmp_path)
    answer(Path("chapter08/08_dqn_rainbow.py"), *options)
    content = checkpoint.newest(folder(tmp_path) / "checkpoints")
    for net in (content["net"], content["target"]):
        assert net["conv.first.weight"].shape == (16, 4, 8, 8)
        assert net["conv.mean"].std() > 1.0
    assert torch.equal(content["net"]["conv.mean"], content["target"]["conv.mean"])

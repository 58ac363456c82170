"""Chapter 8: the loss of each extension, and short runs that have to solve a small environment."""

import copy
import dataclasses
import functools
import importlib.util
import json
from pathlib import Path

import pytest
import torch
from ignite.engine import Events
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fakes import Table
from lib import common, dqn_model
from lib.experience.priority_ring import PrioritisedRing
from lib.experience.ring import Batch
from lib.hyperparameters import HYPERPARAMS
from lib.nets import losses
from lib.run import checkpoint
from lib.run.arguments import RunOptions
from running import PROJECT, assignments, folder, run

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
        states=torch.tensor(states)[:, None],
        actions=torch.tensor(actions),
        returns=torch.tensor(returns),
        next_states=torch.tensor(next_states)[:, None],
        discounts=torch.tensor(discounts),
        indices=torch.arange(len(states)),
        weights=torch.ones(len(states)),
    )


# State 0 leads to state 1 with a return of 2 over three steps. The episode ends in state 1. There the online network
# prefers action 0, the target network action 1. The values 50, 60 and 70 must not be used: they belong to other actions
# or to states after the end of the episode.
NET = [[1.0, 50.0], [3.0, 2.0], [60.0, 60.0]]
TARGET = [[50.0, 50.0], [10.0, 20.0], [70.0, 70.0]]
BATCH = ([0, 1], [0, 1], [2.0, -1.0], [1, 2], [0.125, 0.0])


def gradients(loss, *networks):
    loss.backward()
    return [network.rows.grad for network in networks]


@pytest.mark.parametrize("script", [("03_dqn_double",), ("07_pong_in_minutes", "chapter09")])
def test_the_double_loss_by_hand(script):
    net, target = Table(NET), Table(TARGET)
    loss = load(*script).calc_loss(batch_of(*BATCH), net, target)
    first, second = 1.0 - (2.0 + 0.125 * 10.0), 2.0 - (-1.0)
    assert loss.item() == pytest.approx((first**2 + second**2) / 2)
    net_gradient, target_gradient = gradients(loss, net, target)
    assert torch.allclose(net_gradient, torch.tensor([[first, 0.0], [0.0, second], [0.0, 0.0]]))
    assert target_gradient is None


def test_the_double_script_without_double_has_the_loss_of_dqn():
    net, target = Table(NET), Table(TARGET)
    loss = load("03_dqn_double").calc_loss(batch_of(*BATCH), net, target, double=False)
    assert loss.item() == pytest.approx(((1.0 - (2.0 + 0.125 * 20.0)) ** 2 + 9.0) / 2)


def test_the_errors_of_dqn_by_hand():
    net, target = Table(NET), Table(TARGET)
    errors = common.td_errors(batch_of(*BATCH), net, target)
    assert errors.tolist() == pytest.approx([1.0 - (2.0 + 0.125 * 20.0), 2.0 - (-1.0)])
    batch = batch_of(*BATCH)
    batch.states, batch.next_states = batch.states[..., None], batch.next_states[..., None]  # frames last, as sampled
    loss = common.calc_loss_dqn(batch, net, target, gamma=0.7)  # gamma is not used, because a Batch has discounts
    assert loss.item() == pytest.approx(errors.square().mean().item())


def random_batch(size=16):
    generator = torch.Generator().manual_seed(1)
    return Batch(
        states=torch.rand(size, 1, 3, generator=generator),
        actions=torch.randint(0, 4, (size,), generator=generator),
        returns=torch.randn(size, generator=generator),
        next_states=torch.rand(size, 1, 3, generator=generator),
        discounts=torch.rand(size, generator=generator).round() * 0.9,
        indices=torch.arange(size),
        weights=torch.ones(size),
    )


@pytest.fixture
def networks():
    torch.manual_seed(0)

    def make(**options):
        return dqn_model.DQN((3,), 4, **options), dqn_model.DQN((3,), 4, **options)

    return make


def test_rainbow_with_one_part_equals_that_extension(networks):
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


def test_in_rainbow_the_online_network_selects_the_action_and_the_target_network_gives_the_distribution(networks):
    net, target = networks(support=(-2.0, 2.0, 5))
    batch = random_batch()
    _, divergences = load("08_dqn_rainbow").calc_loss(batch, net, target, double=True)
    for row in range(len(batch)):
        action = net(batch.next_states)[row].argmax()
        probs = target.predict(batch.next_states)[row, action].exp()
        [projected] = losses.project_distribution(
            probs[None], batch.returns[[row]], batch.discounts[[row]], net.support
        )
        predicted = net.predict(batch.states)[row, batch.actions[row]]
        divergence = sum(p * (p.log() - q) for p, q in zip(projected, predicted, strict=True) if p > 0)
        assert divergences[row].item() == pytest.approx(divergence.item(), abs=1e-5)
    assert not torch.allclose(divergences, load("08_dqn_rainbow").calc_loss(batch, net, target, double=False)[1])


def train_briefly(monkeypatch, script, batches, huber=False, **changed):
    """Train a loaded script on a number of batches.

    Returns:
        The objects that the script saves, the initial weights as "before", and the weights after each batch as "after".
    """
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
    knobs = {
        "n_step": 2,
        "noise": "factorised",
        "alpha": 0.6,
        "beta": 0.4,
        "beta_steps": 100,
        "without": [],
        "envs": 1,
        "async_envs": False,
    }
    knobs |= {"v_min": -2.0, "v_max": 2.0, "atoms": 5, "sigma": 0.1, "fast": False, "double": True} | changed
    script.train(params, RunOptions(knobs=knobs))
    return saved


def same(one, other):
    return all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def test_with_several_environments_target_copies_and_epsilon_count_agent_steps(monkeypatch):
    saved = train_briefly(monkeypatch, load("08_dqn_rainbow"), 8, envs=2, without=["noisy"])
    assert not same(saved["before"], saved["after"][0])
    assert same(saved["target"].state_dict(), saved["after"][4])  # ten agent steps, two per iteration
    assert not same(saved["target"].state_dict(), saved["after"][7])
    assert saved["epsilon"].selector.epsilon == pytest.approx(1.0 - 16 / 100_000)


@pytest.mark.parametrize("script", [SCRIPTS[0], SCRIPTS[2], SCRIPTS[4], SCRIPTS[-1]], ids=lambda path: path.stem)
def test_every_script_uses_the_huber_loss_if_params_ask_for_it(monkeypatch, script):
    calls, td_losses = [], losses.td_losses
    monkeypatch.setattr(losses, "td_losses", lambda errors, huber: calls.append(huber) or td_losses(errors, huber))
    for huber in (True, False):
        train_briefly(monkeypatch, load(script.stem), 1, huber, without=["distributional"])
    assert calls == [True, False]


@pytest.mark.parametrize("name", ["05_dqn_prio_replay", "08_dqn_rainbow"])
def test_transitions_with_a_weight_of_zero_do_not_change_the_network(monkeypatch, name):
    sample = PrioritisedRing.sample
    monkeypatch.setattr(
        PrioritisedRing,
        "sample",
        lambda ring, size: dataclasses.replace(sample(ring, size), weights=torch.zeros(size)),
    )
    saved = train_briefly(monkeypatch, load(name), 3)
    assert same(saved["before"], saved["after"][-1])


@pytest.mark.parametrize(
    ("name", "module", "function"), [("05_dqn_prio_replay", common, "td_errors"), ("08_dqn_rainbow", None, "calc_loss")]
)
def test_priorities_are_the_errors_of_the_same_batch(monkeypatch, name, module, function):
    script, expected, sampled, updated = load(name), [], [], []
    update, sample = PrioritisedRing.update_priorities, PrioritisedRing.sample
    module = module or script
    calculate = getattr(module, function)

    def record_sample(ring, size):
        batch = sample(ring, size)
        sampled.append(batch.indices.tolist())
        return batch

    def record_update(ring, indices, new):
        updated.append((indices.tolist(), new.detach()))
        update(ring, indices, new)

    def record_errors(*args):
        result = calculate(*args)
        expected.append((result if function == "td_errors" else result[1]).abs())
        return result

    monkeypatch.setattr(PrioritisedRing, "sample", record_sample)
    monkeypatch.setattr(PrioritisedRing, "update_priorities", record_update)
    monkeypatch.setattr(module, function, record_errors)
    train_briefly(monkeypatch, script, 3)
    assert sampled == [indices for indices, _ in updated]
    for (_, new), errors in zip(updated, expected, strict=True):
        assert new.std() > 0.0
        assert torch.allclose(new, errors + 1e-5)


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


def test_the_range_of_rainbows_returns_can_be_given(monkeypatch):
    for v_max, expected in ((None, 10.0), (3.0, 3.0)):
        saved = train_briefly(monkeypatch, load("08_dqn_rainbow"), 1, v_max=v_max)
        assert torch.equal(saved["net"].support, torch.linspace(-expected, expected, 51))


def test_the_scripts_make_dueling_networks_and_the_given_kind_of_noise(monkeypatch):
    assert train_briefly(monkeypatch, load("06_dqn_dueling"), 1)["net"].value is not None
    for noise in ("factorised", "per-state", "independent"):
        assert train_briefly(monkeypatch, load("04_dqn_noisy_net"), 1, noise=noise)["net"].advantage[0].noise == noise


def test_rainbows_sigma_can_be_given_and_has_a_tenth_of_the_learning_rate(monkeypatch):
    saved = train_briefly(monkeypatch, load("08_dqn_rainbow"), 1, sigma=0.2)
    sigmas = saved["before"]["advantage.0.weight_sigma"]
    assert torch.allclose(sigmas, torch.tensor(0.2 / sigmas.shape[1] ** 0.5))
    assert [group["lr"] for group in saved["optimizer"].param_groups] == pytest.approx([0.001, 0.0001])
    saved = train_briefly(monkeypatch, load("08_dqn_rainbow"), 1, without=["noisy"])
    assert [group["lr"] for group in saved["optimizer"].param_groups] == [0.001]


@pytest.mark.parametrize("double", [True, False])
def test_rainbows_target_has_no_gradient(networks, double):
    net, target = networks(support=(-2.0, 2.0, 5))
    loss, _ = load("08_dqn_rainbow").calc_loss(random_batch(), net, target, double)
    loss.backward()
    assert all(parameter.grad is None for parameter in target.parameters())


def test_states_after_a_termination_do_not_matter(networks):
    net, target = networks(support=(-2.0, 2.0, 5))
    batch, rainbow = random_batch(), load("08_dqn_rainbow")
    batch.discounts = torch.zeros(len(batch))
    _, expected = rainbow.calc_loss(batch, net, target, double=True)
    batch.next_states = 100.0 * torch.rand_like(batch.next_states)
    assert torch.allclose(rainbow.calc_loss(batch, net, target, double=True)[1], expected, atol=1e-5)


FIELDS = ("replay_initial=100", "replay_size=1000", "epsilon_frames=400", "learning_rate=0.003", "target_net_sync=25")
CHAIN = ["--env-id", "fakes:Chain-v0", "--quiet", *assignments(*FIELDS)]
LEARN = ["--set", "stop_reward=0.9", "--stop-after", "8000"]
RUNS = {
    **{script.stem: (script, LEARN) for script in SCRIPTS},
    "without-all": (SCRIPTS[-1], [*(word for part in PARTS for word in ("--without", part)), *LEARN]),
    "noisy": (SCRIPTS[3], ["--stop-after", "320"]),  # metrics are logged every 100 iterations
}


# Left to `make test-long`: Rainbow combines these ideas and solves the chain in `make test`.
LONG = [*(script.stem for script in SCRIPTS[1:-1]), "without-all"]


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    """Function that runs one of RUNS on fakes.Chain, once, and returns (process, run folders).

    On the chain, random play succeeds in one of eight episodes.
    """

    @functools.cache
    def learn(name):
        script, options = RUNS[name]
        runs_dir = tmp_path_factory.mktemp(name)
        process = run(script.relative_to(PROJECT), *CHAIN, *options, "--runs-dir", runs_dir)
        return process, [path.parent for path in runs_dir.glob("*/result.json")]

    return learn


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.long if name in LONG else ()) for name in RUNS])
def test_every_extension_solves_the_chain(chain, name):
    process, paths = chain(name)
    assert process.returncode == 0, process.stderr
    stopped = [json.loads((path / "result.json").read_text())["stopped"] for path in paths]
    assert stopped == ["solved" if RUNS[name][1][-2:] == LEARN[-2:] else "step limit"]


@pytest.mark.slow
def test_the_signal_to_noise_ratio_of_each_noisy_layer_is_logged(chain):
    [path] = chain("noisy")[1]
    accumulator = EventAccumulator(str(path))
    accumulator.Reload()
    tags = set(accumulator.Tags()["scalars"])
    assert {"train/snr_1", "train/snr_2"} <= tags
    assert "train/epsilon" not in tags  # there is no other exploration than noise
    fields = json.loads((path / "params.json").read_text())["hyperparameters"]
    assert fields["epsilon_start"] == fields["epsilon_final"] == 0.0
    assert accumulator.Scalars("train/snr_1")[0].value == pytest.approx(2 / 3**0.5, rel=0.2)  # the initial ratio


@pytest.mark.slow
def test_beta_is_logged_and_rises(chain):
    [path] = chain("08_dqn_rainbow")[1]
    accumulator = EventAccumulator(str(path))
    accumulator.Reload()
    betas = [scalar.value for scalar in accumulator.Scalars("train/beta")]
    assert 0.4 < betas[0] < betas[-1] < 0.5


@pytest.mark.slow
def test_the_fast_rainbow_uses_the_small_network_and_normalises_by_the_first_batch(tmp_path):
    fields = assignments("replay_initial=80", "replay_size=400", "batch_size=4")
    options = ("--fast", "--envs", 4, "--v-max", 2, "--quiet", *fields, "--stop-after", 120, "--runs-dir", tmp_path)
    process = run(Path("chapter08/08_dqn_rainbow.py"), *options)
    assert process.returncode == 0, process.stderr
    content = checkpoint.newest(folder(tmp_path) / "checkpoints")
    for net in (content["net"], content["target"]):
        assert net["conv.first.weight"].shape == (16, 4, 8, 8)
        assert net["conv.mean"].std() > 1.0
    assert torch.equal(content["net"]["conv.mean"], content["target"]["conv.mean"])


@pytest.mark.parametrize(
    ("script", "options", "message"),
    [
        ("07_dqn_distrib", ["--atoms", "1"], "atoms is 1; it has to be between 2 and 500"),
        ("07_dqn_distrib", ["--v-min", "3", "--v-max", "2"], "v_min is 3 and v_max 2; v_min has to be below v_max"),
        ("08_dqn_rainbow", ["--sigma", "0"], "argument --sigma: '0' is not a finite number, above 0"),
    ],
)
def test_invalid_options_are_refused_in_one_line_with_their_range(refused, tmp_path, script, options, message):
    answer = refused(Path(f"chapter08/{script}.py"), *CHAIN, *options, "--runs-dir", tmp_path)
    assert message in answer
    assert answer.count("\n") == 1
    assert not list(tmp_path.iterdir())

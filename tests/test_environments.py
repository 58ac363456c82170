"""Any environment: what it shows comes into a form that a network sees, and what it forbids is never done."""

import logging
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics

import fakes
from lib import dqn_extra, dqn_model
from lib.envs import observations, vector_env
from lib.envs.masks import AppendMask, KeepMaskInfo, MaskedBox, append_mask
from lib.envs.single_env import make_env
from lib.errors import Fault, UsageError
from lib.experience.priority_ring import PrioritisedRing
from lib.experience.ring import Ring
from lib.experience.selectors import EpsilonGreedyActionSelector
from lib.experience.stream import ExperienceStream, Stream
from lib.nets import losses
from lib.nets.masking import INVALID, MaskSplitter
from lib.ppo.model import Model
from lib.ppo.rollout import Agent
from lib.ppo.update import Trainer, Transitions, UpdateSettings
from running import PROJECT, assignments, folder

SCRIPTS = sorted(
    path.relative_to(PROJECT) for name in ("chapter0*", "distributed") for path in PROJECT.glob(f"{name}/[0-9]*.py")
)
KINDS = {  # what is shown of each, and how it is divided
    "Vector": ((6,), 1.0),
    "Codes": ((6,), 12.0),
    "Number": ((7,), 1.0),
    "Parts": ((9,), 1.0),
    "Board": ((1, 9, 8), 2.0),
    "Planes": ((3, 7, 7), 255.0),
}


def first_of(env_id):
    """What an environment shows first, and the plain environment shows first by itself."""
    env, plain = make_env(env_id), gym.make(env_id)
    return env.observation_space, np.asarray(env.reset(seed=3)[0]), plain.reset(seed=3)[0]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_shown_becomes_a_float32_vector_or_board(kind):
    shape, divisor = KINDS[kind]
    space, shown, plain = first_of(f"fakes:{kind}-v0")
    assert space.shape == shown.shape == shape
    assert space.dtype == shown.dtype == np.float32
    assert space.contains(shown)
    if kind == "Number":
        expected = np.eye(7)[plain]
    elif kind == "Parts":
        expected = np.concatenate([np.eye(3)[plain["place"][0]], np.eye(4)[plain["place"][1]], plain["speed"]])
    else:
        expected = np.moveaxis(plain, 2, 0) if kind == "Planes" else plain
    assert np.allclose(shown.squeeze(), expected / divisor)


def test_channels_are_the_first_or_the_last_axis_whichever_are_fewer():
    for shape, expected in (((3, 9, 8), (3, 9, 8)), ((9, 8, 3), (3, 9, 8)), ((5, 6), (1, 5, 6)), ((), (1,))):
        env = fakes.Shape(spaces.Box(0.0, 1.0, shape, np.float32))
        made = observations.prepare(env, "Shape")
        state, _ = made.reset(seed=1)
        assert state.shape == made.observation_space.shape == expected


@pytest.mark.parametrize(
    ("space", "grey"),
    [
        (spaces.Box(0, 255, (40, 50, 3), np.uint8), None),
        (spaces.Box(0, 255, (3, 40, 50), np.uint8), None),
        (spaces.Box(0, 255, (40, 50), np.uint8), lambda image: image),
        (spaces.Box(-1.0, 1.0, (40, 50, 1), np.float32), lambda image: np.round((image[:, :, 0] + 1) * 127.5)),
    ],
)
def test_what_is_large_is_an_image_in_bytes(space, grey):
    made = observations.prepare(fakes.Shape(space), "Shape")
    image, plain = made.reset(seed=1)[0], fakes.Shape(space).reset(seed=1)[0]
    assert image.shape == made.observation_space.shape == (40, 50)
    assert image.dtype == made.observation_space.dtype == np.uint8
    assert grey is None or np.array_equal(image, grey(plain))


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Box(0.0, 1.0, (2, 3, 4, 5)), "of 4 dimensions"),
        (spaces.Box(-np.inf, np.inf, (50, 50), np.float32), "without bounds"),
        (spaces.Box(0, 255, (50, 50, 4), np.uint8), "images of 4 channels"),
        (spaces.Text(5), "no fixed number of numbers"),
        (spaces.Sequence(spaces.Discrete(3)), "no fixed number of numbers"),
    ],
)
def test_what_no_network_can_see_is_wrong_use(space, message):
    with pytest.raises(UsageError, match=message):
        observations.prepare(fakes.Shape(space), "Shape")


def test_what_a_users_own_wrappers_flatten_is_theirs():
    parts = spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Box(0, 12, (3,), np.int64)})
    flat = gym.wrappers.FlattenObservation(fakes.Shape(parts))
    own = gym.wrappers.ReshapeObservation(flat, (2, 3))
    made = observations.prepare(own, "Shape")
    assert made.observation_space.shape == (1, 2, 3)
    shown, plain = made.reset(seed=1)[0], own.reset(seed=1)[0]
    assert np.allclose(shown[0], plain / [[1, 1, 1], [12, 12, 12]])


def test_whole_numbers_are_warned_of_once(caplog):
    observations._warn_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            make_env("fakes:Codes-v0")
        make_env("fakes:Vector-v0")
    [said] = caplog.messages
    assert "fakes:Codes-v0: there are whole numbers in the observations; they are made float32 once, divided by" in said
    assert said.endswith("allows, 12.")


def test_bounds_that_are_the_types_own_divide_nothing(caplog):
    observations._warn_once.cache_clear()
    space = spaces.Box(np.iinfo(np.int64).min, np.iinfo(np.int64).max, (2,), np.int64)
    made = observations.prepare(fakes.Shape(space), "Shape")
    assert np.array_equal(made.reset(seed=1)[0], fakes.Shape(space).reset(seed=1)[0].astype(np.float32))
    assert "made float32 once." in caplog.text


class Mission(spaces.Space):
    """As MiniGrid has it: a space that gymnasium does not know."""

    def sample(self, *_, **__):
        return "go to the door"


@pytest.mark.parametrize("mission", [Mission(), spaces.Text(20)])
def test_parts_that_nobody_can_read_are_left_out_and_one_part_alone_stays_what_it_is(caplog, mission):
    board = spaces.Box(0, 10, (7, 7, 3), np.uint8)
    observations._warn_once.cache_clear()
    made = observations.prepare(fakes.Shape(spaces.Dict({"image": board, "mission": mission})), "Grid")
    assert made.reset(seed=1)[0].shape == (3, 7, 7)
    assert "of the observations 'mission' is left out" in caplog.text
    speed = spaces.Box(-1.0, 1.0, (2,), np.float64)
    more = spaces.Dict({"image": board, "direction": spaces.Discrete(4), "mission": mission, "speed": speed})
    plain, shown = (each.reset(seed=1)[0] for each in (fakes.Shape(more), observations.prepare(fakes.Shape(more), "G")))
    parts = {"direction": np.eye(4)[plain["direction"]], "image": plain["image"].ravel() / 10, "speed": plain["speed"]}
    assert np.allclose(shown, np.concatenate([parts[name] for name in more.spaces if name in parts]))


def test_actions_that_are_not_counted_from_0_are_brought_there():
    env = make_env("fakes:Seventh-v0")
    env.reset(seed=1)
    assert env.action_space == spaces.Discrete(5)
    assert [env.step(action)[1] for action in (0, 1, 4)] == [0.0, 1.0, 0.0]


# Masks ---------------------------------------------------------------------------------------------------------------

MASKED = [f"fakes:{kind}-{how}-v0" for kind in fakes.SHAPES for how in ("info", "method")]


@pytest.mark.parametrize("env_id", MASKED)
def test_the_mask_travels_with_the_state_and_comes_off_again(env_id):
    plain = make_env(env_id.replace("-info", "").replace("-method", ""))
    env = make_env(env_id)
    for channels_last in (False, True):
        split = MaskSplitter(env.observation_space, channels_last)
        state, expected = (np.asarray(each.reset(seed=5)[0]) for each in (env, plain))
        for step in range(5):
            states = torch.from_numpy(state)[None]
            if channels_last and states.ndim == 4:
                states = states.permute(0, 2, 3, 1)
            shown, allowed = split(states)
            shown = shown.permute(0, 3, 1, 2) if channels_last and shown.ndim == 4 else shown
            assert shown.shape[1:] == split.shape == plain.observation_space.shape
            assert np.array_equal(shown[0].numpy(), expected)
            assert allowed.tolist() == [[action != step for action in range(5)]]
            action = (step + 1) % 5
            state, expected = (np.asarray(each.step(action)[0]) for each in (env, plain))


def test_a_mask_of_more_actions_than_a_row_has_cells_takes_more_rows():
    state, mask = np.arange(2 * 3 * 4, dtype=np.float32).reshape(2, 3, 4), np.arange(11) % 3 == 0
    space = MaskedBox(spaces.Box(0.0, 24.0, (2, 3, 4)), 11)
    masked = append_mask(state, mask)
    assert masked.shape == space.shape == (2, 3 + 3, 4)
    assert space.contains(masked)
    shown, allowed = MaskSplitter(space)(torch.from_numpy(masked)[None])
    assert np.array_equal(shown[0].numpy(), state)
    assert np.array_equal(allowed[0].numpy(), mask)


def test_where_nothing_is_allowed_everything_is_as_no_action_follows():
    env = fakes.Shape(spaces.Box(0.0, 1.0, (2,)), mask="info", length=2)
    made = AppendMask(env)
    made.reset()
    made.step(1)
    allowed = env._mask
    env._mask = lambda: allowed() * (env.t < 2)
    assert made.step(2)[0][2:].tolist() == [1.0] * 5
    env._mask = lambda: np.zeros(5, np.int8)
    with pytest.raises(Fault, match="no action is allowed, but its episode goes on"):
        made.reset()


def test_a_mask_of_another_shape_or_one_that_is_gone_is_told_of():
    env = fakes.Shape(spaces.Box(0.0, 1.0, (2,)), mask="info")
    made = AppendMask(env)
    env._mask = lambda: np.ones(4)
    with pytest.raises(UsageError, match=r"an action mask of shape \(4,\); it has to be \(5,\)"):
        made.reset()
    env.mask = None
    with pytest.raises(Fault, match=r"gave info\['action_mask'\] at a reset, but not now"):
        made.step(1)


def test_a_mask_that_comes_only_with_the_steps_is_told_of():
    env = fakes.Shape(spaces.Box(0.0, 1.0, (2,)))
    made = KeepMaskInfo(env)
    made.reset()
    env.mask = "info"
    with pytest.raises(Fault, match="at a step, but gave none at the reset"):
        made.step(1)


def test_what_else_is_in_the_infos_is_nobodys_business():
    """gymnasium puts infos side by side, which arrays that grow do not suffer, and has the name "episode" itself."""
    envs = vector_env.make_vector_env("fakes:Talkative-v0", 2)
    envs.reset(seed=1)
    for _ in range(6):
        *_, infos = envs.step(np.array([0, 1]))
    assert infos["episode"]["l"].tolist() == [6, 6]
    env = make_env("fakes:Talkative-v0")
    env.reset(seed=1)
    assert [set(env.step(0)[4]) for _ in range(6)] == [set()] * 5 + [{"episode"}]


def states_of(env_id, envs=4):
    made = vector_env.make_vector_env(env_id, envs)
    return made.single_observation_space, made.reset(seed=1)[0]


@pytest.mark.parametrize("env_id", MASKED)
def test_no_network_gives_a_value_to_what_is_not_allowed(env_id):
    space, states = states_of(env_id)
    support = losses.support(-1.0, 1.0, 11)
    nets = [dqn_model.DQN(space, 5), dqn_extra.ExtendedDQN(space, 5, dueling=True)]
    nets += [dqn_extra.ExtendedDQN(space, 5, noise=dqn_extra.FACTORISED, support=support)]
    nets += [dqn_model.DQN(space, 5, normalise=True)]
    for net in nets:
        values = net(torch.from_numpy(states))
        assert (values[:, 0] == INVALID).all()
        assert (values[:, 1:].abs() < 100).all()
        assert values[:, 1:].std() > 0
    assert (nets[2].best(torch.from_numpy(states)).exp().sum(1) - 1.0).abs().max() < 1e-5
    probabilities = Agent(Model(space, 5)).probabilities(states)
    assert (probabilities[:, 0] == 0.0).all()
    assert np.allclose(probabilities.sum(1), 1.0)


def test_what_is_not_allowed_is_in_no_target():
    """The next state's best value would be that of an action which is not allowed, were it not masked."""
    space, states = states_of("fakes:Vector-info-v0", envs=1)
    net = dqn_model.DQN(space, 5)
    with torch.no_grad():
        net.fc[-1].weight.zero_()
        net.fc[-1].bias.copy_(torch.tensor([100.0, 3.0, 1.0, 2.0, 2.5]))
        following = net(torch.from_numpy(states))
    targets = losses.q_targets(torch.tensor([1.0]), torch.tensor([0.5]), following)
    assert targets.tolist() == [1.0 + 0.5 * 3.0]
    assert losses.double_q_targets(torch.tensor([1.0]), torch.tensor([0.5]), following, following + 1.0).tolist() == [
        3.0
    ]


def test_random_actions_are_drawn_evenly_from_those_that_are_allowed():
    np.random.seed(1)
    scores = np.tile(np.array([INVALID, 1.0, 5.0, INVALID], np.float32), (20_000, 1))
    taken = EpsilonGreedyActionSelector(epsilon=0.5)(scores)
    assert np.bincount(taken, minlength=4) / 20_000 == pytest.approx([0.0, 0.25, 0.75, 0.0], abs=0.02)


def test_without_a_mask_the_same_actions_are_drawn_as_by_ptan():
    scores = np.random.default_rng(1).normal(size=(300, 4))
    drawn = []
    for selector in (EpsilonGreedyActionSelector, EpsilonGreedyActionSelector.__base__):
        np.random.seed(2)
        drawn.append(selector(epsilon=0.5)(scores))
    assert np.array_equal(*drawn)


def test_no_noise_leads_to_an_action_that_is_not_allowed():
    space, states = states_of("fakes:Vector-info-v0")
    agent = Agent(Model(space, 5))
    noise = torch.ones(4, 5)
    noise[:, 0] = 0.0
    assert (agent(torch.from_numpy(states), noise)[0] > 0).all()


def test_the_entropy_of_a_policy_counts_only_what_is_allowed():
    space, states = states_of("fakes:Vector-info-v0")
    model = Model(space, 5)
    torch.nn.init.zeros_(model.policy.weight)
    settings = UpdateSettings(minibatch=4, epochs=1, gamma=0.9, lam=0.9, clip=0.2, entropy=0.1)
    trainer = Trainer(model, torch.optim.Adam(model.parameters()), settings)
    transitions = Transitions(
        states=torch.from_numpy(states),
        actions=torch.ones(4, dtype=torch.int64),
        log_probs=torch.full((4,), -np.log(4.0)),
        advantages=torch.rand(4),
        value_targets=torch.rand(4),
    )
    told = trainer.learn(transitions, 0.0)
    assert told["entropy"] == pytest.approx(np.log(4.0))
    assert told["kl"] == pytest.approx(0.0, abs=1e-6)
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_environments_that_refuse_what_they_took_begin_anew(caplog, monkeypatch):
    def stream_of():
        return Stream(vector_env.make_vector_env("fakes:Refusing-v0", 2), seed=1)

    first = stream_of()
    first.begin()
    for _ in range(4):
        first.step(np.array([0, 1]))
    monkeypatch.setattr(fakes.Refusing, "left", 5)
    resumed = stream_of()
    resumed.load_state_dict(first.state_dict())
    assert "do not repeat themselves" in caplog.text
    assert "(RuntimeError: not allowed)" in caplog.text
    monkeypatch.setattr(fakes.Refusing, "left", 100)
    assert resumed.steps_done == resumed.began == 8
    assert resumed.step(np.array([0, 1])).rewards.tolist() == [0.0, 0.0]


def idle(states, agent_states):
    return np.zeros(len(states), np.int64), agent_states


idle.initial_state = lambda: None


def ring_of(env_id, kind=Ring):
    source = ExperienceStream(vector_env.make_vector_env(env_id, 2), idle, seed=1)
    return source, kind.of(source, 40, n_step=3, gamma=0.5)


@pytest.mark.parametrize("kind", [Ring, PrioritisedRing])
def test_no_transition_goes_on_in_the_episodes_of_environments_that_began_anew(kind):
    source, ring = ring_of("fakes:Forgetful-v0", kind)
    ring.populate(8)
    last = source.states.copy()  # of the fourth of seven steps
    saved = {"source": source.state_dict(), "replay": ring.state_dict()}
    for _ in range(20):  # a ball may come back by chance
        resumed, again = ring_of("fakes:Forgetful-v0", kind)
        resumed.load_state_dict(saved["source"])
        again.load_state_dict(saved["replay"])
        if resumed.broken_off is not None:
            break
    assert np.array_equal(resumed.broken_off, last)
    assert resumed.began == 8
    again.populate(8)
    both = np.arange(2)
    batch = again._batch(np.full(2, 3), both, np.ones(2))
    assert np.array_equal(batch.for_net("cpu").next_states.numpy(), last)
    assert batch.discounts.tolist() == [0.5, 0.5]
    begun = again._batch(np.full(2, 4), both, np.ones(2))
    assert np.array_equal(begun.states[..., 0].numpy(), begun.states[..., -1].numpy())  # its first frame alone


@pytest.mark.parametrize("restart", [Stream.RESTART, 10])
def test_truncated_episodes_are_bootstrapped_from_what_they_showed_last(monkeypatch, restart):
    monkeypatch.setattr(Stream, "RESTART", restart)
    envs = SyncVectorEnv([lambda: fakes.Counting(length=3, truncates=True)] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    envs = RecordEpisodeStatistics(vector_env.FinalStates(envs))
    source = ExperienceStream(envs, idle, seed=1)
    ring = Ring.of(source, 40, n_step=2, gamma=0.5)
    ring.populate(24)
    # Observations are 0, 1, 2 and at the end 3, rewards 1, 2, 3. With a restart all begin anew after five steps each.
    lengths = [3, 3, 3, 3] if restart > 10 else [3, 2, 3, 2]
    expected = [
        (at, min(at + 2, length), at + 1 + (0.5 * (at + 2) if at + 2 <= length else 0), 0.5 ** min(2, length - at))
        for length in lengths
        for at in range(length)
    ]
    for step, (state, next_state, total, discount) in enumerate(expected[:9]):
        batch = ring._batch(np.full(2, step), np.arange(2), np.ones(2))
        found = batch.states, batch.next_states, batch.returns, batch.discounts
        assert [tensor.flatten().tolist() for tensor in found] == [
            *([state] * 2, [next_state] * 2),
            *([total] * 2, [discount] * 2),
        ], step


def test_a_stream_that_has_not_begun_makes_no_step():
    envs = vector_env.make_vector_env("CartPole-v1", 2)
    with pytest.raises(RuntimeError, match=r"have not begun; call begin\(\) first"):
        Stream(envs).step(np.zeros(2, np.int64))


def test_an_agents_state_begins_anew_with_each_episode():
    def counting(states, agent_states):
        assert [state + 1 for state in agent_states] == (states[:, 0] + 1).tolist()
        return np.zeros(2, np.int64), [state + 1 for state in agent_states]

    counting.initial_state = lambda: 0
    envs = SyncVectorEnv([partial(fakes.Counting, n) for n in (2, 3)], autoreset_mode=AutoresetMode.SAME_STEP)
    steps = iter(ExperienceStream(RecordEpisodeStatistics(vector_env.FinalStates(envs)), counting))
    for _ in range(12):
        next(steps)


@pytest.mark.parametrize("env_id", ["fakes:Board-method-v0", "fakes:Vector-info-v0", "fakes:Image-info-v0"])
def test_a_replay_gives_states_back_with_their_masks(env_id):
    envs = vector_env.make_vector_env(env_id, 3)

    def agent(states, agent_states):
        played.append(states.copy())
        return np.full(3, (len(played) + 1) % 5), agent_states

    played = []
    agent.initial_state = lambda: None
    source = ExperienceStream(envs, agent, seed=1)
    ring = Ring.of(source, 60)
    ring.populate(48)
    batch = ring.sample(40)
    states = batch.for_net("cpu").states.numpy()
    for index, state in zip(batch.indices.tolist(), states, strict=True):
        step, env = divmod(index, 3)
        assert np.array_equal(state, played[step][env])


# Scripts -------------------------------------------------------------------------------------------------------------

SHORT = ("--seed", 1, "--quiet", "--stop-after")
DQN = assignments("replay_initial=60", "replay_size=400", "batch_size=4")
PPO = assignments("envs=4", "rollout=8", "minibatch=16")


def options_of(script, env_id):
    small = (*PPO, *SHORT, 96) if script.parent.name == "distributed" else (*DQN, *SHORT, 108)
    own = {"03_parallel": ("--replay-ratio", 4), "07_pong_in_minutes": ("--envs", 6)}.get(script.stem, ())
    return "--env-id", env_id, *small, *own


@pytest.mark.parametrize(
    ("script", "env_id"),
    [(script, "Board-method-v0") for script in SCRIPTS] + [(script, "Codes-info-v0") for script in SCRIPTS[-4::2]],
)
def test_every_script_plays_what_it_is_given_and_never_what_is_not_allowed(script, env_id, answer, tmp_path):
    """fakes.Shape ends a run at an action that is not allowed."""
    answer(script, *options_of(script, env_id), "--env-module", "fakes", "--runs-dir", tmp_path, code=0)
    episodes = (folder(tmp_path) / "episodes.csv").read_text().splitlines()
    assert len(episodes) > 10
    answer(PROJECT / "tools/evaluate.py", folder(tmp_path), "--episodes", 2, "--epsilon", 0.5, "--quiet")


def test_a_module_that_does_not_fit_is_wrong_use(refused, tmp_path, monkeypatch):
    script = SCRIPTS[0]
    (tmp_path / "broken_module.py").write_text("import gymnasium\n\nundefined_name\n")
    (tmp_path / "unwritten_module.py").write_text("import gymnasium\nprint(\n")
    (tmp_path / "leaving_module.py").write_text("import sys\n\nsys.exit(3)\n")
    monkeypatch.chdir(tmp_path)
    for module, said in (
        ("broken_module", "NameError: name 'undefined_name' is not defined (line 3 of"),
        ("no_such_module", "ModuleNotFoundError: No module named 'no_such_module'. It has to be installed"),
        ("unwritten_module", f"SyntaxError: '(' was never closed (line 2 of {tmp_path}/unwritten_module.py)"),
        ("leaving_module", "SystemExit: 3 (line 3 of"),
    ):
        message = refused(script, "--env-id", "Chain-v0", "--env-module", module, "--runs-dir", tmp_path / "runs")
        assert f"the module '{module}' of '{module}:Chain-v0' fails to import: {said}" in message
    assert "--env-id says which; give it as well" in refused(script, "--env-module", "fakes")
    assert "names a module already" in refused(script, "--env-module", "fakes", "--env-id", "fakes:Chain-v0")

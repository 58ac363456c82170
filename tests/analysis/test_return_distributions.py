import numpy as np
import torch
from gymnasium import spaces
from ignite.engine import Engine
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lib import dqn_extra
from lib.analysis import return_distributions
from lib.envs.masks import MaskedBox
from lib.experience.ring import Ring
from lib.nets import losses
from lib.run import tensorboard
from lib.run.tensorboard import TensorBoard


def test_a_picture_shows_each_state_beside_the_distributions_of_its_actions():
    net = dqn_extra.ExtendedDQN((3,), 4, sigma=0.5, support=losses.support(-2.0, 2.0, 5))
    before = torch.get_rng_state()
    states = np.eye(3, dtype=np.float32)[:2]
    figure = return_distributions.draw(net, states)
    assert net.training
    assert torch.equal(torch.get_rng_state(), before)
    assert len(figure.axes) == 2 * (1 + 4)
    net.eval()
    probs = net.predict(torch.from_numpy(states)).exp()
    shown = [patch.get_height() for patch in figure.axes[1 + 4 + 1 + 2].patches]  # of the second state, action 2
    assert np.allclose(shown, probs[1, 2].detach())


def test_the_states_of_all_pictures_are_those_of_the_first_also_in_a_resumed_run():
    net, ring = (
        dqn_extra.ExtendedDQN((3,), 4, support=losses.support(-2.0, 2.0, 5)),
        Ring(50, 1, (3,), 1, dtype=np.float32),
    )
    nothing = np.zeros(1, bool)

    def play(steps):
        for step in steps:
            ring.add(np.full((1, 3), step, np.float32), np.zeros(1, int), np.zeros(1), nothing, nothing)

    chosen = return_distributions.ReturnDistributionFigure(net, ring)
    assert len(chosen.state_dict()["states"]) == 0
    play(range(31))
    figure = chosen()
    shown = [figure.axes[row * 5].images[0].get_array()[0, 0] for row in range(chosen.STATES)]
    assert shown == [0.0, 9.0, 19.0, 29.0]
    saved = chosen.state_dict()
    play(range(100, 150))
    chosen()
    assert torch.equal(chosen.state_dict()["states"], saved["states"])
    resumed = return_distributions.ReturnDistributionFigure(net, ring)
    resumed.load_state_dict(saved)
    resumed()
    assert torch.equal(resumed.states, saved["states"])


def test_of_many_actions_the_best_are_drawn_and_nothing_of_what_is_not_allowed():
    space = MaskedBox(spaces.Box(0.0, 1.0, (3,), np.float32), 40)
    net = dqn_extra.ExtendedDQN(space, 40, support=losses.support(-2.0, 2.0, 5))
    states = np.ones((2, 43), np.float32)
    states[:, 3:30] = 0.0  # 10 actions are allowed,
    states[0, 33] = 0.0  # in the first state one less
    figure = return_distributions.draw(net, states)
    assert len(figure.axes) == 2 * (1 + return_distributions.MAX_ACTIONS)
    assert figure.axes[0].images[0].get_array().shape == (1, 3)
    drawn = [[axes.get_title() for axes in figure.axes[row * 19 + 1 : row * 19 + 19] if axes.patches] for row in (0, 1)]
    assert [len(titles) for titles in drawn] == [12, 13]
    assert not any("-10000" in title for titles in drawn for title in titles)
    assert all(-3.0 < bound < 3.0 for axes in figure.axes if axes.patches for bound in axes.get_xlim())


def test_pictures_are_written_by_agent_step(tmp_path, monkeypatch):
    monkeypatch.setattr(tensorboard, "FIGURES_EVERY", 3)
    net = dqn_extra.ExtendedDQN((2, 36, 36), 2, support=losses.support(-2.0, 2.0, 5))
    states = np.zeros((1, 2, 36, 36), np.uint8)
    board, engine = TensorBoard(tmp_path), Engine(lambda engine, batch: None)
    board.attach_figures(
        engine, lambda: 10 * engine.state.iteration, {"distributions": lambda: return_distributions.draw(net, states)}
    )
    engine.run(range(7))
    board.close()
    accumulator = EventAccumulator(str(tmp_path), size_guidance={"images": 0})
    accumulator.Reload()
    assert [event.step for event in accumulator.Images("pictures/distributions")] == [30, 60]

import numpy as np
import torch
from ignite.engine import Engine
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lib import distributions, losses, telemetry
from lib.dqn_extra import ExtendedDQN


def test_a_picture_shows_each_state_beside_the_distributions_of_its_actions():
    net = ExtendedDQN((3,), 4, noise="factorised", support=losses.support(-2.0, 2.0, 5))
    before = torch.get_rng_state()
    states = np.eye(3, dtype=np.float32)[:2]
    figure = distributions.draw(net, states)
    assert net.training
    assert torch.equal(torch.get_rng_state(), before)
    assert len(figure.axes) == 2 * (1 + 4)
    net.eval()
    probs = net.predict(torch.from_numpy(states)).exp()
    shown = [patch.get_height() for patch in figure.axes[1 + 4 + 1 + 2].patches]  # of the second state, action 2
    assert np.allclose(shown, probs[1, 2].detach())


def test_pictures_are_written_by_agent_step(tmp_path, monkeypatch):
    monkeypatch.setattr(telemetry, "FIGURES_EVERY", 3)
    net = ExtendedDQN((2, 36, 36), 2, support=losses.support(-2.0, 2.0, 5))
    states = np.zeros((1, 2, 36, 36), np.uint8)
    board, engine = telemetry.TensorBoard(tmp_path), Engine(lambda engine, batch: None)
    board.attach_figures(
        engine, lambda: 10 * engine.state.iteration, {"distributions": lambda: distributions.draw(net, states)}
    )
    engine.run(range(7))
    board.close()
    accumulator = EventAccumulator(str(tmp_path), size_guidance={"images": 0})
    accumulator.Reload()
    assert [event.step for event in accumulator.Images("pictures/distributions")] == [30, 60]

"""Random steps for replay rings, and rings next to their slow twin."""

from types import SimpleNamespace

import numpy as np
from gymnasium import spaces

from lib.experience.stream import Step
from oracles.ring import ListOfSteps

GAMMA = 0.5


def random_steps(rng, num_envs, count, ends=0.25):
    """Yield random steps. The frames of an environment are numbered in the order in which they are observed."""
    for step in range(count):
        terminated, truncated = rng.random((2, num_envs)) < ends / 2
        frames = (1000 * np.arange(1, num_envs + 1) + step).astype(np.int32)[:, None]
        yield (
            frames,
            rng.integers(0, 5, num_envs),
            rng.integers(-3, 4, num_envs).astype(np.float32),
            terminated,
            truncated & ~terminated,
            frames + 500,
        )


def eventless(frames):
    """Return a step with these frames, without rewards and ends."""
    zeros = np.zeros(len(frames), np.int64)
    return Step(frames, zeros, zeros.astype(np.float32), zeros > 0, zeros > 0, frames)


def ring_of(kind, capacity, num_envs, shape=(1,), stack=1, dtype=np.float32, **options):
    """Make a ring to which steps are added by hand."""
    space = spaces.Box(0, 1, (stack, *shape) if stack > 1 else shape, dtype)
    envs = SimpleNamespace(num_envs=num_envs, single_observation_space=space, single_action_space=spaces.Discrete(5))
    stream = SimpleNamespace(envs=envs, stacked=stack > 1, seed=3, interrupted_states=None, steps=lambda: iter(()))
    return kind(stream, capacity, **options)


def ring_and_twin(kind, length, num_envs, n_step, stack=3):
    """Make a ring of `length` steps per environment and its slow twin."""
    ring = ring_of(kind, (length - 1) * num_envs + 1, num_envs, (1,), stack, np.int32, n_step=n_step, gamma=GAMMA)
    return ring, ListOfSteps(length, num_envs, stack, n_step, GAMMA)


def places_of(twin, num_envs):
    """Return all pairs (step, environment) at which a transition can be sampled."""
    return [(step, env) for step in twin.valid() for env in range(num_envs)]


def index_of(ring, place):
    """Return the position of a pair (step, environment) in the ring's arrays and its tree."""
    step, env = place
    return step % ring.length * ring.num_envs + env


def batch_at(ring, places):
    """Return the transitions that start at each pair (step, environment)."""
    steps, envs = zip(*places, strict=True)
    return ring._make_batch(np.array(steps), np.array(envs), np.ones(len(places)))


def check(batch, places, twin):
    """Compare a batch with the transitions of the slow twin."""
    for row, (step, env) in enumerate(places):
        state, action, total, next_state, discount = twin.transition(step, env)
        assert batch.states[row, 0].tolist() == np.ravel(state).tolist()
        assert batch.actions[row] == action
        assert batch.returns[row] == total
        assert batch.discounts[row] == discount
        if next_state is not None:
            assert batch.next_states[row, 0].tolist() == np.ravel(next_state).tolist()

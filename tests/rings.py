"""Random steps for replay rings, and rings next to their slow twin."""

import dataclasses

import numpy as np
import torch

from lib.experience.batch import Batch
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


def ring_and_twin(kind, length, num_envs, n_step, stack=3):
    """Make a ring of `length` steps per environment and its slow twin."""
    ring = kind(
        (length - 1) * num_envs + 1, num_envs, (1,), stack=stack, n_step=n_step, gamma=GAMMA, dtype=np.int32, seed=3
    )
    return ring, ListOfSteps(length, num_envs, stack, n_step, GAMMA)


def places_of(twin, num_envs):
    """Return all pairs (step, environment) at which a transition can be sampled."""
    return [(step, env) for step in twin.valid() for env in range(num_envs)]


def sample_many(ring, count, batch_size=20):
    """Sample transitions batch by batch and join the batches."""
    batches = [dataclasses.asdict(ring.sample(batch_size)) for _ in range(count // batch_size)]
    return Batch(**{name: torch.cat([batch[name] for batch in batches]) for name in batches[0]})


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

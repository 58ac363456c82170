"""Snapshots on a random walk beside plain lists."""

import numpy as np
import torch
from gymnasium.spaces import Discrete
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.experience.snapshot import Snapshot

STEPS = st.tuples(st.just("append"), st.integers(1, 6))
RESETS = st.tuples(st.just("restart"), st.lists(st.booleans(), min_size=2, max_size=2).filter(any))
SAVES = st.tuples(st.just("save"), st.none())


def seed_of(env, reset):
    return 1000 * reset + env


def new_snapshot():
    snapshot = Snapshot(seed_of, 2, Discrete(9))
    snapshot.ROOM = 4
    return snapshot


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(STEPS, STEPS, RESETS, SAVES), max_size=40))
def test_seeds_actions_and_traces_equal_those_of_lists(operations):
    """Steps before all resets are dropped."""
    snapshot = new_snapshot()
    snapshot.restart(0)
    resets, lists, traces, count, longest = [0, 0], [[], []], [], 0, 0
    for operation, argument in operations:
        if operation == "append":
            for step in range(count, count + 2 * argument, 2):
                chosen = np.array([step, step + 1])
                snapshot.append(chosen)
                chosen[:] = -1  # an agent may overwrite its array
            for env, actions in enumerate(lists):
                actions.extend(range(count + env, count + 2 * argument, 2))
                traces.append((snapshot.trace(env, argument, "last"), resets[env], list(actions), argument))
            count += 2 * argument
        elif operation == "restart":
            snapshot.restart(count, np.array(argument))
            for env in np.flatnonzero(argument).tolist():
                resets[env], lists[env] = count, []
        else:
            saved = snapshot.state_dict()
            assert len(saved["actions"]) == max(map(len, lists))
            snapshot = new_snapshot()
            snapshot.load_state_dict(saved)
            assert all(
                torch.equal(snapshot.state_dict()[name], saved[name]) for name in ("resets", "starts", "actions")
            )
        kept = [snapshot.actions[start:, env].tolist() for env, start in enumerate(snapshot.starts)]
        assert kept == lists
        longest = max(longest, *map(len, lists))
        assert len(snapshot.actions) <= 2 * longest + snapshot.ROOM
        assert snapshot.seeds() == [1000 * resets[0], 1000 * resets[1] + 1]
    for env, (trace, reset, actions, length) in enumerate(traces):
        assert (trace.seed, trace.actions.tolist()) == (seed_of(env % 2, reset), actions)
        assert (trace.first, trace.last_state) == (len(actions) - length, "last")

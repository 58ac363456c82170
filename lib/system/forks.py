"""Clean-up in forked children: they release locks and signal handlers.

This project starts its own processes with a fork server. But environments may fork the process of a run.
"""

import os
import weakref
from collections.abc import Callable
from typing import Any

_actions: weakref.WeakKeyDictionary[object, Callable[[Any], object]] = weakref.WeakKeyDictionary()


def in_forked_children(owner: object, action: Callable[[Any], object]) -> None:
    """Call action(owner) in every child that this process forks while the owner exists.

    Args:
        owner: hashable object. It is not kept alive.
        action: function without a reference to the owner, such as a method of its class. It replaces an earlier one of
            the same owner.
    """
    _actions[owner] = action


def _act() -> None:
    for owner, action in list(_actions.items()):
        action(owner)


os.register_at_fork(after_in_child=_act)

"""Acting elsewhere: start n actors, broadcast weights, gather segments, close; inline, in processes, on Ray.

An actor is made where it acts, by `make(number, state)`, and has the two methods of `Actor`. Whoever learns sees one
interface:

    with start("process", make, 8, model, state_of) as actors:
        actors.broadcast(model)
        segments = actors.gather()

An actor that dies, or takes too long, is replaced by one that begins where `state_of(number)` says, and what it owed
is asked for again: no segment is lost, none comes twice.
"""

from lib.actors.contract import ENGINES, Actor, ActorFailed, Actors, Stopped, Weights
from lib.actors.engines import start

__all__ = ["ENGINES", "Actor", "ActorFailed", "Actors", "Stopped", "Weights", "start"]

"""What a learner may expect of an actor, a Counter of fakes.py, whatever happens to the actor."""

from collections import deque


class Expected:
    """An actor, its open orders and its losses."""

    def __init__(self):
        self.orders, self.began, self.count, self.losses = deque(), 0, 0, 0
        self.pid, self.harmed = None, {None}  # its process, and those that were killed or stopped

    def came(self, segment):
        """Segments come once and in order, played with the weights that were ordered."""
        self.count += 1
        version = self.orders.popleft()
        assert (segment.began, segment.nth) == (self.began, self.count)
        assert segment.version == segment.weight == version
        self.pid = segment.pid

    def compare(self, record):
        """Orders are lost only with their actor, which comes back and goes on from its last segment."""
        if record.losses > self.losses:
            self.losses += 1
            self.orders.clear()
            self.began = self.count
        assert record.losses == self.losses < len(self.harmed)
        assert record.orders == len(self.orders)

"""How replay buffers take experience from a source, also after an error interrupted them."""

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")


class RestartingIterator(Iterator[Item], Generic[Item]):
    """Iterator over a source. After an error, it begins a new iteration, because an error ends a generator.

    Args:
        source: iterable that goes on where it was when it is iterated again.
    """

    def __init__(self, source: Iterable[Item]):
        self._source = source
        self._iterator = iter(source)

    def __next__(self) -> Item:
        try:
            return next(self._iterator)
        except StopIteration:  # the source has ended
            raise
        except BaseException:
            self._iterator = iter(self._source)
            raise


class Additions:
    """Additions of a call of `populate`, which an error may interrupt. The same call then makes the missing ones.

    Attributes:
        made: number of additions of the interrupted call; 0 without one.
    """

    def __init__(self, made: int = 0):
        self.made = made
        self._wanted: int | None = None  # unknown in a resumed run

    def missing(self, wanted: int, step: int = 1) -> Iterator[None]:
        """Yield once for each addition that a call still has to make.

        Args:
            wanted: transitions that the call adds in all. None are added if this is below 1.
            step: transitions per addition.
        """
        if wanted < 1:
            return
        if self._wanted not in (None, wanted):  # the interrupted call was another one
            self.made = 0
        self._wanted = wanted
        for _ in range(self.made, wanted, step):
            yield
            self.made += step
        self.made, self._wanted = 0, None

"""Files of a run folder that only grow."""

import logging
import os
from collections.abc import Callable
from pathlib import Path

from lib.system import files

log = logging.getLogger(__name__)


class GrowingFiles:
    """The files of a run folder that only grow; its state_dict holds their sizes, and loading cuts them back to these.

    So a run that is resumed from a checkpoint has no stretch twice, in TensorBoard or in episodes.csv.

    Args:
        folder: the run folder.
    """

    PATTERNS = ("episodes.csv", "events.out.tfevents.*")

    def __init__(self, folder: Path):
        self.folder = folder
        self.flush: Callable[[], None] = lambda: None

    def state_dict(self) -> dict[str, int]:
        self.flush()
        for path in self._files():
            with path.open("rb+") as file:
                files.sync(file)  # a checkpoint that is on the disk is not to know more than they do
        return {path.name: path.stat().st_size for path in self._files()}

    def load_state_dict(self, sizes: dict[str, int]) -> None:
        for path in self._files():
            there, size = path.stat().st_size, sizes.get(path.name, 0)
            if there < size:
                log.warning("%s is shorter than it was: what its last %d bytes told is lost.", path, size - there)
            elif size:
                os.truncate(path, size)
            else:
                path.unlink()

    def _files(self) -> list[Path]:
        return sorted(path for pattern in self.PATTERNS for path in self.folder.glob(pattern))

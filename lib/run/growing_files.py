"""Files of a run folder that only grow: episodes.csv and TensorBoard's event files."""

import logging
import os
from collections.abc import Callable
from pathlib import Path

from lib.system import files

log = logging.getLogger(__name__)


class GrowingFiles:
    """Sizes of the growing files. Loading a state truncates the files to the saved sizes.

    A checkpoint holds the sizes, so a resumed run does not write any part of these files twice.

    Args:
        folder: run folder.
        flush: function that writes buffered data to the files.
    """

    PATTERNS = ("episodes.csv", "events.out.tfevents.*")

    def __init__(self, folder: Path, flush: Callable[[], object] = lambda: None):
        self.folder = folder
        self.flush = flush

    def state_dict(self) -> dict[str, int]:
        self.flush()
        for path in self._files():
            with path.open("rb+") as file:
                files.sync(file)  # these files must reach the disk before the checkpoint does
        return {path.name: path.stat().st_size for path in self._files()}

    def load_state_dict(self, sizes: dict[str, int]) -> None:
        for name in sorted(set(sizes) - {path.name for path in self._files()}):
            log.warning("%s is missing: its first %d bytes are lost.", self.folder / name, sizes[name])
        for path in self._files():
            current, saved = path.stat().st_size, sizes.get(path.name, 0)
            if current < saved:
                log.warning("%s is shorter than at the checkpoint: its last %d bytes are lost.", path, saved - current)
            elif saved:
                os.truncate(path, saved)
            else:
                path.unlink()

    def _files(self) -> list[Path]:
        return sorted(path for pattern in self.PATTERNS for path in self.folder.glob(pattern))

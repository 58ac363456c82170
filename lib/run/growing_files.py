"""Files of a run folder that only grow: episodes.csv and TensorBoard's event files."""

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lib.errors import Fault, UsageError
from lib.system import files
from lib.system.shapes import TEXT, Each, misfits

SAVED = {"size": (int,), "sha256": TEXT}  # types of a file's entry in a state

log = logging.getLogger(__name__)


class GrowingFiles:
    """Sizes and digests of the growing files.

    Loading a state truncates the files to the saved sizes, and deletes other growing files. A checkpoint holds the
    state, so a resumed run does not write any part of these files twice.

    Args:
        folder: run folder.
        flush: function that writes buffered data to the files.
        record: function that is called with each state that is returned or loaded.
    """

    PATTERNS = ("episodes.csv", "events.out.tfevents.*")

    def __init__(
        self,
        folder: Path,
        flush: Callable[[], object] = lambda: None,
        record: Callable[[dict[str, dict[str, Any]]], object] = lambda state: None,
    ):
        self.folder = folder
        self.flush = flush
        self.record = record
        self._known: set[str] = set()  # names of the files at the last call of state_dict

    def state_dict(self) -> dict[str, dict[str, Any]]:
        """Return size and SHA-256 of each file, by name."""
        self.flush()
        for path in self._files():
            with path.open("rb+") as file:
                files.sync(file)  # these files must reach the disk before the checkpoint does
        state = {path.name: {"size": path.stat().st_size, "sha256": files.digest(path)} for path in self._files()}
        for name in sorted(self._known - state.keys()):
            log.warning("%s was deleted: its content is lost.", self.folder / name)
        self._known = set(state)
        self.record(state)
        return state

    def require_unchanged(self, state: Mapping[str, Any]) -> None:
        """Compare the files with a saved state. Files may have grown or be missing.

        Raises:
            UsageError: if the content up to a saved size has changed.
            Fault: if the state is malformed.
        """
        saved = _checked(state)
        for path in self._files():
            size, expected = saved.get(path.name, (0, None))
            if expected is not None:
                require_digest(path, size, expected)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Truncate the files to their saved sizes, and delete files that the state does not list."""
        saved_files = _checked(state)
        kept = {path.name for path in self._files()}
        # Recorded first: if this process is killed before a file is truncated, its start still has this digest.
        self.record(
            {name: {"size": size, "sha256": digest} for name, (size, digest) in saved_files.items() if name in kept}
        )
        sizes = {name: size for name, (size, _) in saved_files.items()}
        for name in sorted(set(sizes) - {path.name for path in self._files()}):
            log.warning("%s is missing: its first %d bytes are lost.", self.folder / name, sizes[name])
        for path in self._files():
            if saved := sizes.get(path.name, 0):
                os.truncate(path, min(saved, path.stat().st_size))
            else:
                path.unlink()

    def _files(self) -> list[Path]:
        return sorted(path for pattern in self.PATTERNS for path in self.folder.glob(pattern))


def _checked(state: Mapping[str, Any]) -> dict[str, tuple[int, str | None]]:
    """Return sizes and digests. Earlier versions saved only the sizes.

    Raises:
        Fault: if the state is malformed.
    """
    if not isinstance(state, Mapping):
        raise Fault("the checkpoint's list of files is invalid; it was edited. Restore it")
    new = {name: saved if isinstance(saved, dict) else {"size": saved} for name, saved in state.items()}
    wrong = sorted(misfits(new, Each(SAVED)))
    if wrong or any(saved.get("size", -1) < 0 for saved in new.values()):
        raise Fault("the checkpoint has an invalid file size or digest; it was edited. Restore it")
    return {name: (saved["size"], saved.get("sha256")) for name, saved in new.items()}


def require_digest(
    path: Path, size: int, expected: str, remedy: str = "restore it, or delete it to go on without it"
) -> None:
    """Compare the first `size` bytes of a file with an expected SHA-256.

    Args:
        path: path of the file.
        size: number of bytes.
        expected: digest in hexadecimal.
        remedy: what to do about a change, for the message.

    Raises:
        UsageError: if they differ.
    """
    if path.stat().st_size < size or files.digest(path, size) != expected:
        raise UsageError(f"{path} was changed after it was written; {remedy}")

"""The console: log lines between progress bars, and the commands that they show."""

import logging
import shlex
import sys
import threading
from contextlib import suppress
from pathlib import Path

from tqdm import tqdm

from lib.system.files import PROJECT

# From Python 3.14 on, tqdm's own lock starts a process, which imports modules from the current folder.
tqdm.set_lock(threading.RLock())


class Console(logging.Handler):
    """Write log lines to standard output without breaking a progress bar. A line that cannot be written is lost."""

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError, ValueError), tqdm.external_write_mode(file=sys.stdout):
            print(self.format(record), flush=True)


def start_console() -> None:
    """Send this package's log lines to the console. A second call has no effect.

    Characters that the console's encoding lacks are written as escapes.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # not in a notebook
            stream.reconfigure(errors="backslashreplace")
    logger = logging.getLogger("lib")
    if not any(isinstance(handler, Console) for handler in logger.handlers):
        logger.addHandler(Console())
    logger.setLevel(logging.INFO)
    # ignite logs an exception twice before it raises it. The caller that catches it reports it once.
    logging.getLogger("ignite").setLevel(logging.CRITICAL)


def without_folder(word: str) -> str:
    """Return a word of a command line. An absolute path, also one after "--option=", loses its folder."""
    option, equals, value = word.partition("=") if word.startswith("-") else ("", "", word)
    return f"{option}{equals}{Path(value).name if Path(value).is_absolute() else value}"


def install_command(extra: str) -> str:
    """Return the command that installs one of the project's extras, from any folder."""
    return f"pip install -e {shlex.quote(f'{PROJECT}[{extra}]')}"

"""Optional work after the end of a run is saved, such as its evaluation."""

import logging
from collections.abc import Callable

from lib.errors import Fault, UsageError
from lib.system import memory

log = logging.getLogger(__name__)


def run_optional(name: str, work: Callable[[], None]) -> None:
    """Do work that Ctrl-C or an error may end. That is logged, and the program goes on.

    Args:
        name: name of the work, for messages.
        work: function without arguments.

    Raises:
        OSError, MemoryError, RuntimeError: if a file cannot be written, or memory is short.
    """
    try:
        work()
    except KeyboardInterrupt:
        log.info("The %s was stopped; the run is saved.", name)
    except (UsageError, Fault) as error:  # such as an environment of which only one can be open
        log.warning("The %s failed; the run is saved. %s", name, error)
    except Exception as error:  # usually raised by the environment
        if isinstance(error, OSError) or memory.shortage(error):
            raise
        log.exception("The %s failed; the run is saved.", name)

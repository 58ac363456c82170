"""Optional work after the end of a run is saved, such as its evaluation."""

import logging
from collections.abc import Callable

from lib.errors import UsageError
from lib.run.stopping import as_ctrl_c
from lib.run.watchdog import CallInterrupted

log = logging.getLogger(__name__)


def run_optional(name: str, work: Callable[[], None], may_fail: bool = False) -> list[int]:
    """Do work that a signal, a hanging call or a UsageError may end; the program goes on.

    Args:
        name: name of the work, for messages.
        work: function without arguments.
        may_fail: log an exception as a warning instead of raising it. The evaluation makes its own environments, which
            may fail for a script of the book.

    Returns:
        The numbers of the signals that ended the work.
    """
    with as_ctrl_c() as received:
        try:
            work()
        except KeyboardInterrupt:
            log.info("The %s was stopped; the run is saved.", name)
        except CallInterrupted as error:
            log.error("The %s was stopped; the run is saved. %s.", name, str(error).rstrip())
        except UsageError as error:  # such as an environment of which only one can be open
            log.warning("The %s failed; the run is saved. %s", name, error)
        except Exception as error:
            if not may_fail:
                raise
            log.warning("The %s failed; the run is saved. %s: %s", name, type(error).__name__, error)
    return received

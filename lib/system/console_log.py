"""Log lines of this package on the console, without tearing progress bars apart."""

import logging
import sys

from tqdm import tqdm


class Console(logging.Handler):
    """Writes log lines to standard output without tearing a progress bar apart."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            with tqdm.external_write_mode(file=sys.stdout):
                print(self.format(record), flush=True)
        except OSError:
            logging.getLogger("lib").removeHandler(self)  # nobody listens any more, and a run need not die of it


def start_console() -> None:
    """Send this package's log lines to the console; a second call does nothing."""
    logger = logging.getLogger("lib")
    if not any(isinstance(handler, Console) for handler in logger.handlers):
        logger.addHandler(Console())
    logger.setLevel(logging.INFO)
    # ignite logs an exception twice before it raises it; whoever catches it reports it once.
    logging.getLogger("ignite").setLevel(logging.CRITICAL)

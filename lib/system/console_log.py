"""Show this package's log lines on the console without breaking progress bars."""

import logging
import sys

from tqdm import tqdm


class Console(logging.Handler):
    """Write log lines to standard output without breaking a progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            with tqdm.external_write_mode(file=sys.stdout):
                print(self.format(record), flush=True)
        except OSError:
            # The terminal is closed. The run goes on without it.
            logging.getLogger("lib").removeHandler(self)


def start_console() -> None:
    """Send this package's log lines to the console. A second call has no effect."""
    logger = logging.getLogger("lib")
    if not any(isinstance(handler, Console) for handler in logger.handlers):
        logger.addHandler(Console())
    logger.setLevel(logging.INFO)
    # ignite logs an exception twice before it raises it. The caller that catches it reports it once.
    logging.getLogger("ignite").setLevel(logging.CRITICAL)

"""Three small games that show how to train on your own environment: `--env-id examples.snake:Snake-v0`."""

import lib  # noqa: F401 - without the installed packages, it ends the program with one line

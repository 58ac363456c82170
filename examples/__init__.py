"""Three small games that show how to train on your own environment: `--env-module examples.snake --env-id Snake-v0`."""

import lib  # noqa: F401 - without the installed packages, it ends the program with one line

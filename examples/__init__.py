"""Two small games that show how to train on your own environment: `--env-module examples.snake --env-id Snake-v0`."""

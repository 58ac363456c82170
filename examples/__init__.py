"""Small environments of one's own, on which the scripts are shown: `--env-module examples.snake --env-id Snake-v0`."""

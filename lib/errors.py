"""Errors that end a run with a one-line message and an exit code."""

import re


class UsageError(Exception):
    """A request that cannot be met. The message says what was given, what is allowed and what to do."""

    exit_code = 2


class Fault(Exception):
    """A failure such as a full disk, a damaged file or a loss that is not finite. The message says what to do."""

    exit_code = 1

    def __init__(self, message: str, exit_code: int = exit_code):
        super().__init__(message)
        self.exit_code = exit_code


class CallInterrupted(Fault):
    """A call of an environment did not return before the time limit, or after a signal."""


class Interrupted(SystemExit):
    """A signal during the warm-up, when there is nothing to save yet. The exit code is 128 + its number."""


class EnvironmentFailed(Exception):
    """Error of an environment that would look like an error of this program. The message names the environment."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error, without torch's place in its source."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return re.sub(r"^\[enforce fail[^]]*\][\s.]*", "", line)


def counted(noun: str, first: int, last: int) -> str:
    """Return "environment 3", or "environments 3 to 5", for a message."""
    return f"{noun} {first}" if first == last else f"{noun}s {first} to {last}"


def divisors(number: int, least: int = 1) -> str:
    """List the divisors of a number that are at least `least`, for an error message."""
    return ", ".join(str(n) for n in range(least, number + 1) if number % n == 0)

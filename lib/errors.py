"""The two ways in which a run can fail that are nobody's bug here: a wrong request and a fault of the world."""


class UsageError(Exception):
    """The user asked for something that cannot be had; the message says what was given and what is allowed."""

    exit_code = 2


class Fault(Exception):
    """The world failed us (a full disk, a damaged file, a loss that is no number); the message says what to do."""

    exit_code = 1


def divisors(number: int, least: int = 1) -> str:
    """What a number may be divided by, from `least` on, for a message."""
    return ", ".join(str(n) for n in range(least, number + 1) if number % n == 0)

"""The two ways in which a run can fail that are nobody's bug here: a wrong request and a fault of the world."""

import math


class UsageError(Exception):
    """The user asked for something that cannot be had; the message says what was given and what is allowed."""

    exit_code = 2


class Fault(Exception):
    """The world failed us (a full disk, a damaged file, a loss that is no number); the message says what to do."""

    exit_code = 1


def divisors(number: int, least: int = 1) -> str:
    """What a number may be divided by, from `least` on, for a message."""
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return ", ".join(str(n) for n in sorted({*small, *(number // n for n in small)}) if n >= least)

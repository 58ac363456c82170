"""Options of an Atari game's preprocessing, which are part of its id.

An id may end in "?stack=2&noop_max=0&max_frames=0". Evaluations, videos and resumed runs make their
environment from the run's id, and thus get the same preprocessing, except that evaluations always start with 1 to 30
no-ops.
"""

import dataclasses
from typing import Self
from urllib.parse import parse_qsl, urlencode

from lib.envs.atari import NOOP_MAX
from lib.errors import UsageError


@dataclasses.dataclass(frozen=True)
class Preprocessing:
    """How the screens of an Atari game become states.

    Attributes:
        stack: frames in a state, 1 to 16.
        noop_max: maximum number of no-op actions at the start of an episode; 0 for none.
        max_frames: 1 to observe the maximum of the last two frames of a step, 0 to observe the last frame.
    """

    stack: int = 4
    noop_max: int = NOOP_MAX
    max_frames: int = 1

    def __post_init__(self) -> None:
        for name, low, high in (("stack", 1, 16), ("noop_max", 0, 1000), ("max_frames", 0, 1)):
            value = getattr(self, name)
            if not low <= value <= high:
                raise UsageError(f"{name} is {value}; it has to be between {low} and {high}")

    @classmethod
    def of(cls, env_id: str) -> Self:
        """Return the options of an id; the defaults if it has none.

        Raises:
            UsageError: if an option is unknown, or a value is not a whole number or out of range.
        """
        names = [field.name for field in dataclasses.fields(cls)]
        options = dict(parse_qsl(env_id.partition("?")[2], keep_blank_values=True))
        for name, value in options.items():
            if name not in names or not value.isdecimal():
                raise UsageError(
                    f"{env_id!r} has the option {name}={value}; the options are {', '.join(names)}, with whole numbers"
                )
        return cls(**{name: int(value) for name, value in options.items()})

    def add_to(self, env_id: str) -> str:
        """Return an id with these options. Defaults are left out.

        Raises:
            UsageError: if the id has other options.
        """
        usual = type(self)()
        if type(self).of(env_id) not in (usual, self):
            raise UsageError(f"{env_id} has options after the '?'; give them as options of the script instead")
        options = {name: value for name, value in vars(self).items() if value != getattr(usual, name)}
        return without_options(env_id) + (f"?{urlencode(options)}" if options else "")


def without_options(env_id: str) -> str:
    """Return the id that is registered with gymnasium."""
    return env_id.partition("?")[0]

"""Code that the scripts share, imported before other packages, so that a missing environment is reported in one line.

This file runs in any Python 3, also without packages.
"""

import os
import sys
from importlib.util import find_spec
from types import TracebackType

# Packages that scripts and tools import. Extras, such as Ray, have messages of their own.
PACKAGES = {
    *("ale_py", "bokeh", "cloudpickle", "cv2", "filelock", "gymnasium", "ignite", "jinja2", "matplotlib", "numpy"),
    *("packaging", "pandas", "PIL", "psutil", "ptan", "stable_baselines3", "tensorboard", "torch", "tqdm"),
}
_PROJECT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_ADVICE = (
    f"Run `make train` in {_PROJECT}, which installs everything first, or activate the environment: "
    f"source {_PROJECT}/.venv/bin/activate"
)
_show = sys.excepthook


def _excepthook(kind: "type[BaseException]", error: BaseException, trace: "TracebackType | None") -> None:
    package = (getattr(error, "name", None) or "").split(".")[0]
    if kind is ModuleNotFoundError and package in PACKAGES and find_spec(package) is None:
        print(f"error: {package} is not installed for {sys.executable}. {_ADVICE}", file=sys.stderr)
        raise SystemExit(2)
    if any(note.startswith("Raised by ") for note in getattr(error, "__notes__", ())):
        error = error.with_traceback(_in_environment(trace))
    _show(kind, error, error.__traceback__)


def _in_environment(trace: "TracebackType | None") -> "TracebackType | None":
    """Return the end of a traceback, in the code of an environment; all of it if it ends in our code or gymnasium's."""
    own = part = trace
    while part is not None:
        file = part.tb_frame.f_code.co_filename
        own = part.tb_next if file.startswith(f"{_PROJECT}/lib/") or "/gymnasium/" in file else own
        part = part.tb_next
    return own or trace


sys.excepthook = _excepthook

if sys.version_info < (3, 11):  # noqa: UP036 - a system's own Python may be older
    version = ".".join(map(str, sys.version_info[:2]))
    message = f"error: {sys.executable} is Python {version}, and 3.11 or newer is needed. {_ADVICE}"
    print(message, file=sys.stderr)
    raise SystemExit(2)

# Torch's threads wait for each other at every layer. By default a waiting thread spins 300,000 times. If other programs
# are busy, it occupies the core that the awaited thread needs, and steps took six times as long. Results do not depend
# on it. libgomp reads this variable when torch is imported.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")

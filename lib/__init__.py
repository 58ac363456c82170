"""Code that the numbered scripts share, one role per module (see docs/design.md).

Scripts import it before other packages. A missing environment then prints one line instead of a traceback. This file
runs in any Python 3, also without packages.
"""

import os
import sys
from importlib.util import find_spec

# Packages that scripts and tools import. Extras, such as Ray, have messages of their own.
PACKAGES = {
    *("ale_py", "cloudpickle", "cv2", "gymnasium", "ignite", "jinja2", "matplotlib", "numpy", "packaging"),
    *("pandas", "PIL", "psutil", "ptan", "stable_baselines3", "tensorboard", "torch", "tqdm"),
}
_PROJECT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_show = sys.excepthook


def missing_environment(package: str) -> str:
    """Return an error message that says which package is missing and how to get the environment that has it."""
    python = os.path.join(_PROJECT, ".venv", "bin", "python")
    text = f"error: {package} is not installed for {sys.executable}. "
    if not os.path.exists(python):
        return f"{text}Run `make train` in {_PROJECT}, which installs everything first, or see docs/install.md"
    if os.path.samefile(sys.prefix, os.path.join(_PROJECT, ".venv")):
        return f"{text}The environment is incomplete: run `make clean` and then `make train` in {_PROJECT}"
    return f"{text}Activate the environment: source {os.path.dirname(python)}/activate"


def _excepthook(kind: "type[BaseException]", error: BaseException, trace: object) -> None:
    package = (getattr(error, "name", None) or "").split(".")[0]
    if kind is ModuleNotFoundError and package in PACKAGES and find_spec(package) is None:
        print(missing_environment(package), file=sys.stderr)
        raise SystemExit(2)
    _show(kind, error, trace)  # type: ignore[arg-type]


sys.excepthook = _excepthook

if sys.version_info < (3, 11):  # noqa: UP036 - a system's own Python may be older
    version = ".".join(map(str, sys.version_info[:2]))
    print(
        f"error: {sys.executable} is Python {version}, and 3.11 or newer is needed. Install it and run `make train` in "
        f"{_PROJECT}, or activate an environment that has it",
        file=sys.stderr,
    )
    raise SystemExit(2)

# Torch's threads wait for each other at every layer. By default a waiting thread spins 300,000 times. If other programs
# are busy, it occupies the core that the awaited thread needs, and steps took six times as long. Results do not depend
# on it. libgomp reads this variable when torch is imported.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")

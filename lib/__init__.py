"""Code that the numbered scripts share, one role per module (see docs/design.md).

Scripts import it before other packages. Ctrl-C during the slow imports that follow, or a missing environment, then
prints one line instead of a traceback. This file runs in any Python 3, also without packages.
"""

import os
import signal
import sys
import threading
import time
from importlib.util import find_spec

TYPE_CHECKING = False  # as in typing, which would have to be imported before the hook is set
if TYPE_CHECKING:
    from types import FrameType, TracebackType

# Packages that scripts and tools import. Extras, such as Ray, have messages of their own.
PACKAGES = {
    *("ale_py", "cloudpickle", "cv2", "gymnasium", "ignite", "jinja2", "matplotlib", "numpy", "packaging"),
    *("pandas", "PIL", "psutil", "ptan", "stable_baselines3", "tensorboard", "torch", "tqdm"),
}
IMPORTED = time.monotonic()  # the clock of a run may begin here, see lib.system.clock
ADDRESS_SPACE = 10**9  # bytes that the imports of a script take
UNMAPPED = "failed to map segment"  # the dynamic linker's words if a library does not fit into the address space
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


def has_environment() -> bool:
    """Return whether any of the main packages is installed."""
    return any(find_spec(package) for package in ("torch", "ignite", "gymnasium"))


def _excepthook(kind: "type[BaseException]", error: BaseException, trace: "TracebackType | None") -> None:
    package = (getattr(error, "name", None) or "").split(".")[0]
    if kind is ModuleNotFoundError and package in PACKAGES and find_spec(package) is None:
        print(missing_environment(package), file=sys.stderr)
        raise SystemExit(2)
    if issubclass(kind, ImportError) and UNMAPPED in str(error):
        print(f"error: memory ran out during the imports: {error}. Raise the limit of ulimit -v", file=sys.stderr)
        raise SystemExit(1)
    if issubclass(kind, KeyboardInterrupt) and hasattr(error, "exit_code"):  # stopping.Interrupted, in the warm-up
        print(f"Stopped by {error} before learning began.", file=sys.stderr)
        raise SystemExit(error.exit_code)
    if issubclass(kind, MemoryError):
        message = "error: memory ran out. Free some memory, or raise the limit of ulimit -v"
        print(message, *getattr(error, "__notes__", ()), sep="\n", file=sys.stderr)
        raise SystemExit(1)
    _show(kind, error, trace)


def _on_ctrl_c(number: int, frame: "FrameType | None") -> None:
    """End the process at once while the script imports. Later, raise KeyboardInterrupt as Python does.

    An exception would not do: some packages catch it in their imports, or blame another module for it.
    """
    import linecache

    while frame is not None and frame.f_back is not None:
        frame = frame.f_back
    line = "" if frame is None else linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    if line.lstrip().startswith(("import ", "from ")):
        os.write(2, b"Stopped before the run started.\n")
        os._exit(128 + number)
    signal.default_int_handler(number, frame)


def _require_address_space() -> None:
    """End with one line if `ulimit -v` leaves no room for the imports, which would fail in many ways."""
    if sys.platform == "linux":
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit != resource.RLIM_INFINITY and limit < ADDRESS_SPACE:
            print(
                f"error: ulimit -v is {limit // 1024:,} KiB; importing the packages takes "
                f"{ADDRESS_SPACE // 1024:,} KiB, and training more. Raise the limit",
                file=sys.stderr,
            )
            raise SystemExit(1)


_require_address_space()

# Torch's threads wait for each other at every layer. By default a waiting thread spins 300,000 times. If other programs
# are busy, it occupies the core that the awaited thread needs, and steps took six times as long. Results do not depend
# on it. libgomp reads this variable when torch is imported.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")

if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is (
    signal.default_int_handler
):
    signal.signal(signal.SIGINT, _on_ctrl_c)
sys.excepthook = _excepthook

if sys.version_info < (3, 11):  # noqa: UP036 - a system's own Python may be older
    version = ".".join(map(str, sys.version_info[:2]))
    print(
        f"error: {sys.executable} is Python {version}, and 3.11 or newer is needed. Install it and run `make train` in "
        f"{_PROJECT}, or activate an environment that has it",
        file=sys.stderr,
    )
    raise SystemExit(2)

try:
    os.getcwd()
except FileNotFoundError:  # torch's libraries would not find each other
    print("error: the current folder was deleted; change to another one", file=sys.stderr)
    raise SystemExit(2) from None

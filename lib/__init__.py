"""Code that the numbered scripts share, one role per module (see docs/design.md).

Scripts import it before other packages. So Ctrl-C during the imports that follow, which take seconds, ends in one line.
"""

import os
import sys

TYPE_CHECKING = False  # as in typing, which would have to be imported before the hook is set
if TYPE_CHECKING:
    from types import TracebackType

_show = sys.excepthook


def _excepthook(kind: "type[BaseException]", error: BaseException, trace: "TracebackType | None") -> None:
    import traceback

    outermost = traceback.extract_tb(trace, limit=1)
    if kind is KeyboardInterrupt and outermost and (outermost[0].line or "").startswith(("import ", "from ")):
        print("Stopped before anything was begun.", file=sys.stderr)
    else:
        _show(kind, error, trace)


sys.excepthook = _excepthook

try:
    os.getcwd()
except FileNotFoundError:  # torch's libraries would not find each other
    print("error: the current folder was deleted; change to another one", file=sys.stderr)
    raise SystemExit(2) from None

"""Make the fork server end with its parent. The server imports this module first, before the imports that take long."""

import os

from lib.system.parent import OURS, SAFE_PATH, kill_with_parent

kill_with_parent()
if os.environ.get(SAFE_PATH) == OURS:
    del os.environ[SAFE_PATH]  # programs that environments start are not concerned

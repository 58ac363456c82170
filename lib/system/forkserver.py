"""Make the fork server end with its parent. The server imports this module first, before the imports that take long."""

from lib.system.parent import kill_with_parent

kill_with_parent()

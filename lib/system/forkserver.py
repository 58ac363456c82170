"""First import of the fork server, before all imports that take long: the server must not outlive its parent."""

from lib.system.parent import kill_with_parent

kill_with_parent()

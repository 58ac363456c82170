"""Imported by the process that players are forked from, and by it alone, before all that takes its time."""

from lib.system.parent import end_with_parent

end_with_parent()

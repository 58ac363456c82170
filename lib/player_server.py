"""Imported by the process that players are forked from, and by it alone, before all that takes its time."""

from lib.orphans import end_with_parent

end_with_parent()

"""Imported by the process that players are forked from, and by it alone."""

from lib.player_process import end_with_parent

end_with_parent()

"""What the numbered scripts share, one role a module (see docs/design.md)."""

"""Code that the numbered scripts share, one role per module (see docs/design.md)."""

"""What the numbered scripts share, one role a module (see DESIGN in docs/design.md)."""

"""Finished runs: their data, comparison, curves, the report, and the trained policy.

May import lib.run and what that may import.
"""

"""What the machine gives: processes, shared memory, free memory, files, the clock, seeds.

May import lib.errors.
"""

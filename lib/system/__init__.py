"""Processes, free memory, files, time and seeds.

May import lib.errors.
"""

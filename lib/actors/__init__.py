"""Actors in the learner's process, in other processes, or on Ray: start them, broadcast weights, gather segments.

May import lib.experience and the packages that lib.experience may import.
"""

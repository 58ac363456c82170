"""Remote acting: start n actors, broadcast weights, gather segments; inline, in processes, or on Ray.

May import lib.experience and what that may import.
"""

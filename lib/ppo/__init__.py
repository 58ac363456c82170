"""Proximal policy optimization, Schulman et al. (2017), https://arxiv.org/abs/1707.06347.

May import lib.actors, lib.experience and the packages that these two may import.
"""

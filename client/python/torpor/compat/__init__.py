"""Interfaces of other packages, on Torpor."""

"""Torch modules shared by all families."""

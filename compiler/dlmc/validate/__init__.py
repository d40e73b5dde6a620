"""Comparing engines with the reference."""

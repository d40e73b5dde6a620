"""Folders that other servers run bundles from."""

"""Compiler for diffusion language models: checkpoint to bundle to engine."""

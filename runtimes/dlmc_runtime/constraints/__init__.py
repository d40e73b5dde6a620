"""Text that must match: a regular expression, a JSON schema, any JSON object.

The constraint is compiled to an automaton of the model's tokens, and after every forward the
positions of the window take the most probable tokens that it allows. See
docs/structured-output.md.
"""

from dlmc_runtime.constraints.automaton import Automaton as Constraint
from dlmc_runtime.constraints.compiler import (
    Compiler,
    compile_json_object,
    compile_regex,
    compile_schema,
)
from dlmc_runtime.constraints.guide import Guide

__all__ = [
    "Compiler",
    "Constraint",
    "Guide",
    "compile_json_object",
    "compile_regex",
    "compile_schema",
]

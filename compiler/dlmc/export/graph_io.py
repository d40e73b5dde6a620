"""The graph's inputs and outputs: names, order, types and shapes, stated once.

The tracer, the passes, the manifest and the dry run all read them from here; torch is not needed.
"""

from collections.abc import Mapping
from typing import Any

from dlmc.denoiser.config import DenoiserConfig
from dlmc_runtime.manifest import DataType, HeadVariant, TensorSpec

BATCH, BLOCK, CACHE, CONTEXT, ROWS = "batch", "block", "cache", "context", "rows"
LAST, LAST_CONTEXT = "last", "last_context"
"""Symbolic dimensions; ``context`` is always ``cache`` + ``block``. ``last`` is what layers keep
that keep the last positions only, and ``last_context`` is ``last`` + ``block``."""

_Table = tuple[tuple[str, DataType, tuple[int | str, ...]], ...]

_BLOCK_INPUTS: _Table = (
    ("input_ids", "int64", (BATCH, BLOCK)),
    ("position_ids", "int64", (BATCH, BLOCK)),
    ("attention_mask", "bool", (BATCH, 1, BLOCK, CONTEXT)),
)
_SLIDING_INPUTS: _Table = (("sliding_attention_mask", "bool", (BATCH, 1, BLOCK, CONTEXT)),)
_LAST_INPUTS: _Table = (("sliding_attention_mask", "bool", (BATCH, 1, BLOCK, LAST_CONTEXT)),)
_ADAPTER_INPUTS: _Table = (("adapter", "float32", (BATCH,)),)
_HEAD_INPUTS: _Table = (
    ("head_rows", "int64", (BATCH, ROWS)),
    ("temperature", "float32", (BATCH,)),
    ("uniform", "float32", (BATCH, ROWS)),
)
_GUIDED_INPUTS: _Table = (("guidance", "float32", (BATCH,)), ("partner", "int64", (BATCH,)))
_HEAD_OUTPUTS: tuple[tuple[str, DataType], ...] = (
    ("logsumexp", "float32"),
    ("entropy", "float32"),
    ("tempered_logsumexp", "float32"),
    ("tempered_entropy", "float32"),
    ("sampled_id", "int64"),
    ("sampled_logit", "float32"),
)


def _specs(table: _Table) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(name=name, dtype=dtype, shape=shape) for name, dtype, shape in table)


def _key_values(
    stem: str, length: str, last: str, config: DenoiserConfig
) -> tuple[TensorSpec, ...]:
    """Return the keys and values of all layers; of ``last`` where a layer keeps the last ones."""
    found = []
    for layer in range(config.num_hidden_layers):
        kind = config.kind(layer)
        heads, head_dim = config.cache_shape(kind)
        shape = (BATCH, heads, last if config.keeps_last(kind) else length, head_dim)
        found += [
            TensorSpec(name=f"{stem}.{layer}.{part}", dtype="float32", shape=shape)
            for part in ("key", "value")
        ]
    return tuple(found)


def graph_inputs(config: DenoiserConfig, variant: HeadVariant = "plain") -> tuple[TensorSpec, ...]:
    """Return the graph's inputs, in order, with a head of that variant."""
    block = (
        *_BLOCK_INPUTS,
        *(_SLIDING_INPUTS if config.sliding_window is not None else ()),
        *(_LAST_INPUTS if config.sliding_context is not None else ()),
        *(_ADAPTER_INPUTS if config.adapter_rank else ()),
    )
    head = (*_HEAD_INPUTS, *(_GUIDED_INPUTS if variant == "guided" else ()))
    if config.gemma is not None:
        carried: _Table = (
            ("self_conditioning", "float32", (BATCH, BLOCK, config.hidden_size)),
            ("denoising", "bool", (BATCH,)),
        )
        block = (*block, *carried)
    return (*_specs(block), *_key_values("past_key_values", CACHE, LAST, config), *_specs(head))


def arguments(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is given by graph input as the module takes it: by name, ``past`` in pairs.

    >>> arguments({"x": 1, "past_key_values.0.key": 2, "past_key_values.0.value": 3, "y": 4})
    {'x': 1, 'past': [(2, 3)], 'y': 4}
    """
    found: dict[str, Any] = {}
    cached = [value for name, value in inputs.items() if name.startswith("past_key_values.")]
    for name, value in inputs.items():
        if name.startswith("past_key_values."):
            found["past"] = list(zip(cached[::2], cached[1::2], strict=True))
        else:
            found[name] = value
    return found


def graph_outputs(
    config: DenoiserConfig, candidates: int, variant: HeadVariant
) -> tuple[TensorSpec, ...]:
    """Return the graph's outputs, in order, of a head with ``candidates`` (K) of that variant."""
    top = (BATCH, ROWS, candidates)
    outputs = [
        TensorSpec(name="top_ids", dtype="int64", shape=top),
        TensorSpec(name="top_logits", dtype="float32", shape=top),
        *_specs(tuple((name, dtype, (BATCH, ROWS)) for name, dtype in _HEAD_OUTPUTS)),
    ]
    if variant == "logits":
        shape = (BATCH, ROWS, config.vocab_size)
        outputs.append(TensorSpec(name="logits", dtype="float32", shape=shape))
    if config.gemma is not None:
        shape = (BATCH, ROWS, config.hidden_size)
        outputs.append(TensorSpec(name="next_self_conditioning", dtype="float32", shape=shape))
    return (*outputs, *_key_values("present", BLOCK, BLOCK, config))

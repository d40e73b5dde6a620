"""Reading checkpoints: Hugging Face folders of JSON, safetensors and tokenizer files."""

from dlmc.checkpoint.adapter import ADAPTER_CONFIG, Adapter, parse_adapter, read_adapter
from dlmc.checkpoint.checkpoint import Checkpoint
from dlmc.checkpoint.hub import ResolvedCheckpoint, resolve
from dlmc.checkpoint.safetensors_header import TensorLocation
from dlmc.checkpoint.stack import Stack, Weight
from dlmc.checkpoint.token_ids import token_id
from dlmc.checkpoint.weights import check_weights, expected_shapes

__all__ = [
    "ADAPTER_CONFIG",
    "Adapter",
    "Checkpoint",
    "ResolvedCheckpoint",
    "Stack",
    "TensorLocation",
    "Weight",
    "check_weights",
    "expected_shapes",
    "parse_adapter",
    "read_adapter",
    "resolve",
    "token_id",
]

"""Reading checkpoints: Hugging Face folders of JSON, safetensors and tokenizer files."""

from dlmc.checkpoint.checkpoint import Checkpoint
from dlmc.checkpoint.hub import ResolvedCheckpoint, resolve
from dlmc.checkpoint.safetensors_header import TensorLocation
from dlmc.checkpoint.weights import check_weights, expected_shapes

__all__ = [
    "Checkpoint",
    "ResolvedCheckpoint",
    "TensorLocation",
    "check_weights",
    "expected_shapes",
    "resolve",
]

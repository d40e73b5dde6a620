"""Small random checkpoints, and traces that several tests look at."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models

from dlmc.denoiser.config import DenoiserConfig
from dlmc.denoiser.head import DenoiserWithHead, Head
from dlmc.export.graph_io import arguments
from dlmc.export.trace import trace
from dlmc.families.sdar import SDAR
from dlmc.families.spec import FamilySpec, Overrides

MASK = 7

SDAR_CONFIG = {
    "architectures": ["SDARForCausalLM"],
    "model_type": "sdar",
    "block_size": 4,
    "eos_token_id": 5,
    "pad_token_id": 5,
    "mask_token_id": MASK,
    "head_dim": 16,
    "hidden_act": "silu",
    "hidden_size": 32,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "vocab_size": 300,
}


def read(config: dict[str, object]) -> FamilySpec:
    return SDAR.read(config, {}, Overrides())


class RandomCheckpoint:
    """A folder in SDAR's layout, and the module that it holds."""

    def __init__(self, root: Path, dtype: torch.dtype, **changes: object) -> None:
        self.root = root
        self.config = {**SDAR_CONFIG, **changes}
        self.spec = read(self.config)
        self.module = self._module(dtype)
        self._write(dtype)

    def _module(self, dtype: torch.dtype) -> DenoiserWithHead:
        torch.manual_seed(0)
        head = Head(300, 32, [MASK], "logits")
        module = DenoiserWithHead(self.spec.denoiser, head).eval()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.copy_(parameter.to(dtype))
        return module

    def _write(self, dtype: torch.dtype) -> None:
        self.root.mkdir(parents=True)
        (self.root / "config.json").write_text(json.dumps(self.config))
        names = SDAR.weight_names(self.spec)
        parameters = dict(self.module.denoiser.named_parameters())
        tensors = {names[name]: p.detach().to(dtype) for name, p in parameters.items()}
        save_file(tensors, self.root / "model.safetensors")
        vocabulary = {f"t{index}": index for index in range(300)}
        tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="t0"))  # noqa: S106
        tokenizer.save(str(self.root / "tokenizer.json"))
        settings = {"bos_token": None, "eos_token": {"content": "t5"}, "chat_template": "{{ 1 }}"}
        (self.root / "tokenizer_config.json").write_text(json.dumps(settings))


@pytest.fixture(scope="session")
def make_checkpoint(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[..., RandomCheckpoint]:
    def make(dtype: torch.dtype = torch.float32, **changes: object) -> RandomCheckpoint:
        return RandomCheckpoint(tmp_path_factory.mktemp("source") / "random", dtype, **changes)

    return make


@pytest.fixture(scope="session")
def checkpoint(make_checkpoint: Callable[..., RandomCheckpoint]) -> RandomCheckpoint:
    return make_checkpoint()


@pytest.fixture(scope="session")
def config() -> DenoiserConfig:
    return read(SDAR_CONFIG).denoiser


@pytest.fixture(scope="session")
def traced(config) -> ir.Model:
    """A trace of three layers with all logits; not to be changed, `clone` it."""
    return trace(config, Head(300, 32, [MASK], "logits"))


@pytest.fixture(scope="session")
def one_layer(config) -> ir.Model:
    """A trace of one layer with the plain head; not to be changed, `clone` it."""
    return trace(replace(config, num_hidden_layers=1), Head(300, 4, [MASK, 9]))


def feeds_of(
    config: DenoiserConfig, batch: int, block: int, cache: int, rows: int, seed: int = 0
) -> dict[str, np.ndarray]:
    """Return random, valid inputs of the graph."""
    rng = np.random.default_rng(seed)
    mask = rng.random((batch, 1, block, cache + block)) < 0.7
    mask[..., -1] = True
    shape = (batch, config.num_key_value_heads, cache, config.head_dim)
    return {
        "input_ids": rng.integers(0, config.vocab_size, (batch, block)),
        "position_ids": np.tile(np.arange(cache, cache + block), (batch, 1)),
        "attention_mask": mask,
        **{
            f"past_key_values.{layer}.{part}": rng.standard_normal(shape, dtype=np.float32)
            for layer in range(config.num_hidden_layers)
            for part in ("key", "value")
        },
        "head_rows": rng.integers(0, block, (batch, rows)),
        "temperature": rng.choice([0.0, 0.7], batch).astype(np.float32),
        "uniform": rng.random((batch, rows), dtype=np.float32),
    }


@pytest.fixture(scope="session")
def make_feeds() -> Callable[..., dict[str, np.ndarray]]:
    return feeds_of


@pytest.fixture(scope="session")
def run_torch() -> Callable[..., list[np.ndarray]]:
    """Run a `DenoiserWithHead` on inputs by name; outputs come in the graph's order."""

    def run(module: DenoiserWithHead, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        tensors = {name: torch.from_numpy(array) for name, array in feeds.items()}
        with torch.inference_mode():
            found, present = module(**arguments(tensors))
        head = [tensor for tensor in found if tensor is not None]
        return [tensor.numpy() for tensor in (*head, *(one for pair in present for one in pair))]

    return run

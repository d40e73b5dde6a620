"""What runtime tests share: manifests, a byte tokenizer, random models and a scripted engine."""

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from dlmc.denoiser.config import DenoiserConfig, Gemma
from dlmc.denoiser.head import DenoiserWithHead, Head
from dlmc.export.graph_io import graph_inputs, graph_outputs
from dlmc.validate.torch_engine import TorchEngine
from dlmc_runtime.cache import HostCache
from dlmc_runtime.engines.base import Inputs, Outputs, input_shapes
from dlmc_runtime.manifest import HeadVariant, Manifest, Profile
from dlmc_runtime.text import TextCodec

torch.set_num_threads(1)  # the models are far too small to share

VOCAB, MASK, EOS, PAD = 64, 63, 60, 61
CANDIDATES = 8
HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 32, 2, 4, 2, 8
POSITIONS = 256
# Every byte of these characters is one token; é, € and 🙂 take two, three and four of them.
CHARACTERS = "abcdefghijklmnopqrstuvwxyz .,!?\n0123456789é€🙂"


def profile(batch, block, cache, rows):
    return Profile(batch=batch, block=block, cache=cache, rows=rows)


def _manifest(regime="block", block_length=4, profiles=None, guided=False, **changes):
    if profiles is None and regime == "full":
        profiles = (profile(1, 40, 0, 16), profile(4, 40, 0, 16))
    elif profiles is None:
        shapes = ((block_length, block_length), (16, 1))
        profiles = tuple(profile(b, t, 48, r) for b in (1, 4) for t, r in shapes)
    data = {
        "family": "test",
        "architecture": "TestModel",
        "attention": {"regime": regime, "block_length": block_length},
        "shift": 0,
        "tokens": {"mask": MASK, "stop": (EOS,), "pad": PAD, "suppressed": (MASK,)},
        "model": {
            "vocab_size": VOCAB,
            "hidden_size": HIDDEN,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS,
            "head_dim": HEAD_DIM,
            "max_position_embeddings": POSITIONS,
            "parameters": 1,
        },
        "head": {"variant": "plain", "candidates": CANDIDATES},
        "precision": "float32",
        "inputs": (),
        "outputs": (),
        "profiles": profiles,
        "sampler": {
            "name": "low_confidence" if regime == "full" else "low_confidence_dynamic",
            "parameters": {},
        },
        "max_new_tokens": 16,
        "text": None,
        "tolerances": {},
        "provenance": {"source": "test", "versions": {}},
        "config": "config.json",
        "graph": "denoiser.onnx",
        "weights": (),
        "files": {
            name: {"size": 0, "sha256": "0" * 64} for name in ("config.json", "denoiser.onnx")
        },
    }
    if guided:
        data["head"]["variant"] = "guided"
        data["inputs"] = (
            {"name": "guidance", "dtype": "float32", "shape": ("batch",)},
            {"name": "partner", "dtype": "int64", "shape": ("batch",)},
        )
    if changes.get("tokens", data["tokens"])["mask"] is None and "attention" not in changes:
        data["attention"]["aligned_to"] = "answer"  # as canvases are
    return Manifest.model_validate({**data, **changes})


@pytest.fixture(scope="session")
def manifest():
    """Make a manifest: ``manifest(regime, block_length, profiles, **fields)``."""
    return _manifest


@pytest.fixture(scope="session")
def codec():
    """A real `TextCodec` whose tokens are single bytes."""
    pre = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    symbols = dict.fromkeys(pre.pre_tokenize_str(CHARACTERS)[0][0])
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(symbols)}, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre, decoders.ByteLevel()
    fillers = [f"<{i}>" for i in range(len(symbols), EOS)]
    specials = [*fillers, "<eos>", "<pad>", "<62>", "<mask>"]
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in specials])
    assert tokenizer.token_to_id("<mask>") == MASK
    return TextCodec(tokenizer, None)


def _torch_engine(regime="block", block_length=4, profiles=None, seed=0, **changes):
    """A random model whose predictions are confident and depend on what is around them."""
    torch.manual_seed(seed)
    config = DenoiserConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=48,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        qk_norm=True,
    )
    variant: HeadVariant = "guided" if changes.get("guided") else "plain"
    module = DenoiserWithHead(config, Head(VOCAB, CANDIDATES, (MASK,), variant))
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() == 2:
                parameter.normal_(0, 2.0 / parameter.shape[1] ** 0.5)
        module.denoiser.embed_tokens.weight.normal_(0, 1)
        # Weak masks and sharp attention: a mask becomes what its place and surroundings say.
        module.denoiser.embed_tokens.weight[MASK] *= 0.05
        for name, parameter in module.named_parameters():
            if "q_norm" in name:
                parameter.fill_(4.0)
        module.denoiser.lm_head.weight *= 1.5
    made = _manifest(regime, block_length, profiles, **changes)
    return TorchEngine(module, made, made.profiles)


@pytest.fixture(scope="session")
def torch_engine():
    """Make an engine: ``torch_engine(regime, block_length, profiles, seed, **fields)``."""
    cache = {}

    def make(regime="block", block_length=4, profiles=None, seed=0, **changes):
        key = (regime, block_length, profiles, seed, repr(changes))
        if key not in cache:
            cache[key] = _torch_engine(regime, block_length, profiles, seed, **changes)
        return cache[key]

    return make


def _noise_engine(profiles, block_length=4, context=5, seed=0):
    """A random model of random tokens, two of whose layers keep the last positions only."""
    torch.manual_seed(seed)
    config = DenoiserConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=24,
        num_hidden_layers=3,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        rms_norm_eps=1e-6,
        rope_theta=10000.0,
        qk_norm=True,
        tie_word_embeddings=True,
        kinds=("sliding", "sliding", "full"),
        sliding_context=context,
        gemma=Gemma(
            num_experts=4,
            top_k=2,
            expert_intermediate_size=16,
            self_conditioning_size=24,
            global_head_dim=2 * HEAD_DIM,
            global_key_value_heads=1,
            global_rope_theta=1e6,
            global_turning=2,
            softcap=30.0,
            embed_scale=HIDDEN**0.5,
        ),
    )
    module = DenoiserWithHead(config, Head(VOCAB, CANDIDATES, ()))
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 2.0 / parameter.shape[-1] ** 0.5)
            else:
                parameter.uniform_(0.6, 1.2)
        module.denoiser.embed_tokens.weight.normal_(0, 1)
    layers = [
        {"key_value_heads": heads, "head_dim": size, "window": context if last else None}
        for heads, size, last in (
            (*config.cache_shape(kind), config.keeps_last(kind)) for kind in config.kinds
        )
    ]
    plain = _manifest("context", block_length, profiles)
    made = _manifest(
        "context",
        block_length,
        profiles,
        attention={
            "regime": "context",
            "block_length": block_length,
            "aligned_to": "answer",
            "sliding_context": context,
        },
        tokens={"mask": None, "stop": (EOS,), "pad": PAD, "suppressed": ()},
        model=plain.model.model_dump() | {"num_hidden_layers": 3, "layers": tuple(layers)},
        inputs=graph_inputs(config),
        outputs=graph_outputs(config, CANDIDATES, "plain"),
        sampler={"name": "renoise", "parameters": {}},
    )
    return TorchEngine(module, made, made.profiles)


@pytest.fixture(scope="session")
def noise_engine():
    """Make an engine: ``noise_engine(profiles, block_length, context, seed)``."""
    return _noise_engine


@dataclass
class ScriptedEngine:
    """Predicts ``script[position]`` and is ``sure[position]`` of it, whatever it is fed."""

    manifest: Manifest
    script: np.ndarray
    sure: np.ndarray
    calls: list = field(default_factory=list)
    closed: bool = False

    @property
    def profiles(self):
        return self.manifest.profiles

    def cache(self, batch, size):
        return HostCache(self.manifest.model, batch, size)

    def inputs(self, shape):
        return Inputs(shape, input_shapes(self.manifest, shape))

    def forward(self, inputs, cache, stores):
        self.calls.append((inputs.profile, list(stores), inputs.input_ids.copy()))
        shape = inputs.input_ids.shape
        present = np.zeros((shape[0], KV_HEADS, shape[1], HEAD_DIM), np.float32)
        for store in stores:
            cache.write(store.row, store.count, [present] * (2 * LAYERS), store.at)
        positions = np.take_along_axis(inputs.position_ids, inputs.head_rows, 1) % len(self.script)
        ids, logits = self.script[positions], np.log(self.sure[positions]).astype(np.float32)
        zeros = np.zeros(positions.shape, np.float32)
        return Outputs(ids[..., None], logits[..., None], zeros, zeros, zeros, zeros, ids, logits)

    def close(self):
        self.closed = True


@pytest.fixture(scope="session")
def scripted():
    """Make a scripted engine: ``scripted(manifest, script, sure=None)``, numbers by position."""

    def make(made, script, sure=None):
        script = np.asarray(script, np.int64)
        sure = np.full(len(script), 0.9) if sure is None else np.asarray(sure, np.float64)
        return ScriptedEngine(made, script, sure)

    return make

"""A command line in this process, a bundle on disk, and a generator that needs no engine."""

import hashlib
import io
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from records import MANIFEST
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from dlmc.cli import app
from dlmc_runtime.events import Committed, Denoised, Event, Finished, Result
from dlmc_runtime.manifest import TextSpec, parse_manifest
from dlmc_runtime.samplers.config import SamplerConfig
from dlmc_runtime.text import TextCodec

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"


@dataclass(frozen=True)
class Outcome:
    """What a command line did."""

    status: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)


@pytest.fixture
def dlmc(capsys) -> Callable[..., Outcome]:
    """Run a command line in this process."""

    def run(*arguments: str) -> Outcome:
        status = app.run(arguments)
        captured = capsys.readouterr()
        return Outcome(status, captured.out, captured.err)

    return run


@pytest.fixture
def stdin(monkeypatch) -> Callable[[bytes], None]:
    """Give stdin some bytes."""
    return lambda data: monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


@pytest.fixture
def codec(tmp_path_factory: pytest.TempPathFactory) -> TextCodec:
    """Bytes as tokens, <mask> as 256, and a chat template."""
    root = tmp_path_factory.mktemp("text")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<mask>", special=True)])
    tokenizer.save(str(root / "tokenizer.json"))
    (root / "chat.jinja").write_text(TEMPLATE)
    return TextCodec.load(root, TextSpec(tokenizer="tokenizer.json", chat_template="chat.jinja"))


class FakeGenerator:
    """Answers every prompt with ``answer``, two tokens a forward; remembers what it was asked."""

    def __init__(self, text: TextCodec | None, answer: str = "grün") -> None:
        self.text, self.answer = text, answer
        self.manifest = parse_manifest(json.dumps(MANIFEST).encode())
        self.sampler = SamplerConfig(threshold=0.9)
        self.prompt = ""
        self.options: dict[str, object] = {}
        self.closed = False

    def request(self, prompt: str, **options: object) -> str:
        self.prompt, self.options = prompt, options
        return prompt

    def infill_request(self, template: str, **options: object) -> str:
        return self.request(template, **options)

    def events(self, requests: Sequence[str]) -> Iterator[Event]:
        (prompt,) = requests
        assert self.text is not None
        ids = np.array(self.text.encode(self.answer))
        canvas, masked = np.full(len(ids), 256), np.ones(len(ids), np.bool_)
        shown = ""
        for forward, first in enumerate(range(0, len(ids), 2), 1):
            canvas[first : first + 2], masked[first : first + 2] = ids[first : first + 2], False
            confidence = np.where(masked, 0.3, 0.95)
            yield Denoised(0, forward, 0, len(ids), canvas.copy(), masked.copy(), confidence)
            text = self.text.decode(ids[: first + 2].tolist()).rstrip("\ufffd")
            yield Committed(0, tuple(ids[first : first + 2].tolist()), text[len(shown) :])
            shown = text
        yield Finished(
            0, Result(self.answer, tuple(ids.tolist()), len(prompt), 3, "stop", 0.5, len(ids) / 3)
        )

    def __enter__(self) -> "FakeGenerator":
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True


@pytest.fixture
def generator(codec, monkeypatch) -> FakeGenerator:
    """What `Generator.load` returns, whatever bundle is asked for."""
    fake = FakeGenerator(codec)
    monkeypatch.setattr("dlmc_runtime.generate.Generator.load", lambda *_: fake)
    return fake


def manifest(files: dict[str, bytes]) -> dict[str, object]:
    """Return a manifest of the block regime that lists ``files``."""
    return {
        "schema_version": 2,
        "family": "sdar",
        "architecture": "SDARForCausalLM",
        "attention": {"regime": "block", "block_length": 4},
        "shift": 0,
        "tokens": {"mask": 9, "stop": [8], "pad": 7, "bos": None, "suppressed": [9]},
        "model": {
            "vocab_size": 10,
            "hidden_size": 8,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 4,
            "max_position_embeddings": 64,
            "parameters": 1234,
        },
        "head": {"variant": "plain", "candidates": 4},
        "precision": "float32",
        "inputs": [
            {"name": "input_ids", "dtype": "int64", "shape": ["batch", "block"]},
            *(
                {
                    "name": f"past_key_values.{layer}.{part}",
                    "dtype": "float32",
                    "shape": ["batch", 1, "cache", 4],
                }
                for layer in range(2)
                for part in ("key", "value")
            ),
        ],
        "outputs": [{"name": "top_ids", "dtype": "int64", "shape": ["batch", "rows", 4]}],
        "profiles": [{"batch": 1, "block": 4, "cache": 32, "rows": 4}],
        "sampler": {"name": "low_confidence_dynamic", "parameters": {"threshold": 0.9}},
        "max_new_tokens": 16,
        "text": None,
        "tolerances": {},
        "provenance": {"source": "somewhere", "versions": {"dlmc": "0.1.0"}},
        "config": "config.json",
        "graph": "denoiser.onnx",
        "weights": ["weights/model.safetensors"],
        "files": {
            name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for name, data in files.items()
        },
    }


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle whose files fit its manifest, though no engine could read them."""
    root = tmp_path / "bundle"
    files = {"config.json": b"{}", "denoiser.onnx": b"graph", "weights/model.safetensors": b"w" * 9}
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    (root / "manifest.json").write_text(json.dumps(manifest(files)))
    return root


@pytest.fixture
def engine(bundle: Path) -> Path:
    """An engine record for onnxruntime-cpu in ``bundle``."""
    folder = bundle / "engines" / "onnxruntime-cpu"
    folder.mkdir(parents=True)
    record = SimpleNamespace(
        schema_version=2,
        target="onnxruntime-cpu",
        device="cpu",
        precision="float32",
        profiles=[{"batch": 1, "block": 4, "cache": 32, "rows": 4}],
        plan="denoiser.onnx",
        manifest_sha256=hashlib.sha256((bundle / "manifest.json").read_bytes()).hexdigest(),
        requires={"library": "onnxruntime", "version": "1.32.0", "match": "any"},
        versions={"onnxruntime": "1.32.0"},
        files={},
    )
    (folder / "engine.json").write_text(json.dumps(vars(record)))
    return folder

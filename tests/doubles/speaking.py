"""Models that say what a test tells them to, with tokenizers and templates in several manners."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from dlmc_runtime.generate import Generator
from dlmc_runtime.manifest import Manifest, Profile
from dlmc_runtime.template import ChatTemplate
from dlmc_runtime.text import TextCodec

RUNTIME = Path(__file__).parent.parent / "runtime"
VOCAB, POSITIONS, BLOCK = 300, 4096, 32
STOP, PAD, MASK = "<|im_end|>", "<|endoftext|>", "<|mask|>"


@dataclass(frozen=True)
class Manner:
    """How a model writes: its chat template and its added tokens, special or not."""

    template: str | None
    special: tuple[str, ...]
    added: tuple[str, ...] = ()


MANNERS = {
    "hermes": Manner(
        "serve/hermes_style.jinja",
        ("<|im_start|>",),
        ("<think>", "</think>", "<tool_call>", "</tool_call>"),
    ),
    "gemma": Manner(
        "gemma_style.jinja",
        (
            *("<bos>", "<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|think|>", '<|"|>'),
            *("<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>"),
            *("<|tool_response>", "<tool_response|>"),
        ),
    ),
    "code": Manner(None, ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")),
    "seed": Manner(None, ("<[fim-suffix]>", "<[fim-prefix]>", "<[fim-middle]>")),
    "base": Manner(None, ()),
}


def codec(manner: str) -> TextCodec:
    """Return a codec whose other tokens are single bytes."""
    made = MANNERS[manner]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    specials = (PAD, STOP, MASK, *made.special)
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in specials])
    tokenizer.add_tokens([AddedToken(name, special=False) for name in made.added])
    if made.template is None:
        return TextCodec(tokenizer, None)
    source = (RUNTIME / made.template).read_text(encoding="utf-8")
    return TextCodec(tokenizer, ChatTemplate(source, "chat.jinja", {"bos_token": "<bos>"}))


def generator(
    manner: str,
    manifest: Callable[..., Manifest],
    scripted: Callable[..., Any],
    regime: str = "block",
    **changes: Any,
) -> Generator:
    """Return a generator that says nothing but stop tokens until it is told to.

    Args:
        manner: of `MANNERS`.
        manifest: the fixture.
        scripted: the fixture.
        regime: of attention.
        changes: fields of the manifest.
    """
    text = codec(manner)
    ids = text.added_tokens
    tokens = {"mask": ids[MASK], "stop": (ids[STOP],), "pad": ids[PAD], "suppressed": (ids[MASK],)}
    plain = manifest(regime, BLOCK)
    sizes = {"vocab_size": VOCAB, "max_position_embeddings": POSITIONS}
    block, caches = (1024, (0,)) if regime == "full" else (64, (2048,))
    rows = 256 if regime == "full" else BLOCK
    profiles = tuple(
        Profile(batch=batch, block=block, cache=size, rows=rows)
        for batch in (1, 4)
        for size in caches
    )
    made = manifest(
        regime,
        BLOCK,
        profiles,
        **{
            "tokens": tokens | changes.pop("tokens", {}),
            "model": plain.model.model_dump() | sizes,
            "max_new_tokens": 256,
            **changes,
        },
    )
    return Generator(scripted(made, np.full(POSITIONS, ids[STOP])), text)


def say(engine: Any, text: TextCodec, said: str, at: int) -> None:
    """Let a model say a text from position ``at`` on, and stop then."""
    script = np.full(POSITIONS, text.added_tokens[STOP])
    ids = text.encode(said)
    script[at : at + len(ids)] = ids
    engine.script, engine.sure = script, np.full(POSITIONS, 0.9)

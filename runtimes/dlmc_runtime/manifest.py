"""The manifest: what a bundle is, field by field, and the only place that says so.

Every model here is frozen and refuses unknown keys; the published JSON Schema is generated from
`Manifest`. Reading checks structure only. Files are checked in `bundle`.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dlmc_runtime.record import (
    SCHEMA_VERSION,
    BundlePath,
    Count,
    FileRecord,
    Natural,
    Record,
    TokenId,
    parse,
)

Regime = Literal["full", "block", "context"]
DataType = Literal["int64", "bool", "float32", "float16", "bfloat16"]
HeadVariant = Literal["plain", "guided", "logits"]
Precision = Literal["float32", "float16", "bfloat16"]
Quantization = Literal["none", "int8", "int4", "w8a8"]
Parameter = int | float | bool | str | tuple[int, ...] | None


class TensorSpec(Record):
    """A graph input or output; a string in ``shape`` is a symbolic dimension."""

    name: str
    dtype: DataType
    shape: tuple[Natural | str, ...]


class Profile(Record):
    """One fixed shape: B rows of T positions over C cached ones, R of T through the head."""

    batch: Count
    block: Count
    cache: Natural
    rows: Count

    @model_validator(mode="after")
    def _rows_fit(self) -> Self:
        if self.rows > self.block:
            raise ValueError(f"rows {self.rows} exceed block {self.block}")
        return self

    def __str__(self) -> str:
        return f"{self.batch}x{self.block} over {self.cache}, {self.rows} rows"


class LayerCache(Record):
    """What a layer keeps of the context.

    Attributes:
        key_value_heads: heads of keys and values.
        head_dim: size of each.
        window: how many of the last committed positions it keeps; None for all of them.
    """

    key_value_heads: Count
    head_dim: Count
    window: Count | None = None

    def capacity(self, size: int) -> int:
        """Return how many positions it keeps where a row of the cache holds ``size``."""
        return size if self.window is None else min(size, self.window)


class Model(Record):
    """The network's shape, as far as the runtime needs it.

    ``layers`` says what each layer's cache is where they differ; it is empty where all are of
    ``num_key_value_heads`` and ``head_dim``.
    """

    vocab_size: Count
    hidden_size: Count
    num_hidden_layers: Count
    num_attention_heads: Count
    num_key_value_heads: Count
    head_dim: Count
    max_position_embeddings: Count
    parameters: Count
    layers: tuple[LayerCache, ...] = ()

    @property
    def caches(self) -> tuple[LayerCache, ...]:
        """What each layer keeps of the context."""
        alike = LayerCache(key_value_heads=self.num_key_value_heads, head_dim=self.head_dim)
        return self.layers or (alike,) * self.num_hidden_layers


class Attention(Record):
    """Who may see whom, and how a sequence falls into blocks.

    Attributes:
        regime: who may see whom, and when the cache is exact.
        block_length: positions denoised together; a family that denoises the whole answer at once
            states the longest sequence.
        aligned_to: where blocks are counted from: position 0 of the ``sequence``, or the first
            position of the ``answer``, which makes the prompt's first block the shorter one.
        last_block: ``whole`` where the last block is denoised in full although the answer ends
            inside it, ``cut`` where it ends with the answer.
        seeded: whether the last logits of a stored block give the next block's first token.
        sliding_window: how far to either side layers with a second mask see; None without such.
        sliding_context: how many of the last committed positions layers with a second mask see
            and keep, besides what is fed with them: one that is committed as many before itself,
            one that is denoised the last ones; None without such.
        routing_block: how many consecutive tokens choose their experts together, so that a forward
            must feed a whole number of such blocks; None where each token chooses alone.
    """

    regime: Regime
    block_length: Count
    aligned_to: Literal["sequence", "answer"] = "sequence"
    last_block: Literal["whole", "cut"] = "whole"
    seeded: bool = False
    sliding_window: Count | None = None
    sliding_context: Count | None = None
    routing_block: Count | None = None


class Tokens(Record):
    """Special token ids.

    Attributes:
        mask: what is still to be predicted; None where undecided positions hold random tokens.
        stop: what ends a text.
        pad: fills unused positions.
        bos: what begins a text.
        suppressed: ids that can never be predicted: the graph forbids them.
        expand: an id that stands for two masks in a span that may grow (DreamOn).
        delete: an id that takes its position out of such a span, or of its block.
        split: an id that puts a mask before what its position of a block holds (LLaDA2.2).
    """

    mask: TokenId | None
    stop: tuple[TokenId, ...]
    pad: TokenId
    bos: TokenId | None = None
    suppressed: tuple[TokenId, ...]
    expand: TokenId | None = None
    delete: TokenId | None = None
    split: TokenId | None = None

    @property
    def filler(self) -> int:
        """What positions hold of which nothing is known: the mask, or what pads."""
        return self.pad if self.mask is None else self.mask


class Head(Record):
    """The vocabulary head: how many candidates a row keeps, and what else it can do.

    ``guided`` combines pairs of rows (classifier-free guidance); ``logits`` hands out all logits.
    """

    variant: HeadVariant
    candidates: Count


class SamplerSpec(Record):
    """Default sampler of the bundle: a registered name and its parameters."""

    name: str
    parameters: dict[str, Parameter] = Field(default={})


class TextSpec(Record):
    """Tokenizer files; ``chat_template`` is a Jinja file, absent for base models."""

    tokenizer: BundlePath
    chat_template: BundlePath | None = None
    bos_token: str | None = None
    eos_token: str | None = None


class Tolerance(Record):
    """How far an output may be from the reference before an engine counts as different."""

    atol: Annotated[float, Field(ge=0)]
    rtol: Annotated[float, Field(ge=0)] = 0.0


class TargetSpec(Record):
    """How to build for a target where nothing else is asked for.

    Attributes:
        target: the target's name.
        precision: of the layers.
        quantization: of the layers' weights.
        profiles: the shapes to build; the bundle's own where there are none.
        tolerances: by output, in place of the defaults for this precision and quantization.
        device_memory: GiB of the device that this is meant for.
    """

    target: str
    precision: Precision = "float32"
    quantization: Quantization = "none"
    profiles: tuple[Profile, ...] = ()
    tolerances: dict[str, Tolerance] = Field(default={})
    device_memory: Count | None = None


class Provenance(Record):
    """Where the bundle comes from and what made it."""

    source: str
    revision: str | None = None
    recipe: str | None = None
    versions: dict[str, str]


class Manifest(Record):
    """Everything a runtime must know about a bundle before it opens another file of it.

    ``config`` is the checkpoint's own ``config.json``: the runtime does not read it, but the
    reference that engines are compared with is made from it.
    """

    schema_version: Literal[2] = SCHEMA_VERSION
    family: str
    architecture: str
    attention: Attention
    shift: Literal[0, 1]
    tokens: Tokens
    model: Model
    head: Head
    precision: Literal["float32"]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    profiles: tuple[Profile, ...] = Field(min_length=1)
    sampler: SamplerSpec
    max_new_tokens: Count
    text: TextSpec | None
    tolerances: dict[str, Tolerance]
    targets: tuple[TargetSpec, ...] = ()
    provenance: Provenance
    config: BundlePath
    graph: BundlePath
    weights: tuple[BundlePath, ...]
    files: dict[BundlePath, FileRecord]

    @model_validator(mode="after")
    def _block_fits(self) -> Self:
        length, longest = self.attention.block_length, self.model.max_position_embeddings
        if length > longest:
            raise ValueError(f"blocks of {length} exceed the model's {longest} positions")
        return self

    @model_validator(mode="after")
    def _tokens_fit(self) -> Self:
        tokens, size = self.tokens, self.model.vocab_size
        single = (tokens.mask, tokens.pad, tokens.bos, tokens.expand, tokens.delete, tokens.split)
        ids = [token for token in single if token is not None]
        outside = [one for one in (*ids, *tokens.stop, *tokens.suppressed) if one >= size]
        if outside:
            raise ValueError(f"token {outside[0]} is outside a vocabulary of {size}")
        if tokens.mask is not None and (
            tokens.mask not in tokens.suppressed or tokens.mask in tokens.stop
        ):
            raise ValueError("the mask must be suppressed, and stop nothing")
        own = self.attention
        whole = (own.regime, own.aligned_to, own.last_block) == ("context", "answer", "whole")
        if tokens.mask is None and (not whole or own.seeded or self.shift):
            raise ValueError("a model without a mask denoises whole canvases after its context")
        if tokens.expand is not None and tokens.expand in (tokens.mask, tokens.delete):
            raise ValueError("the expand token must differ from the mask and the delete token")
        if tokens.delete is not None and tokens.delete == tokens.mask:
            raise ValueError("the delete token must differ from the mask")
        if tokens.split is not None:
            edits = {tokens.mask, tokens.delete, tokens.split}
            if None in edits or len(edits) < 3 or edits & {tokens.expand, *tokens.stop}:
                raise ValueError(
                    "a split token goes with a mask and a delete token, and none of them expands a "
                    "span or stops a text"
                )
        return self

    @model_validator(mode="after")
    def _graph_fits(self) -> Self:
        inputs, outputs = ([spec.name for spec in specs] for specs in (self.inputs, self.outputs))
        if len({*inputs}) < len(inputs) or len({*outputs}) < len(outputs):
            raise ValueError("two inputs or outputs have the same name")
        guided = {"guidance", "partner"} & {*inputs}
        if len(guided) != (2 if self.head.variant == "guided" else 0):
            raise ValueError("guidance and partner are inputs of a guided head, and of no other")
        window, context = self.attention.sliding_window, self.attention.sliding_context
        if (window is not None or context is not None) != ("sliding_attention_mask" in inputs):
            raise ValueError("a sliding window and a second attention mask go together")
        if context is not None and (window is not None or self.attention.regime != "context"):
            raise ValueError("layers that keep the last positions need a causal pass")
        carried = {"self_conditioning", "denoising"} & {*inputs}
        if len(carried) != 2 * ("next_self_conditioning" in outputs):
            raise ValueError("self_conditioning, denoising and next_self_conditioning go together")
        if self.attention.seeded and self.attention.regime == "full":
            raise ValueError("a model that sees the whole sequence seeds no blocks")
        kept = [spec.shape[-1] for spec in self.outputs if spec.name == "top_ids" and spec.shape]
        if self.head.candidates > self.model.vocab_size or kept not in ([], [self.head.candidates]):
            raise ValueError(f"{self.head.candidates} candidates are not what the graph keeps")
        return self

    @model_validator(mode="after")
    def _caches_fit(self) -> Self:
        layers, context = self.model.layers, self.attention.sliding_context
        if layers and len(layers) != self.model.num_hidden_layers:
            raise ValueError(f"{len(layers)} caches for {self.model.num_hidden_layers} layers")
        if any(layer.window not in (None, context) for layer in layers):
            raise ValueError("a layer keeps another window than the attention states")
        return self

    @model_validator(mode="after")
    def _files_are_listed(self) -> Self:
        named = [self.config, self.graph, *self.weights]
        if self.text is not None:
            named += [self.text.tokenizer, self.text.chat_template or self.text.tokenizer]
        missing = [name for name in named if name not in self.files]
        if missing:
            raise ValueError(f"no size and hash for {missing[0]}")
        return self


def parse_manifest(text: bytes, where: str = "manifest.json") -> Manifest:
    """Parse and check a manifest.

    Raises:
        BundleError: it is not JSON, has a newer schema, or breaks the schema; the message names
            the first offending field.
    """
    return parse(Manifest, text, where)

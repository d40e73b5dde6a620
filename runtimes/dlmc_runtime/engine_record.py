"""``engine.json``: what an engine is, what it was made from and what it needs."""

from typing import Annotated, Literal

from pydantic import Field

from dlmc_runtime.manifest import Precision, Profile, Quantization, Tolerance
from dlmc_runtime.record import (
    SCHEMA_VERSION,
    BundlePath,
    FileRecord,
    Natural,
    Record,
    Sha256,
    parse,
)

ComputeCapability = Annotated[str, Field(pattern=r"^sm[0-9]{2,3}$")]


class Requirements(Record):
    """What an engine needs of a machine; checked before an engine library sees it.

    Attributes:
        library: distribution that runs the engine.
        version: version of it that built the engine.
        match: which versions run it; ``any`` where the plan is plain ONNX.
        system: operating system and processor, such as ``linux-x86_64``; None where any will do.
        compute_capabilities: GPUs it was built for, such as ``sm89``; empty for none or any.
        newer_gpus: whether GPUs of a later compute capability run it too.
        memory: bytes on the device for weights and the largest profile.
    """

    library: str
    version: str
    match: Literal["exact", "later", "any"]
    system: str | None = None
    compute_capabilities: tuple[ComputeCapability, ...] = ()
    newer_gpus: bool = False
    memory: Natural = 0


class EngineRecord(Record):
    """``engine.json``: what `dlmc build` made, for what, from what.

    Paths are relative to the bundle. ``plan`` is the bundle's own graph or a file of the engine's
    folder; ``files`` lists every file of that folder that running needs.
    """

    schema_version: Literal[2] = SCHEMA_VERSION
    target: str
    device: str
    precision: Precision
    quantization: Quantization = "none"
    cache_dtype: Precision = "float32"
    profiles: tuple[Profile, ...] = Field(min_length=1)
    plan: BundlePath
    options: dict[str, str] = Field(default={})
    requires: Requirements
    tolerances: dict[str, Tolerance] = Field(default={})
    manifest_sha256: Sha256
    versions: dict[str, str]
    files: dict[BundlePath, FileRecord]


def parse_engine_record(text: bytes, where: str = "engine.json") -> EngineRecord:
    """Parse and check an engine record; raises `BundleError` like `parse_manifest`."""
    return parse(EngineRecord, text, where)

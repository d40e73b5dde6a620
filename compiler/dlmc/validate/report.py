"""What a comparison found, and what is kept of it."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from dlmc_runtime.manifest import Tolerance

SCHEMA_VERSION = 1

Value = float | int | str


@dataclass(frozen=True)
class Place:
    """Where two engines differ, and what each says there.

    Attributes:
        output: name of the graph output, ``committed`` or ``generation``.
        prompt: which prompt, from 0.
        forward: which forward of that prompt, from 1; 0 for whole generations.
        position: which token of the row, prompt included, from 0.
        index: where in the output, such as ``[0,3,1]``; empty where position says all.
        ours: the engine's value.
        reference: the reference's.
    """

    output: str
    prompt: int
    forward: int
    position: int
    index: tuple[int, ...]
    ours: Value
    reference: Value

    def __str__(self) -> str:
        where = f"prompt {self.prompt}, "
        if self.forward:
            where += f"forward {self.forward}, "
        where += f"position {self.position}"
        if self.index:
            where += f" [{','.join(map(str, self.index))}]"
        return f"{where}: {_shown(self.ours)}, not {_shown(self.reference)}"


def _shown(value: Value) -> str:
    return f"{value:.8g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Row:
    """One output of an engine against the reference, over all recorded forwards.

    Attributes:
        output: name of the graph output; ``present`` stands for all keys and values.
        compared: how many numbers, ids, positions or tokens were compared.
        wrong: how many of them differ by more than is allowed.
        difference: largest difference of numbers; the share that differs of the rest.
        tolerance: what is allowed; where things can only be equal or not, `atol` is the share of
            them that may differ.
        ok: whether that is kept.
        where: of the worst difference; None where all is equal.
        by_forward: the difference in every forward, None where it was not compared.
    """

    output: str
    compared: int
    wrong: int
    difference: float
    tolerance: Tolerance
    ok: bool
    where: Place | None = None
    by_forward: tuple[float | None, ...] = ()


@dataclass(frozen=True)
class PointError:
    """How far one point of the network is from the reference, the worst of some forwards.

    Attributes:
        point: name of the module, such as ``layers.3`` or ``layers.3.self_attn.o_proj``.
        error: of the layer by itself, on the reference's input: the largest distance of the
            vectors at one position, over the length of the reference's.
        channel: of the layer by itself: the largest RMS difference of one feature over all
            positions, over the RMS of the reference's.
        carried: like ``error``, on the engine's own input: with the errors of all layers before.
            None where it was not measured.
        ok: whether ``error`` and ``channel`` are within the tolerance.
        where: the largest single difference at the worst position.
    """

    point: str
    error: float
    channel: float
    carried: float | None
    ok: bool
    where: Place | None = None


@dataclass(frozen=True)
class Layers:
    """The errors of an engine inside the network.

    Attributes:
        reference: what the network was compared with.
        tolerance: of `PointError.error`.
        channel_tolerance: of `PointError.channel`.
        points: in the order they are computed.
    """

    reference: str
    tolerance: float
    channel_tolerance: float
    points: tuple[PointError, ...]

    @property
    def way(self) -> tuple[PointError, ...]:
        """The points on the way through the network: the layers, and what is around them."""
        return tuple(one for one in self.points if one.carried is not None)

    @property
    def first(self) -> PointError | None:
        """The first point that leaves the tolerance."""
        return next((one for one in self.points if not one.ok), None)


@dataclass(frozen=True)
class Cell:
    """One position of a canvas: the text of its token, and what to point at."""

    text: str
    masked: bool
    different: bool


@dataclass(frozen=True)
class Divergence:
    """The first forward after which the two canvases differ, as each side would go on."""

    prompt: int
    forward: int
    start: int
    ours: tuple[Cell, ...]
    reference: tuple[Cell, ...]


@dataclass(frozen=True)
class Report:
    """One engine against one reference."""

    bundle: str
    engine: str
    against: str
    precision: str
    quantization: str
    versions: dict[str, str]
    prompts: tuple[str, ...]
    forwards: int
    rows: tuple[Row, ...]
    layers: Layers | None = None
    divergence: Divergence | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def ok(self) -> bool:
        """Whether every output agrees."""
        return all(row.ok for row in self.rows)

    @property
    def failures(self) -> tuple[str, ...]:
        """One sentence for every output that disagrees: output, place, both values."""
        return tuple(sentence(row) for row in self.rows if not row.ok)

    def to_json(self) -> dict[str, Any]:
        """Return what is kept as JSON; numbers that are not finite become null."""
        return {
            "schema_version": SCHEMA_VERSION,
            **_finite(asdict(self)),
            "ok": self.ok,
            "failures": list(self.failures),
        }


def sentence(row: Row) -> str:
    """Return what disagrees in one line."""
    name = row.where.output if row.where else row.output
    share = f" ({row.wrong} of {row.compared} differ)" if row.wrong else ""
    return f"{name} at {row.where}{share}"


def _finite(value: Any) -> Any:
    if isinstance(value, Tolerance):
        return value.model_dump()
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def worst(reports: Sequence[Report]) -> Report | None:
    """Return the first report that disagrees."""
    return next((report for report in reports if not report.ok), None)

"""Where in the network an engine leaves the reference: every layer on its own, and together."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from dlmc.lowering.lower import Lowering, lower
from dlmc.validate import points
from dlmc.validate.probes import Probe, open_probe, open_torch
from dlmc.validate.recording import State
from dlmc.validate.reference import GRAPH, TORCH, graph_record, is_graph
from dlmc.validate.report import Layers, Place, PointError
from dlmc.validate.tolerances import CHANNELS, LAYERS, Limits
from dlmc.validate.torch_engine import TorchEngine
from dlmc_runtime.bundle import PARTIAL, Bundle
from dlmc_runtime.engine_record import EngineRecord
from dlmc_runtime.errors import EngineError

_ONNX = ".onnx"
_STATES = 4  # forwards that layers are compared on
_FEW = 4  # positions below which a feature has no RMS to speak of
_SMALL = 0.3  # of the usual RMS: features below it are compared as if they had that much
_LEAST = 1e-12  # what a tolerance of nothing counts as
_TINY = 1e-6  # of the usual length of a vector: what counts as no vector at all

Values = NDArray[np.float32]
Matrix = NDArray[np.float64]


def compare_layers(
    bundle: Bundle,
    record: EngineRecord,
    states: Sequence[State],
    limits: Limits,
    torch: TorchEngine | None = None,
) -> Layers:
    """Compare the points inside an engine's graph with the reference's, on some forwards.

    The reference is the bundle's float32 graph in ONNX Runtime. For an engine that runs it in
    ONNX Runtime too, it is the torch module that the graph was traced from, where one is loaded.
    Both sides are in memory.

    Args:
        bundle: the bundle.
        record: the engine's record.
        states: the forwards.
        limits: what the engine is held to, ``layers`` and ``channels`` among it.
        torch: the torch reference, where one is loaded.

    Raises:
        EngineError: there is nothing to compare with, or no way into the engine.
    """
    own = is_graph(bundle, record) and torch is not None
    if is_graph(bundle, record) and torch is None and record.plan == bundle.manifest.graph:
        raise EngineError(
            "the engine runs the very graph that layers are compared with",
            "compare it with torch, which the extra 'compile' installs",
        )
    allowed = _Allowed(limits[LAYERS].atol, limits[CHANNELS].atol)
    worst: dict[str, PointError] = {}
    with ExitStack() as stack:
        folder = stack.enter_context(_scratch(bundle.root / "validation"))
        sides = _Sides(bundle, record, torch if own else None, folder)
        reference = stack.enter_context(sides.reference())
        engine = stack.enter_context(sides.engine())
        for state in states:
            for error in _errors(state, reference, engine, sides.way, allowed):
                before = worst.get(error.point)
                worst[error.point] = error if before is None else _worse(before, error, allowed)
    name = TORCH if own else GRAPH
    return Layers(name, allowed.vector, allowed.channel, tuple(worst.values()))


@dataclass(frozen=True)
class _Allowed:
    """What a point may be off by: its vectors, and its features over all positions."""

    vector: float
    channel: float

    def used(self, error: float, channel: float) -> tuple[float, float]:
        """Return the shares of both that are used up; more than 1 is too much."""
        return error / max(self.vector, _LEAST), channel / max(self.channel, _LEAST)


@contextmanager
def _scratch(parent: Path) -> Iterator[Path]:
    """Yield a folder on the bundle's disk, where its weights can be linked."""
    parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".layers{PARTIAL}", dir=parent) as name:
        yield Path(name)


def choose(states: Sequence[State], first: Sequence[State] = ()) -> list[State]:
    """Return a few forwards: those known to differ, some that store, the noisiest, the last."""
    wanted = list(first)
    for kind in (
        [state for state in states if state.choice is not None],
        [state for state in states if state.stores],
    ):
        wanted += [kind[0], kind[-1]] if kind else []
    kept: list[State] = []
    for state in wanted:
        if not any(state is one for one in kept):
            kept.append(state)
    return kept[:_STATES]


class _Sides:
    """Both graphs, instrumented at the points that they share."""

    def __init__(
        self, bundle: Bundle, record: EngineRecord, torch: TorchEngine | None, folder: Path
    ) -> None:
        self._bundle, self._record, self._torch, self._folder = bundle, record, torch, folder
        self._graph = graph_record(bundle, record.profiles)
        self._plan = _plan(bundle, record, folder / "lowered")
        plan, graph = ir.load(self._plan), ir.load(bundle.root / self._graph.plan)
        made = {str(value.name) for node in plan.graph for value in node.outputs}
        values = {k: v for k, v in points.points(graph.graph).items() if v in made}
        if torch is not None:
            inside = torch.points()
            values = {point: value for point, value in values.items() if point in inside}
        self._values = values
        self.way = points.way(values)

    @contextmanager
    def reference(self) -> Iterator[Probe]:
        """Load the reference."""
        if self._torch is not None:
            with open_torch(self._torch, list(self._values)) as probe:
                yield probe
        else:
            path = self._bundle.root / self._graph.plan
            with self._opened(path, self._graph, "reference", ()) as probe:
                yield probe

    @contextmanager
    def engine(self) -> Iterator[Probe]:
        """Load the engine's graph, which can go on from given values."""
        with self._opened(self._plan, self._record, "engine", points.cuts(self.way)) as probe:
            yield probe

    @contextmanager
    def _opened(
        self, path: Path, record: EngineRecord, name: str, cut: Sequence[str]
    ) -> Iterator[Probe]:
        model = ir.load(path)
        points.instrument(model, self._values, cut)
        written = points.write(model, path.parent, self._folder / name)
        with open_probe(self._bundle, written, record, list(self._values)) as probe:
            yield probe


def _plan(bundle: Bundle, record: EngineRecord, folder: Path) -> Path:
    """Return the ONNX graph that an engine was made from; where it is not kept, lower it again.

    Raises:
        EngineError: it cannot be made again.
    """
    if record.plan.endswith(_ONNX):
        bundle.check_graph(record.plan, record.files)
        return bundle.root / record.plan
    bundle.check_graph(bundle.manifest.graph)
    if (record.precision, record.quantization) == (bundle.manifest.precision, "none"):
        return bundle.root / bundle.manifest.graph
    if record.quantization == "w8a8":
        raise EngineError(
            "the graph that the engine was calibrated for is not kept", "validate with --no-layers"
        )
    made = lower(bundle, Lowering(record.precision, record.quantization, "qdq"), folder)
    return folder / made.graph


def _errors(
    state: State, reference: Probe, engine: Probe, way: Sequence[str], allowed: _Allowed
) -> Iterator[PointError]:
    """Compare all points on one forward."""
    feeds = state.feeds()
    wanted = reference(feeds)
    given = {points.given_name(point): wanted[point] for point in points.cuts(way)}
    alone = _routed_alike(engine({**feeds, **given, points.SWITCH: np.ones((), np.bool_)}), wanted)
    together = engine({**feeds, **given, points.SWITCH: np.zeros((), np.bool_)})
    for point, value in wanted.items():
        found = _compare(point, state, alone[point], value, allowed)
        carried = None
        if point in way:
            carried = _compare(point, state, together[point], value, allowed).error
        yield replace(found, carried=carried)


def _worse(one: PointError, other: PointError, allowed: _Allowed) -> PointError:
    """Return the larger error of each kind, and the place of what uses up most."""
    most = max(one, other, key=lambda x: max(allowed.used(x.error, x.channel)))
    return PointError(
        one.point,
        max(one.error, other.error),
        max(one.channel, other.channel),
        max((x for x in (one.carried, other.carried) if x is not None), default=None),
        one.ok and other.ok,
        most.where,
    )


def _routed_alike(found: Mapping[str, Values], wanted: Mapping[str, Values]) -> dict[str, Values]:
    """Return what an engine found, where its routers chose the experts that the reference chose.

    Which experts a token uses is decided by comparing, so the least rounding may change it; what
    the layer makes of such a token then says nothing about rounding. It is taken as found.
    """
    kept = dict(found)
    for router in filter(points.is_router, wanted):
        other = ((found[router] > 0) != (wanted[router] > 0)).any(-1)
        layer = points.layer_of(router)
        for point in wanted:
            inside = point == layer or point.startswith(f"{layer}.")
            if inside and wanted[point].shape[:2] == other.shape:
                kept[point] = kept[point].copy()
                kept[point][other] = wanted[point][other]
    return kept


@dataclass(frozen=True)
class _Pair:
    """The vectors of one point on both sides, [positions,features]."""

    ours: Matrix
    theirs: Matrix

    @property
    def by_vector(self) -> Matrix:
        """Distance of the vectors at each position, over the length of the reference's."""
        gap = np.linalg.norm(self.ours - self.theirs, axis=1)
        size = np.linalg.norm(self.theirs, axis=1)
        return _over(gap, np.maximum(size, _TINY * max(float(size.mean()), _TINY)))

    @property
    def by_channel(self) -> Matrix:
        """RMS difference of each feature over the positions, over the RMS of the reference's."""
        gap = np.sqrt(((self.ours - self.theirs) ** 2).mean(0))
        usual = float(np.sqrt((self.theirs**2).mean()))
        size = np.sqrt((self.theirs**2).mean(0))
        return _over(gap, np.maximum(size, max(_SMALL * usual, _TINY)))


def _over(gap: Matrix, size: Matrix) -> Matrix:
    ratio: Matrix = gap / size
    return np.where(np.isfinite(ratio), ratio, np.inf)


def _compare(
    point: str, state: State, found: Values, wanted: Values, allowed: _Allowed
) -> PointError:
    """Compare one point in row 0."""
    block, count = state.inputs.profile.block, state.task.end - state.task.start
    pair = _Pair(*(_vectors(value, block, count) for value in (found, wanted)))
    with np.errstate(invalid="ignore", over="ignore"):
        gap = np.abs(pair.ours - pair.theirs)
        gap = np.where(np.isfinite(gap), gap, np.inf)
        vectors, channels = pair.by_vector, pair.by_channel
    error = float(vectors.max())
    channel = float(channels.max()) if len(vectors) >= _FEW else 0.0
    by_vector, by_channel = allowed.used(error, channel)
    if by_vector >= by_channel:
        at = int(vectors.argmax())
        index = int(gap[at].argmax())
    else:
        index = int(channels.argmax())
        at = int(gap[:, index].argmax())
    where = None
    if gap.any():
        position = _position(state, at, len(vectors), count)
        values = float(pair.ours[at, index]), float(pair.theirs[at, index])
        where = Place(point, state.prompt, state.forward, position, (index,), *values)
    ok = max(by_vector, by_channel) <= 1.0
    return PointError(point, error, channel, carried=None, ok=ok, where=where)


def _vectors(value: Values, block: int, count: int) -> Matrix:
    """Return [positions,features] of row 0; only positions that were fed, where they are told."""
    axes = [axis for axis in range(1, value.ndim) if value.shape[axis] == block]
    axis = axes[0] if axes else 1
    moved = np.moveaxis(value[0], axis - 1, 0).astype(np.float64)
    flat: Matrix = moved.reshape(len(moved), -1)
    return flat[:count] if axes else flat


def _position(state: State, at: int, found: int, count: int) -> int:
    """Return which token of the row a vector belongs to: one that was fed, or one of the head."""
    fed = at if found == count else int(state.inputs.head_rows[0, at])
    return int(state.inputs.position_ids[0, fed])

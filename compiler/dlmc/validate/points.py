"""Points inside a network: values of its graph by the name of the module that makes them."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import onnx_ir as ir

from dlmc.linking import link_or_copy

_LAYER = re.compile(r"layers\.\d+")
_ATTENTION, _LOGITS = "Attention", "lm_head"
_STREAM = ("embed_tokens", "norm")
_HEAD = "head"  # makes the outputs from the logits
_READ = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
_FULL = ir.DataType.FLOAT

SWITCH = "use_given"
"""Boolean input of an instrumented graph: whether given values replace its own."""


def points(graph: ir.Graph) -> dict[str, str]:
    """Return the name of a value for every point of a graph, in the graph's order.

    A point is a module, such as ``layers.3`` or ``layers.3.mlp.down_proj``, and its value the
    last one that a node of its own makes: for a layer, the residual stream after it. Two are no
    modules: ``layers.3.self_attn.Attention``, and ``lm_head`` where embeddings are tied.
    """
    found: dict[str, str] = {}
    for node in graph:
        module, _, operator = str(node.name).rpartition(".")
        if operator == _ATTENTION:
            module = str(node.name)
        elif not module and operator.startswith("MatMul"):
            module = _LOGITS
        value = node.outputs[0]
        if module and not module.endswith("weight") and value.dtype in _READ:
            found.pop(module, None)  # the last one counts, also for the order
            found[module] = str(value.name)
    modules = {str(name).rpartition(".")[0] for name in graph.initializers} | {_LOGITS}
    return {
        name: value
        for name, value in found.items()
        if name != _HEAD and (name in modules or _LAYER.fullmatch(name) or _is_attention(name))
    }


def is_router(point: str) -> bool:
    """Return whether a point says what each token gives each expert."""
    return point.endswith((".router", ".mlp.gate"))


def layer_of(point: str) -> str:
    """Return the layer that a point lies in."""
    return ".".join(point.split(".")[:2])


def _is_attention(point: str) -> bool:
    return point.endswith(f".{_ATTENTION}")


def way(names: Iterable[str]) -> list[str]:
    """Return the points on the way through the network: layers, and what is around them."""
    return [name for name in names if "." not in name or _LAYER.fullmatch(name)]


def cuts(names: Iterable[str]) -> list[str]:
    """Return the points of the way that the residual stream passes."""
    return [name for name in names if name in _STREAM or _LAYER.fullmatch(name)]


def instrument(model: ir.Model, values: Mapping[str, str], cut: Iterable[str] = ()) -> None:
    """Let a graph answer inner values, and go on from given ones instead of its own.

    Every point becomes an output ``marked.<point>``, float32 whatever the graph computes in. A
    point of ``cut`` also becomes a float32 input ``given.<point>``: while the boolean input
    `SWITCH` is true, all that reads the point reads what is given. So the error of one layer can
    be told from the errors of those before it.

    Args:
        model: changed in place.
        values: name of a value by point, all of them made by nodes of the graph, see `points`.
        cut: points to go on from.
    """
    graph = model.graph
    made = {str(value.name): value for node in graph for value in node.outputs}
    cuts = list(cut)
    switch = ir.Value(name=SWITCH, type=ir.TensorType(ir.DataType.BOOL), shape=ir.Shape([]))
    if cuts:
        graph.inputs.append(switch)
    for point in cuts:
        _cut(graph, point, made[values[point]], switch)
    for point, name in values.items():
        value = made[name]
        graph.outputs.append(_cast(graph, value, _FULL, marked_name(point), producer(value)))


def _cut(graph: ir.Graph, point: str, value: ir.Value, switch: ir.Value) -> None:
    """Let all readers of a value read the given one while the switch says so.

    The choice is made in float32, which every library can: not all choose between bfloat16.
    """
    given = ir.Value(name=given_name(point), type=ir.TensorType(_FULL), shape=value.shape)
    graph.inputs.append(given)
    readers, dtype, after = list(value.uses()), value.dtype, producer(value)
    own = value
    if dtype != _FULL:
        own = _cast(graph, value, _FULL, f"{given.name}.own", after)
        after = producer(own)
    node = ir.node("Where", [switch, given, own], name=f"{given.name}.Where")
    (chosen,) = node.outputs
    chosen.name, chosen.type, chosen.shape = f"{given.name}.0", own.type, value.shape
    graph.insert_after(after, node)
    if dtype is not None and dtype != _FULL:
        chosen = _cast(graph, chosen, dtype, f"{given.name}.low", node)
    for use in readers:
        use.node.replace_input_with(use.idx, chosen)


def _cast(
    graph: ir.Graph, value: ir.Value, dtype: ir.DataType, name: str, after: ir.Node
) -> ir.Value:
    """Return ``value`` under another name and type; ``after`` is the node it comes after."""
    node = ir.node("Cast", [value], attributes={"to": dtype}, name=f"{name}.Cast")
    (made,) = node.outputs
    made.name, made.type, made.shape = name, ir.TensorType(dtype), value.shape
    graph.insert_after(after, node)
    return made


def producer(value: ir.Value) -> ir.Node:
    """Return the node that makes a value.

    Raises:
        ValueError: none does.
    """
    node = value.producer()
    if node is None:
        raise ValueError(f"no node makes {value.name}")
    return node


def marked_name(point: str) -> str:
    """Return what the output for a point is called."""
    return f"marked.{point}"


def given_name(point: str) -> str:
    """Return what the input for a point is called."""
    return f"given.{point}"


def write(model: ir.Model, source: Path, folder: Path) -> Path:
    """Write a graph into a new folder, with links to the weights it reads.

    Args:
        model: was read from a file in ``source``.
        source: where its weights lie.
        folder: must be on the same disk, or the weights are copied.

    Raises:
        OSError: the disk refuses.
    """
    folder.mkdir()
    tensors = (value.const_value for value in model.graph.initializers.values())
    for name in sorted({str(t.location) for t in tensors if isinstance(t, ir.ExternalTensor)}):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        link_or_copy(source / name, folder / name)
    path = folder / "instrumented.onnx"
    path.write_bytes(ir.to_proto(model).SerializeToString(deterministic=True))
    return path

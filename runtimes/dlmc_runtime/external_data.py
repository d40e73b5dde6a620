"""Which files an ONNX graph reads besides itself, found without an ONNX library.

The manifest lists a bundle's files with their hashes; a graph that named another one would have it
read unchecked. Protocol buffers need no schema to be walked: the table below says which fields of
which message lead to a tensor, by the numbers of onnx.proto3.
"""

from collections.abc import Iterator

_ENTRY = "entry"
_MESSAGES: dict[str, dict[int, str]] = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: _ENTRY},
}
_KEY, _VALUE = 1, 2
_LOCATION = b"location"
_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5
_DEEPEST = 64


def external_files(model: bytes) -> set[str]:
    """Return the locations that tensors of a serialized ModelProto name, as they stand there.

    Raises:
        ValueError: it is no sound protocol buffer, or nested too deeply.
    """
    return set(_locations(memoryview(model), "model", 0))


def _locations(data: memoryview, message: str, depth: int) -> Iterator[str]:
    if depth > _DEEPEST:
        raise ValueError("graphs are nested too deeply")
    inner = _MESSAGES[message]
    for number, value in _fields(data):
        kind = inner.get(number)
        if kind == _ENTRY:
            yield from _location(value)
        elif kind is not None:
            yield from _locations(value, kind, depth + 1)


def _location(entry: memoryview) -> Iterator[str]:
    """Yield the value of a key-value pair whose key is ``location``; the last of each counts."""
    pair = {number: bytes(value) for number, value in _fields(entry)}
    if pair.get(_KEY) == _LOCATION:
        yield pair.get(_VALUE, b"").decode()


def _fields(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield number and bytes of every length-delimited field of a message."""
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            _, position = _varint(data, position)
            continue
        length = {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}.get(wire)
        if wire == _BYTES:
            length, position = _varint(data, position)
        if length is None or position + length > len(data):
            raise ValueError("it is cut off or uses an unknown encoding")
        if wire == _BYTES:
            yield number, data[position : position + length]
        position += length


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    """Return the integer at ``position`` and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            break
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError("a number has no end")

"""What this machine does at its best: matrix products and memory.

``python -m dlmc.bench.rates float32 cpu`` prints both as JSON. It is a process of its own so that
torch, where it is installed, leaves no threads in the process that measures engines.
"""

import json
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np

from dlmc.bench.child import run_child
from dlmc.bench.roofline import Rates
from dlmc_runtime.manifest import Precision, Quantization

_SIDE = 2048
_STREAM = 64 << 20  # float32 numbers: far more than a processor's caches hold
_SECONDS = 1.0  # for each thing that is measured


def measure(precision: Precision, quantization: Quantization, device: str) -> Rates | None:
    """Measure the rates an engine could have.

    Args:
        precision: what the engine computes in.
        quantization: with ``w8a8`` its products are of 8-bit integers.
        device: where it runs; anything but ``cpu`` is taken for torch's CUDA device.

    Returns:
        The rates; None where nothing here can measure them (all but float32 on the CPU needs
        torch).
    """
    kind = "int8" if quantization == "w8a8" else precision
    found = run_child("dlmc.bench.rates", kind, "cpu" if device == "cpu" else "cuda")
    return None if found is None else Rates(**found)


def _best(function: Callable[[], Any]) -> float:
    """Return the least seconds of at least three calls."""
    function()
    times: list[float] = []
    while len(times) < 3 or sum(times) < _SECONDS:
        began = time.perf_counter()
        function()
        times.append(time.perf_counter() - began)
    return min(times)


def _torch_products(kind: str, device: str) -> float | None:
    """Return FLOP a second of torch's matrix products."""
    import torch

    dtype = getattr(torch, kind)
    x = torch.ones(_SIDE, _SIDE, dtype=dtype, device=device)

    def multiply() -> None:
        if kind == "int8":
            torch._int_mm(x, x)
        else:
            torch.nn.functional.linear(x, x)
        if device == "cuda":
            torch.cuda.synchronize()

    try:
        with torch.inference_mode():
            return 2 * _SIDE**3 / _best(multiply)
    except (RuntimeError, NotImplementedError):  # no kernel for this type here
        return None


def _torch_copy(device: str) -> float:
    """Return bytes a second of a copy on a device, read and written."""
    import torch

    source = torch.ones(_STREAM, device=device)
    target = torch.empty_like(source)

    def copy() -> None:
        target.copy_(source)
        torch.cuda.synchronize()

    return 2 * 4 * _STREAM / _best(copy)


def _numpy_products() -> float:
    x = np.ones((_SIDE, _SIDE), np.float32)
    out = np.empty_like(x)
    return 2 * _SIDE**3 / _best(lambda: np.matmul(x, x, out=out))


def _numpy_stream() -> tuple[float, str]:
    """Return bytes a second of the faster of a reading and a copying loop, and which it was."""
    source = np.ones(_STREAM, np.float32)
    target = np.empty_like(source)
    ways = {
        "reading": source.nbytes / _best(lambda: np.dot(source, source)),
        "copying": 2 * source.nbytes / _best(lambda: np.copyto(target, source)),
    }
    best = max(ways, key=lambda way: ways[way])
    return ways[best], f"numpy {best} {source.nbytes >> 20} MiB"


def here(kind: str, device: str) -> Rates | None:
    """Measure in this process; as `measure`."""
    torch = find_spec("torch") is not None
    if device == "cuda":
        if not torch or not _cuda():
            return None
        products, copy = _torch_products(kind, device), _torch_copy(device)
        how = f"torch {kind} products of {_SIDE}x{_SIDE}, torch copying on the GPU"
        return None if products is None else Rates(products, copy, how)
    ways = {"numpy": _numpy_products()} if kind == "float32" else {}
    if torch and (rate := _torch_products(kind, device)) is not None:
        ways["torch"] = rate
    if not ways:
        return None
    best = max(ways, key=lambda way: ways[way])
    bandwidth, stream = _numpy_stream()
    return Rates(ways[best], bandwidth, f"{best} {kind} products of {_SIDE}x{_SIDE}, {stream}")


def _cuda() -> bool:
    import torch

    return torch.cuda.is_available()


if __name__ == "__main__":
    rates = here(sys.argv[1], sys.argv[2])
    sys.stdout.write(json.dumps(rates and vars(rates)) + "\n")

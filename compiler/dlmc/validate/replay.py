"""Recorded states as files that Polygraphy's own command line replays, without dlmc."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from dlmc.validate.recording import State

Run = Callable[[dict[str, NDArray[Any]]], dict[str, NDArray[Any]]]

INPUTS, OUTPUTS = "inputs.json", "outputs.json"


def save_states(states: Sequence[State], reference: Run, folder: Path) -> None:
    """Write the graph's inputs of every state, and what the reference answers to them.

    ``polygraphy run denoiser.onnx --onnxrt --load-inputs inputs.json --load-outputs outputs.json``
    compares any runner that Polygraphy has with the reference.

    Args:
        states: recorded forwards.
        reference: returns all outputs of the graph, ``present`` included, for its inputs.
        folder: where to write ``inputs.json`` and ``outputs.json``; made where it is missing.

    Raises:
        OSError: the folder cannot be written.
    """
    from polygraphy.comparator import RunResults
    from polygraphy.json import save_json

    inputs = [{**state.inputs.arrays(), **state.before.past} for state in states]
    outputs = [reference(feeds) for feeds in inputs]
    results = RunResults()
    results.add(outputs, [0.0] * len(outputs), runner_name="torch")
    folder.mkdir(parents=True, exist_ok=True)
    save_json(inputs, str(folder / INPUTS), description="denoising states")
    results.save(str(folder / OUTPUTS))

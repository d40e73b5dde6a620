"""Operators that denoisers use, through torch's exporter and run by ONNX Runtime."""

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from torch import nn
from torch.nn import functional

from dlmc.export.translation import TRANSLATIONS, decomposing_where_needed


class Module(nn.Module):
    """A function of one tensor [B,T,4,6] as a module."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


@pytest.fixture
def decompositions(monkeypatch):
    """How many times the exporter decomposes a program."""
    found, real = [], torch.export.ExportedProgram.run_decompositions

    def run(program, table):
        found.append(program)
        return real(program, table)

    monkeypatch.setattr(torch.export.ExportedProgram, "run_decompositions", run)
    return found


def export(function) -> ir.Model:
    with decomposing_where_needed():
        program = torch.onnx.export(
            Module(function).eval(),
            (torch.zeros(2, 3, 4, 6),),
            dynamo=True,
            opset_version=23,
            dynamic_shapes=({0: "batch", 1: "block"},),
            custom_translation_table=TRANSLATIONS,
            optimize=False,
            verbose=False,
        )
    assert program is not None
    return program.model


def run(model: ir.Model, x: torch.Tensor) -> list[np.ndarray]:
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString())
    found: list[np.ndarray] = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    return found


FUNCTIONS = {
    "conversion": lambda x: x.to(torch.int64) + 1,
    "conversion to what it is": lambda x: x.float() + 1,
    "output that is its input converted": lambda x: x.float(),
    "last two": lambda x: x.flatten(-2) + 1,
    "all but the first": lambda x: x.flatten(1) + 1,
    "two that have names": lambda x: x.flatten(0, 1) + 1,
    "one that has a name": lambda x: x.flatten(1, 2) + 1,
    "last made two": lambda x: x.unflatten(-1, (-1, 3)) + 1,
    "one inside made three": lambda x: x.unflatten(2, (2, 1, -1)) + 1,
    "one that has a name made two": lambda x: x.unflatten(1, (-1, 1)) + 1,
    "both": lambda x: torch.where((x > 0.2) & (x < 0.6), x, -x),
    "bits of both": lambda x: (x * 99).to(torch.int64) & (x * 55).to(torch.int64),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_operators_are_those_of_torch(decompositions, name):
    function = FUNCTIONS[name]
    model = export(function)
    assert not decompositions
    for size in [(2, 3), (1, 1), (4, 7)]:
        x = torch.rand(*size, 4, 6)
        (found,) = run(model, x)
        np.testing.assert_array_equal(found, function(x).numpy())


@pytest.mark.parametrize("name", ["last two", "last made two"])
def test_what_is_empty_keeps_its_shape(name):
    x = torch.zeros(2, 0, 4, 6)
    (found,) = run(export(FUNCTIONS[name]), x)
    assert found.shape == FUNCTIONS[name](x).shape


def test_shapes_that_are_fixed_take_no_nodes():
    found = {node.op_type for node in export(FUNCTIONS["last two"]).graph}
    assert found == {"Constant", "Reshape", "Cast", "Add"}


def _written_in_place(x):
    y = x + 0
    y[:, 0].copy_(x[:, 1])
    return y * 2


def _composed(x):
    return functional.smooth_l1_loss(x, x * 3)


def _within_another(x):
    with torch.no_grad():
        return x * 2


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of torch about itself
@pytest.mark.parametrize("function", [_written_in_place, _composed, _within_another])
def test_a_program_that_needs_it_is_decomposed(decompositions, function):
    model = export(function)
    assert len(decompositions) == 1
    x = torch.rand(2, 3, 4, 6)
    (found,) = run(model, x)
    np.testing.assert_allclose(found, function(x).numpy(), rtol=1e-6)


def test_the_exporter_is_as_before_afterwards():
    before = torch.export.ExportedProgram.run_decompositions
    with decomposing_where_needed():
        assert torch.export.ExportedProgram.run_decompositions is not before
    assert torch.export.ExportedProgram.run_decompositions is before

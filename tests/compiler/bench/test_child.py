import pytest

from dlmc.bench.child import run_child
from dlmc_runtime.errors import EngineError


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a module that a child of this process finds."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def write(text):
        (tmp_path / "measured.py").write_text(text)
        return "measured"

    return write


def test_the_last_line_counts(module):
    name = module("import sys; print('a library says hello'); print('[1, \"%s\"]' % sys.argv[1])")
    assert run_child(name, "x") == [1, "x"]


def test_a_failure_is_one_sentence(module):
    with pytest.raises(EngineError, match=r"^measured y failed \(ValueError: no such engine\)$"):
        run_child(module("raise ValueError('no such engine')"), "y")


def test_a_child_that_says_nothing(module):
    with pytest.raises(EngineError, match="no word why"):
        run_child(module(""))

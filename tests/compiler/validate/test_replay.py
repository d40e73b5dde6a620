import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dlmc.validate.reference import load_reference
from dlmc.validate.replay import INPUTS, OUTPUTS, save_states


def _polygraphy(bundle, folder):
    """Replay saved states with the real program."""
    return subprocess.run(
        [
            Path(sys.executable).with_name("polygraphy"),
            *("run", bundle.root / bundle.manifest.graph, "--onnxrt", "--atol", "1e-3"),
            *("--load-inputs", folder / INPUTS, "--load-outputs", folder / OUTPUTS),
        ],
        capture_output=True,
        text=True,
        check=False,
    )


def _wrong_at(state, run):
    """Return a reference whose entropy is off in one state."""
    count = itertools.count(1)

    def answer(feeds):
        answers = run(feeds)
        if next(count) == state:
            answers["entropy"] = answers["entropy"] + np.float32(0.5)
        return answers

    return answer


@pytest.mark.slow
def test_polygraphy_replays_the_states(bundle, states, tmp_path):
    reference = load_reference(bundle, bundle.manifest.profiles)
    save_states(states, reference.run, tmp_path / "new" / "folder")
    done = _polygraphy(bundle, tmp_path / "new" / "folder")
    assert done.returncode == 0, done.stdout
    assert "present.1.value" in done.stdout


@pytest.mark.slow
def test_polygraphy_finds_what_differs(bundle, states, tmp_path):
    reference = load_reference(bundle, bundle.manifest.profiles)
    save_states(states, _wrong_at(2, reference.run), tmp_path)
    done = _polygraphy(bundle, tmp_path)
    assert done.returncode == 1
    assert "FAILED | Output: 'entropy'" in done.stdout, done.stdout

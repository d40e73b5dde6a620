import numpy as np
import pytest

from dlmc.targets.calibration import calibration_states, read_prompts
from dlmc_runtime.bundle import Bundle
from dlmc_runtime.errors import UsageError


@pytest.mark.slow
def test_states_are_of_several_noise_levels(tiny_bundle):
    bundle = Bundle.open(tiny_bundle("tiny-sdar"))
    manifest = bundle.manifest
    states = calibration_states(bundle, manifest.profiles, None)
    shares = set()
    for state in states:
        assert set(state) == {spec.name for spec in manifest.inputs}
        active = state["input_ids"][0, : manifest.attention.block_length]
        shares.add(float(np.mean(active == manifest.tokens.mask)))
    assert {0.0, 0.25, 0.5, 0.75, 1.0} <= shares  # only where one position is committed a forward


@pytest.mark.slow
def test_prompts_can_be_given(tiny_bundle, tmp_path):
    bundle = Bundle.open(tiny_bundle("tiny-llada"))
    (tmp_path / "prompts.txt").write_text("12+7=?\n\n3+4=?\n")
    states = calibration_states(bundle, bundle.manifest.profiles, tmp_path / "prompts.txt")
    assert len({state["input_ids"][0, :4].tobytes() for state in states}) == 2


def test_blank_lines_are_no_prompts(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text("one\n  \n\ntwo\n")
    assert read_prompts(path) == ("one", "two")


@pytest.mark.parametrize("content", [None, b"", b"\n \n", b"\xff\xfe\x00", b"a\n" * 1001])
def test_a_file_without_prompts_is_refused(tmp_path, content):
    path = tmp_path / "prompts.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=r"prompts\.txt .*one prompt a line"):
        read_prompts(path)

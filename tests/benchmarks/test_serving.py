import pytest

pytest.importorskip("torch", reason="exporting a bundle needs the compile extra")

from dlmc.bench.isolated import Use
from dlmc_runtime.manifest import Profile
from serving import AT_ONCE, forwards, gain


def use(kind, batch):
    return Use(kind, Profile(batch=batch, block=4, cache=64, rows=4))


def test_the_last_block_is_not_committed():
    assert forwards(4, 48) == {"prefill": 1, "denoise": 24, "commit": 11}
    assert forwards(32, 48) == {"prefill": 1, "denoise": 8, "commit": 1}


def test_a_gain_weighs_all_forwards_of_an_answer():
    seconds = {use("denoise", 1): 1.0, use("denoise", AT_ONCE): 2.0}
    assert gain({"denoise": 5}, seconds) == 4
    seconds |= {use("prefill", 1): 5.0, use("prefill", AT_ONCE): 5.0 * AT_ONCE}
    assert gain({"denoise": 5, "prefill": 1}, seconds) == (5 + 5) / (5 * 2 / AT_ONCE + 5)
    assert gain({"denoise": 0, "prefill": 1}, seconds) == 1


def test_other_widths_do_not_count():
    seconds = {use("denoise", rows): time for rows, time in ((1, 1.0), (2, 9.0), (AT_ONCE, 4.0))}
    assert gain({"denoise": 3}, seconds) == 2

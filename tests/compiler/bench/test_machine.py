import os

import pytest

from dlmc.bench import machine
from dlmc.bench.machine import Noise, Watch, busy_share, this_machine


def test_what_others_took_is_what_was_busy_without_us():
    # 10 s of wall time on 2 cores: 14 s busy, of which 11 ours.
    assert busy_share((100.0, 400.0), (114.0, 420.0), 11.0) == pytest.approx(0.15)


def test_clocks_of_different_grain_never_give_less_than_nothing():
    assert busy_share((0.0, 0.0), (1.0, 2.0), 1.02) == 0.0
    assert busy_share((1.0, 2.0), (1.0, 2.0), 0.0) == 0.0


@pytest.mark.parametrize(
    ("noise", "words"),
    [
        (Noise(0.1, 0.01, 2), ""),
        (Noise(0.1, 0.2, 2), "other programs took 20%"),
        (Noise(1.5, 0.01, 2), "load average was 1.50 on 2 cores"),
        (Noise(1.5, None, 8), ""),
        (Noise(None, None, 2), ""),
    ],
)
def test_a_warning_says_what_was_seen(noise, words):
    assert words in noise.warning
    assert bool(noise.warning) == bool(words)


def test_a_watch_sees_this_machine():
    with Watch() as watch:
        sum(range(1000))
    assert watch.noise.cores == machine.cores() >= 1
    assert watch.noise.others is None or 0 <= watch.noise.others <= 1


def test_a_system_without_proc(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "_PROC", tmp_path)
    with Watch() as watch:
        pass
    assert watch.noise.others is None
    assert this_machine().processor


def test_proc_stat_is_read_in_seconds(monkeypatch, tmp_path):
    ticks = os.sysconf("SC_CLK_TCK")
    # user nice system idle iowait irq softirq steal guest guest_nice; guest is part of user
    (tmp_path / "stat").write_text(f"cpu  {3 * ticks} 0 {ticks} {5 * ticks} {ticks} 0 0 0 9 9\n")
    monkeypatch.setattr(machine, "_PROC", tmp_path)
    assert machine._seconds() == (4.0, 10.0)


def test_this_machine_is_described():
    here = this_machine()
    assert here.cores >= 1
    assert here.system
    assert here.python.count(".") == 2

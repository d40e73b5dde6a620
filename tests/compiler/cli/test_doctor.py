import pytest

from dlmc.cli import doctor
from dlmc.targets import TARGETS
from dlmc_runtime.engines import ENGINES
from dlmc_runtime.version import __version__


def test_every_target_dlmc_knows_is_examined():
    assert set(TARGETS) | set(ENGINES) <= set(doctor._TARGETS)


def test_the_table_for_people(dlmc, monkeypatch):
    for table in (TARGETS, ENGINES):
        monkeypatch.delitem(table, "tensorrt")
    outcome = dlmc("doctor")
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out.startswith(f"dlmc {__version__} on Python 3.")
    lines = {line.split()[0]: line for line in outcome.out.splitlines() if line}
    assert lines["onnxruntime-cpu"].split()[1:3] == ["yes", "yes"]
    assert lines["tensorrt"].endswith("not supported by this version of dlmc")


def test_json(dlmc):
    report = dlmc("doctor", "--json").json
    assert report["machine"]["cores"] >= 1
    by_name = {one["target"]: one for one in report["targets"]}
    assert by_name["onnxruntime-cpu"]["build"]
    assert by_name["onnxruntime-cpu"]["run"]
    assert set(by_name) == set(doctor._TARGETS)


def test_what_is_missing_says_how_to_get_it(dlmc, monkeypatch):
    monkeypatch.setattr(doctor, "installed", lambda _: None)
    out = dlmc("doctor").out
    assert "pip install onnxruntime" in out
    assert "pip install 'dlmc[compile]'" in out
    assert doctor.examine("onnxruntime-cpu").run is False


@pytest.mark.parametrize("package", ["no-such-distribution", ""])
def test_a_distribution_that_is_not_installed(package, monkeypatch):
    assert doctor.installed(package or "no-such") is None

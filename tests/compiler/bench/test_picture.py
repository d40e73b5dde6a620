import sys
from pathlib import Path

import pytest
from sample_report import REPORT

from dlmc.bench import picture
from dlmc_runtime.errors import DlmcError, UsageError


@pytest.mark.parametrize("name", ["picture.jpg", "picture", "svg"])
def test_a_suffix_that_names_no_picture(name, tmp_path):
    with pytest.raises(UsageError, match=r"end it in \.svg or \.png"):
        picture.check(tmp_path / name)


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match="there is no folder"):
        picture.check(tmp_path / "none" / "picture.svg")


def test_without_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(DlmcError, match=r"needs matplotlib.*pip install 'dlmc\[validate\]'"):
        picture.check(tmp_path / "picture.svg")


def test_a_phase_in_a_few_words():
    engine, torch = (contender.phases[0] for contender in REPORT.contenders)
    assert picture.label(engine) == "denoise 1x8 over 32, 8 rows"
    assert picture.label(torch) == "prefill 1x16 over 32, 1 rows"


def test_drawn_as_svg(tmp_path):
    pytest.importorskip("matplotlib", reason="pictures need the validate extra")
    path = tmp_path / "picture.svg"
    picture.check(path)
    picture.draw(REPORT, path)
    drawn = path.read_text()
    assert drawn.startswith("<?xml")
    picture.draw(REPORT, tmp_path / "again.svg")
    assert len((tmp_path / "again.svg").read_text()) == len(drawn)


def test_drawn_as_png(tmp_path):
    pytest.importorskip("matplotlib", reason="pictures need the validate extra")
    path = tmp_path / "picture.PNG"
    picture.check(path)
    picture.draw(REPORT, path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_place_that_cannot_be_written():
    pytest.importorskip("matplotlib", reason="pictures need the validate extra")
    with pytest.raises(DlmcError, match="cannot write"):
        picture.draw(REPORT, Path("/proc/none/picture.svg"))

import pytest

pytest.importorskip("torch", reason="exporting a bundle needs the compile extra")

from dlmc_runtime import Generator, legal
from dlmc_runtime.bundle import Bundle
from machine import Table
from sampler_table import frontier, markdown, picture
from samplers import CHECKPOINTS, COLUMNS, asked, measure, rows_of, settings


def line(name, sampler, options, cache, exact, forwards):
    return (name, sampler, options, cache, 0, 4, exact, exact, forwards, 60 / forwards)


TABLE = Table(
    "samplers",
    COLUMNS,
    (
        line("a", "low_confidence", "threshold 0.9", "none", 100.0, 6.0),
        line("a", "low_confidence", "threshold 0.9", "dual", 75.0, 6.5),
        line("a", "wino", "its own", "none", 50.0, 3.0),
        line("b", "random", "steps 4", "exact", 25.0, 8.0),
    ),
)


def test_a_page_has_a_table_a_checkpoint_and_columns_for_every_cache():
    page = markdown(TABLE)
    assert "4 held-out problems, seed 0" in page
    assert "none: exact % | forwards | TPF | dual: exact % | forwards | TPF |" in page
    first = "| `low_confidence` | threshold 0.9 | 100.0 | 6.0 | 10.00 | 75.0 | 6.5 | 9.23 |"
    assert first in page
    assert "| `wino` | its own | 50.0 | 3.0 | 20.00 | | | |" in page
    assert page.count("\n## ") == 2


def test_every_line_of_a_table_has_as_many_cells():
    lines = [one for one in markdown(TABLE).splitlines() if one.startswith("|")]
    assert {one.count("|") for one in lines} == {9, 6}


def test_nothing_beats_the_frontier():
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in TABLE.rows[:3]]
    assert [row["sampler"] for row in frontier(rows)] == ["wino", "low_confidence"]


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_a_picture(tmp_path, suffix):
    pytest.importorskip("matplotlib", reason="pictures need the validate extra")
    path = tmp_path / f"picture.{suffix}"
    picture(TABLE, path)
    assert path.stat().st_size > 1000


def test_every_legal_sampler_has_a_row_and_fits(tmp_path, repository):
    drawn = asked(1, 0)
    assert len({problem.task for problem in drawn}) == len(drawn) == 4
    for name in CHECKPOINTS:
        rows = list(rows_of(name, tmp_path, drawn[:1], 0, only=("low_confidence", "wino")))
        assert {len(row) for row in rows} == {len(COLUMNS)}
        with Generator.of(Bundle.open(tmp_path / name), "onnxruntime-cpu") as generator:
            every = list(settings(generator))
            attention, tokens = generator.manifest.attention, generator.manifest.tokens
            names = legal.samplers_for(attention.regime, tokens)
            assert {one.config.name for one in every} == set(names)
            assert len(set(every)) == len(every)
            for one in every:
                legal.check(one.config, generator.manifest)
            again = measure(generator, every[0], drawn[:1], 0)
            assert again == rows[0][1:]

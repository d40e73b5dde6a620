import io

import numpy as np
import pytest
from rich.console import Console

from dlmc.cli import watch
from dlmc.cli.watch import EDGE, MASK, Canvas, watching
from dlmc_runtime.events import Committed, Denoised


def denoised(canvas, masked, *, start=0, end=None, confidence=0.95, forward=1):
    end = len(canvas) if end is None else end
    return Denoised(
        row=0,
        forward=forward,
        start=start,
        end=end,
        canvas=np.array(canvas),
        masked=np.array(masked, np.bool_),
        confidence=np.full(end - start, confidence),
    )


def text_of(canvas):
    return "".join(piece for piece, _ in canvas.spans())


@pytest.fixture
def canvas(codec):
    return Canvas(codec)


def test_masks_and_block_edges_are_visible(canvas, codec):
    ids = codec.encode("abcd")
    canvas.update(denoised(ids, [0, 0, 1, 1], end=2))
    assert text_of(canvas) == f"ab{EDGE}{MASK}{MASK}"


def test_colour_follows_the_confidence_at_which_a_position_was_fixed(canvas, codec):
    ids = codec.encode("abcd")
    canvas.update(denoised(ids, [0, 1, 1, 1], confidence=0.2))
    canvas.update(denoised(ids, [0, 0, 1, 1], confidence=0.99, forward=2))
    assert list(canvas.spans())[:3] == [("a", "red"), ("b", "green"), (MASK, "dim")]


def test_a_token_that_is_replaced_takes_a_new_colour(canvas, codec):
    canvas.update(denoised(codec.encode("ab"), [0, 0], confidence=0.2))
    canvas.update(denoised(codec.encode("ac"), [0, 0], confidence=0.99, forward=2))
    assert list(canvas.spans()) == [("a", "red"), ("c", "green")]


def test_a_block_may_begin_in_the_prompt(canvas, codec):
    canvas.update(denoised(codec.encode("ab"), [0, 1], start=-2, end=2, confidence=0.6))
    assert list(canvas.spans()) == [("a", "yellow"), (MASK, "dim")]


def test_the_tokens_of_one_character_stay_together(canvas, codec):
    ids = codec.encode("aü")
    canvas.update(denoised(ids, [0, 0, 1]))
    assert text_of(canvas) == f"a\ufffd{MASK}"
    canvas.update(denoised(ids, [0, 0, 0]))
    assert text_of(canvas) == "aü"


def test_special_tokens_and_line_breaks_take_one_place(canvas, codec):
    canvas.update(denoised([*codec.encode("a\n"), 256], [0, 0, 0]))
    assert canvas.line().endswith(": a⏎·")


def test_control_characters_stay_in_their_place(canvas, codec):
    canvas.update(denoised(codec.encode("\x1b\r"), [0, 0]))
    assert text_of(canvas) == "␛␍"


def test_a_bundle_without_a_tokenizer_shows_ids():
    canvas = Canvas(None)
    canvas.update(denoised([7, 8, 9], [0, 0, 1]))
    assert text_of(canvas) == f"7 8 {MASK}"


def test_an_empty_canvas_has_a_line(canvas):
    assert canvas.line() == "forward 0: 0 of 0 positions, 0.00 tokens per forward: "


def test_live_on_a_terminal(codec, monkeypatch):
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=60, color_system="standard")
    monkeypatch.setattr("rich.get_console", lambda: console)
    monkeypatch.setattr("rich.live.get_console", lambda: console)
    monkeypatch.setattr(watch, "on_terminal", lambda: True)
    with watching(codec) as show:
        show(denoised(codec.encode("abc"), [0, 0, 1]))
        show(Committed(0, (1,), "a"))
    assert "forward 1: 2 of 3 positions" in screen.getvalue()
    assert MASK in screen.getvalue()
    assert "\x1b[32ma" in screen.getvalue()


def test_noise_can_be_seen(codec):
    canvas = Canvas(codec, noisy=True)
    canvas.update(denoised(codec.encode("abcd"), [1, 1, 0, 0]))
    assert list(canvas.spans())[:3] == [("a", "dim"), ("b", "dim"), ("c", "green")]

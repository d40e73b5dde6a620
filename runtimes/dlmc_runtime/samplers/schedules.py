"""How many positions each step commits where a number of steps sets the pace."""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Literal

import numpy as np

Schedule = Literal["uniform", "linear", "cosine", "dream", "rnd1"]


def quota(total: int, steps: int, step: int) -> int:
    """Spread ``total`` commits over ``steps``: the first ``total % steps`` get one more.

    LLaDA's ``get_num_transfer_tokens`` (ML-GSAI/LLaDA ``generate.py``).
    """
    return total // steps + (step < total % steps) if step < steps else total


@lru_cache(maxsize=1024)
def reverse_process(masks: int, steps: int, kind: Literal["linear", "cosine"]) -> tuple[int, ...]:
    """Return how many of ``masks`` each step commits as time runs from 1 to 0.

    With alpha(t) the share of known tokens at time t, a mask stays one from t to s with
    probability (1 - alpha(s)) / (1 - alpha(t)) (MDLM, arXiv 2406.07524). Counts are rounded to
    the nearest even, steps without any are left out (ZHZisZZ/dllm ``core/samplers/utils.py``:
    the ratio is a float32, the product a float64).
    """
    alpha = _ALPHAS[kind]
    counts: list[int] = []
    left = masks
    for step in range(steps, 0, -1):
        now, then = np.float32(step / steps), np.float32((step - 1) / steps)
        stays = (np.float32(1) - alpha(then)) / (np.float32(1) - alpha(now))
        count = min(round(left * (1.0 - float(stays))), left)
        if count:
            counts.append(count)
        left -= count
    return tuple(counts)


def _linear(time: np.float32) -> np.float32:
    return np.float32(1) - time


def _cosine(time: np.float32) -> np.float32:
    known: np.float32 = np.float32(1) - np.cos(np.float32(math.pi / 2) * (np.float32(1) - time))
    return known


_ALPHAS: dict[str, Callable[[np.float32], np.float32]] = {"linear": _linear, "cosine": _cosine}


@lru_cache(maxsize=256)
def dream_times(steps: int, eps: float) -> tuple[float, ...]:
    """Return Dream's ``linspace(1, eps, steps + 1)``, in float32."""
    return tuple(np.linspace(1, eps, steps + 1, dtype=np.float32).tolist())


def dream(masks: int, steps: int, step: int, eps: float) -> int:
    """Return how many of the ``masks`` left Dream commits: 0 at some early steps, all at the last.

    Dream's ``diffusion_generate`` (DreamLM/Dream).
    """
    if step + 1 >= steps:
        return masks
    times = dream_times(steps, eps)
    ratio = np.float32(times[step + 1]) / np.float32(times[step])
    return int(np.float32(masks) * (np.float32(1) - ratio))


def rnd1(masks: int, left: int, steps: int, step: int) -> int:
    """Return how many of the ``left`` masks RND1 commits: all but a share of what there was.

    With ``masks`` at the start, step i of S leaves floor(masks (S - 1 - i) / S), in float32
    (RadicalNumerics/RND1 ``rnd/sampling.py``).
    """
    stay = int(np.float32(masks) * np.float32((steps - 1 - step) / steps))
    return left if step + 1 >= steps else max(left - stay, 0)

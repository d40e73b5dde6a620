"""Every recorded run, through export, build and the runtime: canvas for canvas."""

import cases
import numpy as np
import pytest

from dlmc_runtime import decode, engines
from dlmc_runtime.row import Request, Row
from dlmc_runtime.stop import StopRule


class Zeros:
    """Uniform numbers that always draw the first, most probable candidate."""

    def random(self, size: int) -> np.ndarray:
        return np.zeros(size)


@pytest.mark.parametrize("case", list(cases.cases()), ids=lambda case: case.name)
def test_recorded_run(case, built):
    reason = cases.unsupported(case)
    if reason:
        pytest.skip(f"{case.name}: {reason}")
    plan = cases.plan(case)
    recorded = cases.recorded(case)
    bundle = built(case.pack, suppress=plan.suppress, block_length=plan.exported_block)
    with_engine = engines.load(bundle, "onnxruntime-cpu")
    requests = [
        Request(
            prompt,
            plan.max_new_tokens,
            plan.sampler,
            stop=StopRule(plan.stop_ids),
            keep_cache=True,
        )
        for prompt in cases.prompts(case)
    ]
    batch = decode.Batch(with_engine, [Row(r, bundle.manifest, Zeros()) for r in requests])
    canvases = [[row.canvas.tolist() for row in batch.rows]]
    forwards = 0
    while batch.active:
        denoised = decode.step(batch)
        forwards += 1
        if denoised:
            canvases.append([row.canvas.tolist() for row in batch.rows])
    with_engine.close()
    assert canvases[-1] == recorded.finals
    if len(requests) == 1 or plan.scheduled:
        assert forwards == recorded.forwards
        assert recorded.canvases in (None, canvases)
    else:
        # A row that has finished its block before the others waits for them in the references.
        # Here it goes on: the same states, in fewer forwards.
        assert forwards <= recorded.forwards
        assert recorded.canvases is None or _by_row(canvases) == _by_row(recorded.canvases)


def _by_row(canvases):
    """Return, row by row, the states of a run without repetitions."""
    return [
        [state for i, state in enumerate(row) if i == 0 or state != row[i - 1]]
        for row in zip(*canvases, strict=True)
    ]


def test_states_by_row_leave_out_repetitions():
    first, second, third = [1, 9], [1, 2], [3, 2]
    waiting = [[first, first], [second, first], [second, third]]
    assert _by_row(waiting) == [[first, second], [first, third]]


def test_supported_packs_have_runs():
    """A pack of a supported family from which nothing is run would pass without being checked."""
    run = {case.pack for case in cases.cases() if cases.unsupported(case) is None}
    packs = cases.packs()
    assert packs, f"there is no pack in {cases.ROOT}"
    assert run == {pack for pack in packs if cases.architecture(pack) in cases.FAMILIES}

"""Every recorded run, through export, build and the runtime: canvas for canvas."""

import cases
import numpy as np
import plans
import pytest
import views

from dlmc_runtime import decode, engines, legal
from dlmc_runtime.batch import Batch
from dlmc_runtime.row import Request, Row
from dlmc_runtime.stop import StopRule


class Zeros:
    """Uniform numbers that always draw the first, most probable candidate."""

    def random(self, size: int) -> np.ndarray:
        return np.zeros(size)


def holes_of(template, mask_id):
    """Return the spans of masks in a template."""
    masked = np.array([False, *(token == mask_id for token in template), False])
    edges = np.flatnonzero(np.diff(masked)).tolist()
    return tuple(zip(edges[::2], edges[1::2], strict=True))


def requests_of(case, plan, mask_id):
    return [
        Request(
            prompt,
            plan.max_new_tokens,
            plan.sampler,
            stop=StopRule(plan.stop_ids),
            early_exit=plan.early_exit,
            keep_cache=plan.keep_cache,
            holes=holes_of(prompt, mask_id) if plan.infill else (),
        )
        for prompt in cases.prompts(case)
    ]


def run_noting(engine, rows, seen):
    """Run rows as one batch, show each state to the row's view, and return the tasks' kinds."""
    batch = Batch.of(engine, rows)
    for row, view in zip(rows, seen, strict=True):
        view.note(view.first(row))
    kinds = []
    while batch.active:
        tasks = {index: rows[index].task(batch.chunk) for index in batch.active}
        before = {index: rows[index].forwards for index in tasks}
        for index, task in tasks.items():
            seen[index].note(seen[index].before(rows[index], task))
        decode.step(batch)
        took_part = {i: task for i, task in tasks.items() if rows[i].forwards > before[i]}
        for index, task in took_part.items():
            seen[index].note(seen[index].after(rows[index], task))
        kinds.append({task.kind for task in took_part.values()})
    return kinds


@pytest.mark.parametrize("case", list(cases.cases()), ids=lambda case: case.name)
def test_recorded_run(case, built):
    reason = cases.unsupported(case)
    if reason:
        pytest.skip(f"{case.name}: {reason}")
    plan = plans.plan(case)
    recorded = cases.recorded(case)
    bundle = built(case.pack, **plans.exported_as(case, plan))
    legal.check(plan.sampler, bundle.manifest)
    with_engine = engines.load(bundle, "onnxruntime-cpu")
    requests = requests_of(case, plan, bundle.manifest.tokens.mask)
    # A template without a hole is no request: the reference returns it as it is.
    run = [index for index, request in enumerate(requests) if request.holes or not plan.infill]
    for index in set(range(len(requests))) - set(run):
        assert recorded.finals[index] == list(requests[index].prompt)
    rows = [Row(requests[index], bundle.manifest, Zeros()) for index in run]
    seen = [views.make(plan.view) for _ in rows]
    kinds = run_noting(with_engine, rows, seen)
    forwards = sum(not plan.cacheless or "denoise" in kind for kind in kinds)
    with_engine.close()
    finals = [view.final(row) for row, view in zip(rows, seen, strict=True)]
    assert finals == [recorded.finals[index] for index in run]
    for final, view in zip(finals, seen, strict=True):
        view.note(final if view.ends else None)
    if len(requests) == 1 or plan.scheduled:
        assert forwards == recorded.forwards / plan.less - plan.more
    else:
        # A row that has finished its block before the others waits for them in the references.
        # Here it goes on: the same states, in fewer forwards.
        assert forwards <= recorded.forwards / plan.less - plan.more
    if recorded.canvases is not None and plan.view != "none":
        wanted = [[state[index] for state in recorded.canvases] for index in run]
        if len(rows) > 1:
            wanted, found = map(distinct, (wanted, [view.states for view in seen]))
        else:
            found = [view.states for view in seen]
        assert found == wanted


def distinct(rows):
    """Return, row by row, the states of a run without repetitions."""
    return [[state for i, state in enumerate(row) if i == 0 or state != row[i - 1]] for row in rows]


def test_states_by_row_leave_out_repetitions():
    first, second, third = [1, 9], [1, 2], [3, 2]
    assert distinct([[first, second, second], [first, first, third]]) == [
        [first, second],
        [first, third],
    ]


def test_supported_packs_have_runs():
    """A pack of a supported family from which nothing is run would pass without being checked."""
    run = {case.pack for case in cases.cases() if cases.unsupported(case) is None}
    packs = cases.packs()
    assert packs, f"there is no pack in {cases.ROOT}"
    assert run == {pack for pack in packs if cases.family(pack) is not None}

import numpy as np

from dlmc.validate.reference import load_reference
from dlmc_runtime.engines.base import Store
from dlmc_runtime.masks import fill


def test_it_answers_every_output_and_stores_what_it_is_told(bundle):
    profile = bundle.engine("onnxruntime-cpu").profiles[0]
    engine = load_reference(bundle, (profile,))
    inputs, cache = engine.inputs(profile), engine.cache(1, profile.cache)
    count = profile.block
    inputs.input_ids[0] = np.arange(count)
    inputs.position_ids[0] = np.arange(count)
    fill(inputs.attention_mask[0, 0], "block", "store", 0, count, 0, count)
    outputs = engine.forward(inputs, cache, [Store(0, count)])
    assert outputs.top_ids.shape == (1, profile.rows, bundle.manifest.head.candidates)
    assert cache.filled[0] == count
    assert all(np.abs(past[0, :, :count]).sum() > 0 for past in cache.past.values())
    assert all(not past[0, :, count:].any() for past in cache.past.values())


def test_run_names_the_outputs_of_the_graph(bundle):
    profile = bundle.engine("onnxruntime-cpu").profiles[0]
    engine = load_reference(bundle, (profile,))
    inputs, cache = engine.inputs(profile), engine.cache(1, profile.cache)
    answers = engine.run({**inputs.arrays(), **cache.past})
    assert list(answers) == [spec.name for spec in bundle.manifest.outputs]

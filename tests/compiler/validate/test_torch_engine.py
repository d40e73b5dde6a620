import numpy as np

from dlmc_runtime.engines.base import Store
from dlmc_runtime.masks import fill


def test_it_answers_every_output_and_stores_what_it_is_told(bundle, reference):
    profile = bundle.engine("onnxruntime-cpu").profiles[0]
    inputs, cache = reference.inputs(profile), reference.cache(1, profile.cache)
    count = profile.block
    inputs.input_ids[0] = np.arange(count)
    inputs.position_ids[0] = np.arange(count)
    fill(inputs.attention_mask[0, 0], np.ones((count, count), np.bool_), 0)
    outputs = reference.forward(inputs, cache, [Store(0, count)])
    assert outputs.top_ids.shape == (1, profile.rows, bundle.manifest.head.candidates)
    assert cache.filled[0] == count
    assert all(np.abs(past[0, :, :count]).sum() > 0 for past in cache.past.values())
    assert all(not past[0, :, count:].any() for past in cache.past.values())


def test_run_names_the_outputs_of_the_graph(bundle, reference, states):
    answers = reference.run(states[0].feeds())
    assert list(answers) == [spec.name for spec in bundle.manifest.outputs]


def test_modules_answer_on_the_way_by_name(reference, states):
    names = ["embed_tokens", "layers.1", "layers.1.mlp.down_proj", "norm"]
    assert {*names} <= reference.points()
    assert "lm_head" not in reference.points()  # its weight is used without calling it
    assert "rope" not in reference.points()
    feeds = states[0].feeds()
    found = reference.inner(feeds, names)
    assert set(found) == set(names)
    block = feeds["input_ids"].shape[1]
    hidden = reference.manifest.model.hidden_size
    assert {value.shape for value in found.values()} == {(1, block, hidden)}
    embedding = reference.module.denoiser.embed_tokens.weight.detach().numpy()
    np.testing.assert_array_equal(found["embed_tokens"][0], embedding[feeds["input_ids"][0]])
    assert not reference.inner(feeds, [])
    assert not any(one._forward_hooks for one in reference.module.modules())

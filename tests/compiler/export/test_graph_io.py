import sys
from dataclasses import replace
from subprocess import run

import pytest

from dlmc.export.graph_io import arguments, graph_inputs, graph_outputs
from dlmc_runtime.engines.base import Inputs, tensor_shape
from dlmc_runtime.manifest import Attention, Profile


def test_inputs_in_order(config):
    assert [(spec.name, spec.dtype, spec.shape) for spec in graph_inputs(config)][:5] == [
        ("input_ids", "int64", ("batch", "block")),
        ("position_ids", "int64", ("batch", "block")),
        ("attention_mask", "bool", ("batch", 1, "block", "context")),
        ("past_key_values.0.key", "float32", ("batch", 2, "cache", 16)),
        ("past_key_values.0.value", "float32", ("batch", 2, "cache", 16)),
    ]
    assert [(spec.name, spec.dtype, spec.shape) for spec in graph_inputs(config)][-3:] == [
        ("head_rows", "int64", ("batch", "rows")),
        ("temperature", "float32", ("batch",)),
        ("uniform", "float32", ("batch", "rows")),
    ]


def described(specs):
    return [(spec.name, spec.dtype, spec.shape) for spec in specs]


def test_a_second_mask_and_an_adapter_follow_the_mask(config):
    plain = described(graph_inputs(config))
    mask = ("sliding_attention_mask", "bool", ("batch", 1, "block", "context"))
    adapter = ("adapter", "float32", ("batch",))
    sliding, adapted = replace(config, sliding_window=8), replace(config, adapter_rank=4)
    assert described(graph_inputs(sliding)) == [*plain[:3], mask, *plain[3:]]
    assert described(graph_inputs(adapted)) == [*plain[:3], adapter, *plain[3:]]
    both = replace(sliding, adapter_rank=4)
    assert described(graph_inputs(both)) == [*plain[:3], mask, adapter, *plain[3:]]


def test_guidance_comes_last(config):
    plain, guided = (graph_inputs(config, variant) for variant in ("plain", "guided"))
    assert guided[: len(plain)] == plain
    assert described(guided[len(plain) :]) == [
        ("guidance", "float32", ("batch",)),
        ("partner", "int64", ("batch",)),
    ]
    assert graph_outputs(config, 4, "guided") == graph_outputs(config, 4, "plain")


@pytest.mark.parametrize("variant", ["plain", "guided"])
@pytest.mark.parametrize("changes", [{}, {"sliding_window": 3}, {"adapter_rank": 2}])
def test_the_runtime_feeds_the_same_in_the_same_order(config, variant, changes):
    specs = graph_inputs(replace(config, **changes), variant)
    shape = Profile(batch=2, block=4, cache=6, rows=3)
    attention = Attention(regime="context", block_length=4, sliding_context=5)
    shapes = {spec.name: tensor_shape(spec, shape, attention) for spec in specs}
    buffers = Inputs(shape, shapes).arrays()
    head = [spec for spec in specs if not spec.name.startswith("past_key_values.")]
    assert [*buffers] == [spec.name for spec in head]
    for spec in head:
        assert buffers[spec.name].shape == shapes[spec.name]
        assert buffers[spec.name].dtype.name == spec.dtype


def test_arguments_of_the_module_come_by_name(config):
    given = {spec.name: spec.name for spec in graph_inputs(config, "guided")}
    found = arguments(given)
    assert found.pop("past")[1] == ("past_key_values.1.key", "past_key_values.1.value")
    assert found == {name: name for name in given if not name.startswith("past_key_values.")}


def test_outputs_in_order(config):
    names = [spec.name for spec in graph_outputs(config, 4, "plain")]
    assert names[:8] == [
        "top_ids",
        "top_logits",
        "logsumexp",
        "entropy",
        "tempered_logsumexp",
        "tempered_entropy",
        "sampled_id",
        "sampled_logit",
    ]
    assert names[8:10] == ["present.0.key", "present.0.value"]
    assert len(names) == 8 + 2 * config.num_hidden_layers


def test_all_logits_follow_the_head(config):
    plain, logits = (graph_outputs(config, 4, variant) for variant in ("plain", "logits"))
    assert plain == tuple(spec for spec in logits if spec.name != "logits")
    assert logits[8].shape == ("batch", "rows", config.vocab_size)


def test_present_has_the_block_and_past_the_cache(config):
    past = [spec for spec in graph_inputs(config) if spec.name.startswith("past")]
    present = [s for s in graph_outputs(config, 4, "plain") if s.name.startswith("present")]
    for before, after in zip(past, present, strict=True):
        assert before.name.removeprefix("past_key_values") == after.name.removeprefix("present")
        assert (before.shape[2], after.shape[2]) == ("cache", "block")


def test_needs_no_torch():
    code = "import sys, dlmc.export.graph_io; sys.exit('torch' in sys.modules)"
    assert run([sys.executable, "-c", code], check=False).returncode == 0

import sys
from subprocess import run

from dlmc.export.graph_io import graph_inputs, graph_outputs


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


def test_outputs_in_order(config):
    names = [spec.name for spec in graph_outputs(config, 4, "plain")]
    assert names[:7] == [
        "top_ids",
        "top_logits",
        "logsumexp",
        "entropy",
        "tempered_logsumexp",
        "sampled_id",
        "sampled_logit",
    ]
    assert names[7:9] == ["present.0.key", "present.0.value"]
    assert len(names) == 7 + 2 * config.num_hidden_layers


def test_all_logits_follow_the_head(config):
    plain, logits = (graph_outputs(config, 4, variant) for variant in ("plain", "logits"))
    assert plain == tuple(spec for spec in logits if spec.name != "logits")
    assert logits[7].shape == ("batch", "rows", config.vocab_size)


def test_present_has_the_block_and_past_the_cache(config):
    past = [spec for spec in graph_inputs(config) if spec.name.startswith("past")]
    present = [s for s in graph_outputs(config, 4, "plain") if s.name.startswith("present")]
    for before, after in zip(past, present, strict=True):
        assert before.name.removeprefix("past_key_values") == after.name.removeprefix("present")
        assert (before.shape[2], after.shape[2]) == ("cache", "block")


def test_needs_no_torch():
    code = "import sys, dlmc.export.graph_io; sys.exit('torch' in sys.modules)"
    assert run([sys.executable, "-c", code], check=False).returncode == 0

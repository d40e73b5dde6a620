"""DiffusionGemma's configuration, as it was released and as transformers 5.24 writes it."""

import copy
import json
from typing import Any

import pytest

from dlmc import recipes
from dlmc.checkpoint.weights import tensor_shapes
from dlmc.denoiser.config import DenoiserConfig
from dlmc.families import FamilySpec, Overrides, detect
from dlmc.families.diffusion_gemma import DIFFUSION_GEMMA
from dlmc_runtime.errors import CheckpointError

RECIPE = recipes.load("diffusiongemma-26b-a4b-it")
RELEASED: dict[str, Any] = json.loads(json.dumps(RECIPE.config))
ABSENT = object()
FULL = range(5, 30, 6)


def changed(*, top: dict[str, Any] | None = None, **text: Any) -> dict[str, Any]:
    """Return the released configuration with other keys at the top, or in ``text_config``."""
    config = copy.deepcopy(RELEASED)
    for place, changes in ((config, top or {}), (config["text_config"], text)):
        for key, value in changes.items():
            if value is ABSENT:
                place.pop(key, None)
            else:
                place[key] = value
    return config


def newer(**layers: Any) -> dict[str, Any]:
    """Return the configuration as transformers 5.24 writes it, with changes of single layers."""
    own = {str(i): {"head_dim": 512, "num_key_value_heads": 2} for i in FULL} | layers
    return changed(global_head_dim=ABSENT, num_global_key_value_heads=ABSENT, per_layer_config=own)


def read(config: dict[str, Any], generation: dict[str, Any] | None = None) -> FamilySpec:
    given = RECIPE.generation_config if generation is None else generation
    return DIFFUSION_GEMMA.read(config, given, Overrides())


def shape(**text: Any) -> DenoiserConfig:
    return read(changed(**text)).denoiser


def test_released_shape():
    spec = read(RELEASED)
    assert (spec.regime, spec.block_length, spec.aligned_to) == ("context", 256, "answer")
    assert (spec.mask_id, spec.stop_ids, spec.pad_id, spec.bos_id) == (None, (1, 106, 50), 0, 2)
    assert (spec.shift, spec.seeded, spec.max_new_tokens) == (0, False, 256)
    assert spec.tokens.suppressed == ()
    denoiser, gemma = spec.denoiser, spec.denoiser.gemma
    assert gemma is not None
    assert [i for i, kind in enumerate(denoiser.kinds) if kind == "full"] == list(FULL)
    assert (denoiser.sliding_context, spec.attention.sliding_context) == (1023, 1023)
    assert denoiser.cache_shape("sliding") == (8, 256)
    assert denoiser.cache_shape("full") == (2, 512)
    assert (gemma.num_experts, gemma.top_k, gemma.expert_intermediate_size) == (128, 8, 704)
    assert (gemma.global_rope_theta, gemma.global_turning, denoiser.rope_theta) == (1e6, 64, 1e4)
    assert (gemma.softcap, gemma.embed_scale, gemma.self_conditioning_size) == (30.0, 53.0, 2112)


def test_detected_by_architecture_and_keys():
    assert detect(RELEASED) is DIFFUSION_GEMMA
    with pytest.raises(CheckpointError, match="no 'text_config'"):
        detect({"architectures": RELEASED["architectures"], "canvas_length": 256})


def test_sampler_is_that_of_the_generation_file():
    sampler = read(RELEASED).sampler
    assert (sampler.name, sampler.parameters) == ("renoise", RECIPE.sampler.parameters)
    assert read(RELEASED, {}).sampler.parameters == sampler.parameters
    stated: dict[str, Any] = {"max_denoising_steps": 12, "t_min": 0.2, "stability_threshold": 0}
    stated |= {"sampler_config": {"entropy_bound": 0.3}}
    found = read(RELEASED, stated).sampler.parameters
    assert (found["steps"], found["t_min"], found["entropy_bound"]) == (12, 0.2, 0.3)
    assert found["stability_threshold"] == 0


def test_both_forms_are_read_alike():
    assert read(newer()) == read(RELEASED)
    padded = {f"{i:02}": {"head_dim": 512, "num_key_value_heads": 2} for i in FULL}
    config = changed(per_layer_config=padded, global_head_dim=ABSENT)
    assert read(config) == read(RELEASED)
    without = {str(i): {"head_dim": 512} for i in FULL}
    assert read(newer(**without)).denoiser.cache_shape("full") == (8, 512)
    alike = changed(per_layer_config={})
    assert read(alike).denoiser.cache_shape("full") == (8, 256)


def test_what_transformers_writes_is_read_alike():
    transformers = pytest.importorskip("transformers", "5.24")
    config = transformers.DiffusionGemmaConfig(**copy.deepcopy(RELEASED))
    written = json.loads(json.dumps(config.to_dict()))
    assert "global_head_dim" not in written["text_config"]
    assert read({**written, "architectures": RELEASED["architectures"]}) == read(RELEASED)


def test_what_transformers_assumes_is_assumed():
    text = {key: RELEASED["text_config"][key] for key in SIZES}
    spec = DIFFUSION_GEMMA.read({"text_config": text, "canvas_length": 256}, {}, Overrides())
    denoiser, gemma = spec.denoiser, spec.denoiser.gemma
    assert gemma is not None
    assert denoiser.kinds == read(RELEASED).denoiser.kinds
    assert (denoiser.sliding_context, denoiser.head_dim, gemma.global_head_dim) == (511, 256, 512)
    assert (denoiser.rms_norm_eps, denoiser.rope_theta, gemma.global_rope_theta) == (1e-6, 1e4, 1e6)
    assert (denoiser.num_key_value_heads, gemma.global_key_value_heads) == (4, 4)
    assert (gemma.softcap, denoiser.tie_word_embeddings, gemma.global_turning) == (30.0, True, 64)
    assert spec.max_position_embeddings == 131_072
    assert gemma.embed_scale == pytest.approx(2816**0.5)  # no type is stated: nothing is rounded


@pytest.mark.parametrize(
    ("dtype", "scale"), [("bfloat16", 53.0), ("float16", 53.0625), ("float32", 53.065998)]
)
def test_the_scale_of_embeddings_is_rounded_as_the_weights_are(dtype: str, scale: float):
    gemma = shape(dtype=dtype).gemma
    assert gemma is not None
    assert gemma.embed_scale == pytest.approx(scale, abs=1e-6)


def test_no_bound_of_the_logits():
    gemma = shape(final_logit_softcapping=None).gemma
    assert gemma is not None
    assert gemma.softcap == 0.0


def test_a_network_whose_layers_all_see_everything():
    denoiser = shape(num_hidden_layers=2, layer_types=["full_attention"] * 2)
    assert (denoiser.kinds, denoiser.sliding_context) == (("full", "full"), None)


def test_token_ids_at_the_top_go_before_those_of_the_text():
    assert read(RELEASED, {}).stop_ids == (1, 106)
    assert read(changed(top={"eos_token_id": ABSENT}), {}).stop_ids == (1,)


def test_keys_of_images_do_not_matter():
    images = ("boi_token_id", "eoi_token_id", "image_token_id", "vision_soft_tokens_per_image")
    assert read(changed(top=dict.fromkeys((*images, "vision_config"), ABSENT))) == read(RELEASED)


def test_tensors():
    spec = read(
        changed(num_hidden_layers=6, layer_types=RELEASED["text_config"]["layer_types"][:6])
    )
    names = tensor_shapes(DIFFUSION_GEMMA, spec)
    assert names["model.decoder.layers.0.experts.gate_up_proj"] == (128, 1408, 2816)
    assert names["model.encoder.language_model.layers.5.layer_scalar"] == (1,)
    assert "model.decoder.layers.4.self_attn.v_proj.weight" in names
    assert "model.decoder.layers.5.self_attn.v_proj.weight" not in names
    assert "lm_head.weight" not in names
    assert "model.encoder.vision_tower.patch_embedder.input_proj.weight".startswith(
        DIFFUSION_GEMMA.unread
    )


def test_there_is_no_mask_to_state():
    with pytest.raises(CheckpointError, match="no mask token: leave out --mask-id"):
        DIFFUSION_GEMMA.read(RELEASED, {}, Overrides(mask_id=4))


SIZES = (
    *("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads"),
    *("vocab_size", "num_experts", "top_k_experts", "moe_intermediate_size"),
)
OPTIONAL = (
    *("num_key_value_heads", "head_dim", "sliding_window", "max_position_embeddings"),
    *("num_global_key_value_heads", "global_head_dim"),
)


@pytest.mark.parametrize("key", SIZES)
def test_a_size_that_is_missing(key: str):
    with pytest.raises(CheckpointError, match=f"text_config: '{key}' is missing"):
        shape(**{key: ABSENT})


@pytest.mark.parametrize("value", ["8", 0, -1, 1.5, True, [8]])
@pytest.mark.parametrize("key", [*SIZES, *OPTIONAL])
def test_a_size_that_is_none(key: str, value: object):
    with pytest.raises(CheckpointError, match=f"text_config: '{key}' is .*a whole number"):
        shape(**{key: value})


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ({"layer_types": ["full_attention"] * 29}, "for each of 30 layers"),
        ({"layer_types": ["sliding_attention"] * 30}, "the last of them full_attention"),
        ({"layer_types": ["chunked_attention"] * 29 + ["full_attention"]}, "'layer_types' is not"),
        ({"layer_types": "full_attention"}, "'layer_types' is not one of"),
        ({"layer_types": [[]] * 30}, "'layer_types' is not one of"),
        ({"num_key_value_heads": 5}, "16 attention heads cannot share 5"),
        ({"num_global_key_value_heads": 3}, "16 attention heads cannot share 3"),
        ({"head_dim": 255}, "the head size 255 is odd"),
        ({"global_head_dim": 511}, "the head size 511 is odd"),
        ({"top_k_experts": 129}, "'top_k_experts' is 129: it must be .* from 1 to 128"),
        ({"sliding_window": 1}, "'sliding_window' is 1: it must be 2 or more"),
        ({"hidden_activation": "silu"}, "implements .*gelu_pytorch_tanh"),
        ({"attention_bias": True}, "'attention_bias' is true"),
        ({"use_bidirectional_attention": "all"}, "'use_bidirectional_attention' is .*all"),
        ({"final_logit_softcapping": -1}, "'final_logit_softcapping' is -1"),
        ({"rms_norm_eps": 0}, "'rms_norm_eps' is 0"),
        ({"rope_parameters": []}, "'rope_parameters' has no object 'sliding_attention'"),
        ({"rope_parameters": {"sliding_attention": {}}}, None),
        ({"rope_parameters": {"sliding_attention": 3}}, "has no object 'sliding_attention'"),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "'rope_type' is .*yarn"),
        ({"rope_parameters": {"full_attention": {"factor": 2.0}}}, "'factor' is 2.0"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 0}}}, "'rope_theta' is 0"),
        (
            {"rope_parameters": {"full_attention": {"partial_rotary_factor": 1.5}}},
            "'partial_rotary_factor' is 1.5",
        ),
    ],
)
def test_a_text_network_that_cannot_be(text: dict[str, Any], sentence: str | None):
    if sentence is None:
        assert shape(**text).rope_theta == 1e4
        return
    with pytest.raises(CheckpointError, match=sentence):
        shape(**text)


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (newer(**{"5": {"head_dim": 256, "num_key_value_heads": 2}}), "different heads"),
        (newer(**{"4": {"head_dim": 512}}), "keys are full_attention layers"),
        (newer(**{"05": {"head_dim": 512}}), "keys are full_attention layers"),
        (newer(**{"5": 3}), "'per_layer_config' '5' is no object"),
        (newer(**{"5": {"num_key_value_heads": 2}}), "different heads"),
        (newer(**{"5": {"head_dim": "512"}}), "'head_dim' is \"512\""),
        (changed(per_layer_config=[]), "'per_layer_config' is no object"),
        (changed(top={"text_config": ABSENT}), "'text_config' is no object"),
        (changed(top={"text_config": [1]}), "'text_config' is no object"),
        (changed(top={"canvas_length": "256"}), "'canvas_length' is \"256\""),
        (changed(top={"canvas_length": 262145}), "'canvas_length' is 262145"),
        (changed(top={"tie_word_embeddings": "yes"}), "'tie_word_embeddings' is \"yes\""),
        (changed(top={"self_conditioning_size": 0}), "'self_conditioning_size' is 0"),
        (changed(top={"eos_token_id": [1, 262144]}), "'eos_token_id' is"),
    ],
)
def test_a_configuration_that_cannot_be(config: dict[str, Any], sentence: str):
    with pytest.raises(CheckpointError, match=sentence):
        read(config, {})


@pytest.mark.parametrize(
    ("generation", "sentence"),
    [
        ({"sampler_config": 3}, "'sampler_config' is no object"),
        ({"sampler_config": {"_cls_name": "Other"}}, "'_cls_name' is \"Other\""),
        ({"sampler_config": {"entropy_bound": -1}}, "'entropy_bound' is -1"),
        ({"max_denoising_steps": 0}, "'max_denoising_steps' is 0"),
        ({"t_min": "cold"}, "'t_min' is \"cold\""),
        ({"t_max": 0}, "'t_max' is 0"),
        ({"confidence_threshold": -0.1}, "'confidence_threshold' is -0.1"),
        ({"stability_threshold": -1}, "'stability_threshold' is -1"),
        ({"stability_threshold": False}, "'stability_threshold' is false"),
        ({"max_new_tokens": 0}, "'max_new_tokens' is 0"),
    ],
)
def test_a_generation_file_that_cannot_be(generation: dict[str, Any], sentence: str):
    with pytest.raises(CheckpointError, match=f"generation_config.json.*{sentence}"):
        read(RELEASED, generation)

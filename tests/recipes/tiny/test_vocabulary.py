import pytest

from checkpoint import read_spec
from dlmc.recipes import load
from train import LAYOUTS


@pytest.fixture(scope="module", params=LAYOUTS)
def layout(request):
    return LAYOUTS[request.param]


def test_any_text_survives(layout):
    tokenizer = layout.vocabulary.tokenizer()
    text = 'sort 5 3\n"ß" 漢'
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_the_recipe_states_the_ids_of_the_tokenizer(layout):
    known, spec = layout.vocabulary.tokenizer().get_vocab(), read_spec(load(layout.recipe))
    names = layout.vocabulary
    assert max(known.values()) < spec.denoiser.vocab_size
    assert spec.mask_id == (None if names.mask is None else known[names.mask])
    assert spec.pad_id == known[names.pad]
    assert known[names.end_of_turn] in spec.stop_ids


def test_special_tokens_of_a_prompt_are_one_token_each():
    names = LAYOUTS["gemma"].vocabulary
    prompt = names.prompt("1+1=?")
    assert prompt == "<bos><|turn>user\n1+1=?<turn|>\n<|turn>model\n"
    assert len(names.tokenizer().encode(prompt).ids) == 14


def test_the_answers_of_earlier_turns_are_the_models():
    import jinja2

    names = LAYOUTS["gemma"].vocabulary
    turns = [{"role": "assistant", "content": "2"}, {"role": "user", "content": "1+2=?"}]
    rendered = jinja2.Template(names.template).render(messages=turns, bos_token=names.bos)
    assert rendered == "<bos><|turn>model\n2<turn|>\n<|turn>user\n1+2=?<turn|>\n"


def test_only_a_mask_that_exists_is_configured(layout):
    config = layout.vocabulary.tokenizer_config()
    assert config.get("mask_token") == layout.vocabulary.mask
    assert None not in [config["pad_token"], config["eos_token"]]

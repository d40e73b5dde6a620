"""Templates with thinking and tools, rendered here and by transformers where that is installed."""

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models

from dlmc_runtime.errors import DlmcError
from dlmc_runtime.template import ChatTemplate
from dlmc_runtime.text import TextCodec

SOURCE = Path(__file__).with_name("gemma_style.jinja").read_text(encoding="utf-8")
QWEN_STYLE = """
{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n' }}
    {%- for tool in tools %}
        {{- '\\n' }}{{- tool | tojson }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- set thought = message.reasoning_content if message.reasoning_content is string else '' %}
  {% if message.role == 'tool' and (loop.first or loop.previtem.role != 'tool') %}
<|im_start|>user
  {% endif %}
    {{ message.role }}: {{ thought }}{{ message.content }}
    {% for call in message.tool_calls or [] %}
{{ {'name': call.function.name, 'arguments': call.function.arguments} | tojson(indent=2) }}
    {% else %}
-
    {% endfor %}
    {% if loop.nextitem is not defined or loop.nextitem.role != 'tool' %}
<|im_end|>
    {% endif %}
{% endfor %}
{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list | tojson }}
{{- messages | tojson(ensure_ascii=false, sort_keys=true) }}
{%- if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>{% endif %}
"""
TOKENS = {"bos_token": "<bos>"}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tells the weather <of> a “place” & day",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "description": "A town", "enum": ["Ulm", "Köln"]},
                "days": {"type": ["integer", "null"], "default": 3},
                "where": {
                    "type": "object",
                    "properties": {"lat": {"type": "number"}, "Lon": {"type": "number"}},
                    "required": ["lat"],
                },
                "tags": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["place"],
        },
    },
}
PLAIN = {"type": "function", "function": {"name": "now", "parameters": None}}
USER: dict[str, Any] = {"role": "user", "content": " Is it warm in Köln? "}
CALL: dict[str, Any] = {
    "role": "assistant",
    "content": None,
    "reasoning": "I should look.",
    "tool_calls": [
        {
            "id": "1",
            "type": "function",
            "function": {
                "name": "get_weather",
                "arguments": {"place": "Köln", "days": 2, "exact": True, "where": {"lat": 50.9}},
            },
        },
        {"id": "2", "type": "function", "function": {"name": "now", "arguments": "raw"}},
    ],
}
ANSWERS: list[dict[str, Any]] = [
    {"role": "tool", "tool_call_id": "1", "content": {"celsius": 21.5, "note": None}},
    {"role": "tool", "tool_call_id": "2", "content": [{"type": "text", "text": " noon "}]},
    {"role": "tool", "name": "clock", "content": "late"},
]
THOUGHT: dict[str, Any] = {
    "role": "assistant",
    "content": "<|channel>thought\nhm<channel|>Hello.<|channel>thought\nmore<channel|> ",
    "reasoning_content": "hm",
}
PARTS = [{"type": "text", "text": " a "}, {"type": "text", "text": "b"}]
CONVERSATIONS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "one turn": ([USER], {}),
    "thinking": ([USER], {"enable_thinking": True}),
    "no thinking": ([USER], {"enable_thinking": False}),
    "system": ([{"role": "system", "content": "Be brief."}, USER], {"enable_thinking": True}),
    "developer": ([{"role": "developer", "content": PARTS}, USER], {}),
    "parts": ([{"role": "user", "content": PARTS}], {}),
    "earlier thoughts": ([USER, THOUGHT, {"role": "user", "content": "And now?"}], {}),
    "declared tools": ([USER], {"tools": [WEATHER, PLAIN], "enable_thinking": True}),
    "calls": ([USER, CALL], {"tools": [WEATHER]}),
    "responses": ([USER, CALL, *ANSWERS], {"tools": [WEATHER]}),
    "after responses": ([USER, CALL, *ANSWERS, {"role": "assistant", "content": "Warm."}], {}),
    "no tools": ([USER], {"tools": []}),
    "further variables": ([USER], {"effort": "low", "documents": [{"title": "t", "text": "x"}]}),
}


def render(source, messages, **variables):
    codec = TextCodec(Tokenizer(models.BPE()), ChatTemplate(source, "t", TOKENS))
    return codec.chat(messages, **variables)


@pytest.fixture(scope="module")
def transformers_render():
    transformers = pytest.importorskip("transformers")

    def apply(source, messages, **variables):
        tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer(models.BPE()), chat_template=source, **TOKENS
        )
        return tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, **variables
        )

    return apply


@pytest.mark.parametrize("name", CONVERSATIONS)
@pytest.mark.parametrize("source", [SOURCE, QWEN_STYLE], ids=["gemma", "qwen"])
def test_a_conversation_is_rendered_as_transformers_does(transformers_render, source, name):
    messages, variables = CONVERSATIONS[name]
    expected = transformers_render(source, messages, **variables)
    assert render(source, messages, **variables) == expected


@pytest.mark.parametrize(
    "source",
    [
        "{% for x in [1, 2, 3] %}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.revindex }}"
        "{{ loop.cycle('a', 'b') }}{{ loop.changed(x > 1) }};{% endfor %}",
        "{% for x in [[1, [2, [3]]]] recursive %}{% if x is sequence %}({{ loop(x) }})"
        "{% else %}{{ x }}{{ loop.depth }}{% endif %}{% endfor %}",
        "{% generation %}{% set x = 1 %}{{ x }}{% endgeneration %}[{{ x }}]",
        "{% for m in messages %}{% generation %}{{ loop.index }}{{ m.role }}{% endgeneration %}"
        "{% endfor %}",
        "{{ {'ä': '<&>\"'} | tojson }}{{ ['ä'] | tojson(true) }}{{ [[1]] | tojson(false, 2) }}",
        "{{ {'b': 1, 'a': [true, none]} | tojson(separators=(',', ':'), sort_keys=true) }}",
        "{{ {'B': 1, 'a': 2} | dictsort }}{{ {'B': 1, 'a': 2} | dictsort(true, 'value', true) }}",
        "{% macro f(a, b=2) %}{{ a }}{{ b }}{{ varargs }}{{ kwargs }}{{ caller(3) }}{% endmacro %}"
        "{% call(x) f(1, 2, 3, c=4) %}<{{ x }}>{% endcall %}",
        "{% set ns = namespace(a=dict(x=1)) %}{% set ns.b = dict.fromkeys(['k'], 0) %}{{ ns.a }}"
        "{{ ns.b }}{{ ns.c is defined }}",
        "{% filter upper %}abc{% endfilter %}{% with a = 1 %}{{ a }}{% endwith %}"
        "{% set block %} x {% endset %}[{{ block | trim }}]",
        "{{ messages[::-1] | map(attribute='role') | join(',') }}{{ messages[-1:] | length }}",
        "{{ 'a,b'.split(',')[-1] }}{{ 'xax'.strip('x') }}{{ 'A' in 'cat' | upper }}",
        "{{ [3, 1] | sort(reverse=true) | first }}{{ [1, 1] | unique | list }}{{ [1, 2] | sum }}",
        "{{ messages | groupby('role') | map('first') | list }}{{ '%05.1f|%s' % (2.25, 'x') }}",
        "{{ 1 ~ none ~ true ~ [1] ~ undefined_name }}{{ (1, 2) == (1, 2) }}{{ 1 < 2 <= 2 }}",
        "{{ none | default('u') }}{{ none | default('u', true) }}{{ missing | default([]) }}",
        "  {% if true %}\n  kept  \n  {%- endif +%}  \n{# note #}\n end\n",
        "{{ messages[0].nothing is defined }}{{ '' or 'x' }}{{ 7 // 2 }}{{ 1 if false }}",
    ],
)
def test_a_feature_of_templates_is_rendered_as_transformers_does(transformers_render, source):
    messages = [USER, {"role": "assistant", "content": "yes"}, USER]
    assert render(source, messages) == transformers_render(source, messages)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "one turn",
            "<bos><|turn>user\nIs it warm in Köln?<turn|>\n<|turn>model\n"
            "<|channel>thought\n<channel|>",
        ),
        (
            "thinking",
            "<bos><|turn>system\n<|think|>\n<turn|>\n<|turn>user\nIs it warm in Köln?<turn|>\n"
            "<|turn>model\n",
        ),
        (
            "earlier thoughts",
            "<bos><|turn>user\nIs it warm in Köln?<turn|>\n<|turn>model\nHello.<turn|>\n"
            "<|turn>user\nAnd now?<turn|>\n<|turn>model\n<|channel>thought\n<channel|>",
        ),
        (
            "calls",
            '<bos><|turn>system\n<|tool>declaration:get_weather{properties:{[place]days:{default:3,'
            'type:[<|"|>INTEGER<|"|>,<|"|>NULL<|"|>]},place:{description:<|"|>A town<|"|>,enum:'
            '[<|"|>Ulm<|"|>,<|"|>Köln<|"|>],type:<|"|>STRING<|"|>},tags:{items:{type:<|"|>STRING'
            '<|"|>},type:<|"|>ARRAY<|"|>},where:{properties:{[lat]lat:{type:<|"|>NUMBER<|"|>},Lon:'
            '{type:<|"|>NUMBER<|"|>}},required:[<|"|>lat<|"|>],type:<|"|>OBJECT<|"|>}},required:'
            '[<|"|>place<|"|>],type:<|"|>OBJECT<|"|>} # Tells the weather <of> a “place” & day'
            "<tool|><turn|>\n<|turn>user\nIs it warm in Köln?<turn|>\n<|turn>model\n"
            "<|channel>thought\nI should look.\n<channel|><|tool_call>call:get_weather{days:2,"
            'exact:true,place:<|"|>Köln<|"|>,where:{lat:50.9}}<tool_call|><|tool_call>call:now{raw}'
            "<tool_call|><|tool_response>",
        ),
    ],
)  # fmt: skip
def test_a_conversation_is_rendered(name, text):
    messages, variables = CONVERSATIONS[name]
    assert render(SOURCE, messages, **variables) == text


def test_a_template_may_refuse_a_role():
    with pytest.raises(DlmcError, match="refuses the messages: a turn of critic is not known"):
        render(SOURCE, [USER, {"role": "critic", "content": "bad"}])


def test_a_long_conversation_with_tools_stays_in_the_budget():
    turns = [USER, CALL, *ANSWERS, {"role": "assistant", "content": "Warm."}] * 150
    assert render(SOURCE, turns, tools=[WEATHER] * 20).count("<tool_response|>") == 450

import time

import jinja2
import pytest

from dlmc_runtime.errors import BundleError, DlmcError
from dlmc_runtime.template import MAX_TEMPLATE_BYTES, ChatTemplate

MESSAGES = [{"role": "user", "content": "hi"}]


def render(source: str, **variables: object) -> str:
    return ChatTemplate(source, "chat_template.jinja", {"bos_token": "<s>"}).render(
        MESSAGES, **variables
    )


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m['content'] }}{% endfor %}",
         "<s>[user]hi"),
        ("{% if add_generation_prompt %}go{% endif %}", "go"),
        ("  {% if true %}\nkept\n  {% endif %}\n", "kept\n"),
        ("{{ {'ä': '<&>'} | tojson }}", '{"ä": "<&>"}'),
        ("{{ [1, 2] | tojson(indent=2) }}", "[\n  1,\n  2\n]"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}", "hi"),
        ("{% for i in [1, 2, 3] %}{{ loop.index }}/{{ loop.length }}{{ loop.last }} {% endfor %}",
         "1/3False 2/3False 3/3True "),
        ("{% set ns = namespace(n=0) %}{% for i in [4, 5] %}{% set ns.n = ns.n + i %}{% endfor %}"
         "{{ ns.n }}", "9"),
        ("{{ 'a' ~ 1 ~ none }}", "a1None"),
        ("{{ tools is none }}{{ undefined_name }}", "True"),
        ("{{ 1700000000 | string }}{{ '%s-%d' % ('a', 7) }}{{ '%s' | format('b') }}",
         "1700000000a-7b"),
        ("{{ 'a,b'.split(',') | join('+') }}{{ '{}'.format('c') }}", "a+bc"),
        ("{% macro tag(x) %}<{{ x }}>{% endmacro %}{{ tag('y') }}", "<y>"),
        ("{{ enable_thinking }}", "False"),
        ("{{ raise_exception.__globals__ }}{{ '{0.__class__}'.format(1) }}", ""),
    ],
)  # fmt: skip
def test_renders_as_hugging_face_does(source, text):
    assert render(source, add_generation_prompt=True, enable_thinking=False) == text


def test_matches_plain_jinja_on_a_real_template():
    source = (
        "{%- for message in messages %}\n    {{- '<|im_start|>' + message.role + '\\n' + "
        "message.content + '<|im_end|>' + '\\n' }}\n{%- endfor %}\n"
        "{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\\n' }}\n{%- endif %}\n"
    )
    plain = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, autoescape=False)  # noqa: S701
    expected = plain.from_string(source).render(messages=MESSAGES, add_generation_prompt=True)
    assert render(source, add_generation_prompt=True) == expected


def test_strftime_now_writes_the_local_date():
    assert render("{{ strftime_now('%Y') }}") == time.strftime("%Y")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{{ raise_exception('roles must\nalternate') }}", "refuses the messages: roles must alt"),
        ("{{ ''.__class__.__mro__ }}", "not allowed"),
        ("{{ messages.append(1) }}", "not allowed"),
        ("{{ raise_exception.__globals__.keys() }}", "not allowed"),
        ("{% for i in range(10**9) %}{% endfor %}", "fails"),
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "steps"),
        ("{{ 'a' * 10**9 }}", "huge"),
        ("{{ 9 ** 9 ** 9 }}", "huge"),
        ("{{ 'a'.center(10**9) }}", "huge"),
        ("{{ 'a' | center(10**9) }}", "huge"),
        ("{{ ['a'] | map('center', 10**9) | list }}", "huge"),
        ("{{ '%1000000000d' % 1 }}", "width"),
        ("{{ '%*d' % (10**9, 1) }}", "width"),
        ("{{ '{:1000000000}'.format(1) }}", "width"),
        ("{{ '{:{}}'.format(1, 10**9) }}", "width"),
        ("{{ '%1000000000d' | format(1) }}", "width"),
        ("{% set x = 'a' * 60000 %}{{ x.replace('a', x) }}", "huge"),
        ("{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}"
         "{% endfor %}", "characters"),
        ("{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set y %}{{ ns.x }}{{ ns.x }}"
         "{% endset %}{% set ns.x = y %}{% endfor %}", "characters"),
        ("{% for i in range(9999) %}{{ 'a' * 90000 }}{% endfor %}", "characters"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "without end"),
        ("{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}"
         "{{ f(40) }}", "steps"),
        ("{{ [1] | slice(2 * 10**8) | list }}", "No filter named 'slice'"),
        ("{{ [1] | batch(2 * 10**8, 1) | list }}", "No filter named 'batch'"),
        ("{{ [[['a'] * 9999] * 9999] * 9999 }}", "repeats a list"),
        ("{{ 9999 * ('a',) }}", "repeats a list"),
        ("{{ ('a' * 5000000) | list | sort }}", "steps"),
        ("{{ lipsum(n=10**7) }}", "is undefined"),
        ("{% include 'x' %}", "fails"),
        ("{{ 1 / 0 }}", "fails: division by zero"),
        ("{{ missing.attribute }}", "is undefined"),
    ],
)  # fmt: skip
def test_a_hostile_template_ends_in_one_sentence(source, words):
    with pytest.raises(DlmcError) as caught:
        render(source)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_syntax_error_names_the_line():
    with pytest.raises(BundleError, match=r"^chat_template\.jinja line 2: "):
        ChatTemplate("{{ a }}\n{% if %}", "chat_template.jinja", {})


def test_a_large_template_is_refused():
    with pytest.raises(BundleError, match="larger than"):
        ChatTemplate("a" * (MAX_TEMPLATE_BYTES + 1), "chat_template.jinja", {})


def test_the_budget_is_fresh_for_every_rendering():
    template = ChatTemplate("{% for i in range(90000) %}{% endfor %}ok", "t", {})
    assert {template.render(MESSAGES) for _ in range(15)} == {"ok"}


def test_a_template_says_what_it_reads():
    source = (
        "{% set a = bos_token %}{{ a }}{{ raise_exception }}{% if x is defined %}{{ y }}{% endif %}"
    )
    assert ChatTemplate(source, "t", {}).reads == {"bos_token", "x", "y"}

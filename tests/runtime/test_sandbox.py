import pytest
from jinja2.exceptions import SecurityError

from dlmc_runtime import sandbox
from dlmc_runtime.sandbox import MAX_STEPS, Sandbox, bounded

DOUBLED = (
    "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(60) %}"
    "{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}"
)


def run(source, **variables):
    box = Sandbox()
    template = box.from_string(source)
    box.budget = MAX_STEPS
    return template.render(**variables), MAX_STEPS - box.budget


@pytest.mark.parametrize(
    "expression",
    [
        "ns.x",
        "ns.x | string",
        "ns.x | tojson",
        "ns.x ~ ''",
        "[ns.x] | join",
        "[ns.x] | map('string') | join",
        "'%s' % (ns.x,)",
        "'%s' | format(ns.x)",
        "'{}'.format(ns.x)",
        "ns.x == ns.y",
        "ns.x in [ns.y]",
        "[ns.x] is eq([ns.y])",
        "[ns.x] | select('equalto', ns.y) | list",
        "[ns.x].index(ns.y)",
        "[ns.x, ns.y] | unique | list",
    ],
)
def test_what_holds_itself_again_and_again_costs_what_reading_it_costs(expression):
    with pytest.raises(SecurityError, match="steps"):
        run(DOUBLED + "{{ " + expression + " }}")


@pytest.mark.parametrize(
    "body",
    [
        "{% set y = x[::-1] %}",
        "{% set y = 'b' in x %}",
        "{% set y = x == x ~ 'a' %}",
        "{% set y = x.count('b') %}",
        "{% set y = x | upper %}",
        "{% set y = [x] | tojson %}",
        "{% set y = range(99999) | select('none') | list %}",
        "{% set y = dict.fromkeys(range(99999)) %}",
        "{% set y = ','.join(range(99999) | map('string')) %}",
        "{% for j in [1] recursive %}{% if loop.depth < 3 %}{{ loop(range(9999)) }}{% endif %}"
        "{% endfor %}",
    ],
)
def test_work_on_long_values_is_paid_for(body):
    with pytest.raises(SecurityError, match="steps"):
        run(
            "{% for i in range(90000) %}" + body + "{% endfor %}",
            x="a" * (1 << 22),
        )


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{{ [1] | tojson(indent=10**9) }}", "indents JSON"),
        ("{{ [1] | tojson(indent='a' * 65) }}", "indents JSON"),
        ("{{ [1, 2, 3] | tojson(separators=('a' * 9000000, ':')) }}", "characters"),
        ("{{ 3 ** 80000000 > 1 }}", "huge"),
        ("{{ [x, x, x, x, x] | join | length }}", "characters"),
        ("{{ [x, x, x, x, x] | string | length }}", "characters"),
    ],
)
def test_a_value_stays_small(source, words):
    with pytest.raises(SecurityError, match=words):
        run(source, x="a" * (1 << 22))


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ 2 ** 10 }}{{ 2.5 ** 2 }}", "10246.25"),
        ("{{ x == x }}{{ x in [x] }}{{ 'k' in d }}{{ 'q' not in d }}", "TrueTrueTrueTrue"),
        ("{{ [1, 2, 3][1:] }}{{ 'abc'[:-1] }}", "[2, 3]ab"),
        ("{{ range(3) | map('string') | join('-') }}{{ range(3) | list }}", "0-1-2[0, 1, 2]"),
        ("{{ x | default('y' * 20000) }}", "v" * 20000),
    ],
)
def test_ordinary_work_is_let_through(source, text):
    assert run(source, x="v" * 20000, d={"k": 1})[0] == text


def test_looking_up_a_key_does_not_read_a_mapping_through():
    found, steps = run("{{ 'k999' in d }}", d={f"k{i}": ["x"] * 9 for i in range(1000)})
    assert (found, steps < 10) == ("True", True)


def test_a_range_is_paid_for_as_it_is_read():
    assert run("{% for i in range(99999) %}{% break %}{% endfor %}")[1] < 10
    assert run("{% for i in range(999) %}{% endfor %}")[1] >= 999


def test_pieces_are_joined_up_to_a_limit(monkeypatch):
    monkeypatch.setattr(sandbox, "MAX_CHARACTERS", 4)
    assert bounded(["ab", "cd"]) == "abcd"
    with pytest.raises(SecurityError, match="writes more than 4"):
        bounded(["abc", "de"])

import json

import pytest

from dlmc.bench.tasks import Score, Task, read_tasks, rendered, score
from dlmc_runtime.errors import UsageError


@pytest.fixture
def file(tmp_path):
    def write(text):
        path = tmp_path / "tasks.jsonl"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def test_a_task_a_line(file):
    lines = (
        {"prompt": "1+1=?", "answer": "2"},
        {"prompt": "größer", "answer": "ja", "task": "words"},
    )
    text = "\n\n".join(json.dumps(line, ensure_ascii=False) for line in lines)
    assert read_tasks(file(text)) == [Task("1+1=?", "2", "all"), Task("größer", "ja", "words")]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no tasks"),
        ("\n  \n", "holds no tasks"),
        ('{"prompt": "a", "answer": "b"}\nprompt', "line 2 of .* is not valid JSON"),
        ('["a", "b"]', "line 1 of .* is not a JSON object"),
        ('{"prompt": "a"}', "line 1 of .* has the keys prompt"),
        ('{"prompt": "a", "answer": "b", "id": "c"}', "has the keys answer, id, prompt"),
        ('{"prompt": "a", "answer": 3}', "something else than texts"),
        ('{"prompt": "", "answer": "b"}', "something else than texts"),
        ('{"prompt": "a", "prompt": "b", "answer": "c"}', "ambiguous"),
        (b'{"prompt": "\xff", "answer": "c"}', "line 1 of"),
    ],
)
def test_a_line_that_is_no_task_is_named(file, text, words):
    with pytest.raises(UsageError, match=words):
        read_tasks(file(text))


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match="cannot be read"):
        read_tasks(tmp_path / "none.jsonl")
    with pytest.raises(UsageError, match="cannot be read"):
        read_tasks(tmp_path)


def test_accuracy_is_exact_answers_over_questions():
    assert Score("all", 8, 6, 2.0, 100.0).accuracy == 0.75


def test_a_prompt_without_a_template_stays_as_it_is(generator):
    assert rendered(None, "a") == "a"
    assert generator.text is not None
    assert rendered(generator.text, "a") == generator.text.chat([{"role": "user", "content": "a"}])


def test_answers_count_where_they_are_exact(generator):
    asked = [
        Task("458+386=?", "8+6=14 5+8+1=14 4+3+1=8 844", "addition"),
        Task("sort 3 1 2 5 4", "1 2 3 4 5", "sorting"),
        Task("sort 9 1 2 5 4", "9 1 2 5 4", "sorting"),
    ]
    seen = []
    found = score(generator, asked, generator.sampler, advance=lambda: seen.append(1))
    assert [(one.task, one.asked, one.exact) for one in found] == [
        ("addition", 1, 1),
        ("sorting", 2, 1),
    ]
    assert len(seen) == 3
    for one in found:
        assert one.tokens_per_forward >= 1
        assert one.tokens_per_second > 0


def test_no_tasks_no_scores(generator):
    assert score(generator, [], generator.sampler) == []

import itertools
import json
import random

import pytest

from tasks import TASKS, Problem, problems

COUNT = 200


def drawn(task, *, held_out=False, seed=0):
    return list(itertools.islice(problems(task, random.Random(seed), held_out=held_out), COUNT))


def test_an_addition_shows_every_column_and_ends_with_the_sum():
    for problem in drawn("addition"):
        first, second = map(int, problem.question.removesuffix("=?").split("+"))
        *columns, total = problem.answer.split()
        assert int(total) == first + second
        assert len(columns) == max(len(str(first)), len(str(second)))
        for column in columns:
            terms, result = column.split("=")
            assert sum(map(int, terms.split("+"))) == int(result)
        assert "".join(column[-1] for column in reversed(columns)) == total[-len(columns) :]


def test_a_sorted_list_is_the_question_in_order():
    for problem in drawn("sorting"):
        digits = problem.question.removeprefix("sort ").split()
        assert 5 <= len(digits) <= 8
        assert problem.answer.split() == sorted(digits, key=int)


def test_facts_come_back_as_json_in_their_order():
    for problem in drawn("facts"):
        asked = [fact.split() for fact in problem.question.removeprefix("json ").split(", ")]
        assert [[k, str(v)] for k, v in json.loads(problem.answer).items()] == asked


def test_a_sudoku_has_the_answer_and_no_other():
    for problem in drawn("sudoku")[:20]:
        asked = problem.question.removeprefix("sudoku ").replace(" ", "")
        blanks = [i for i, cell in enumerate(asked) if cell == "_"]
        assert 5 <= len(blanks) <= 8
        assert list(solutions(asked)) == [problem.answer.replace(" ", "")]


def solutions(cells):
    """Yield every way to fill the blanks, by trying."""
    if "_" not in cells:
        yield cells
        return
    at = cells.index("_")
    row, column = divmod(at, 4)
    seen = {
        cell
        for i, cell in enumerate(cells)
        if i // 4 == row or i % 4 == column or (i // 8, i % 4 // 2) == (row // 2, column // 2)
    }
    for digit in sorted(set("1234") - seen):
        yield from solutions(cells[:at] + digit + cells[at + 1 :])


@pytest.mark.parametrize("task", TASKS)
def test_training_and_held_out_questions_are_apart(task):
    training, held_out = ({p.question for p in drawn(task, held_out=h)} for h in (False, True))
    assert not training & held_out
    assert len(training) > COUNT / 4
    assert len(held_out) > COUNT / 20


@pytest.mark.parametrize("task", TASKS)
def test_about_a_tenth_is_held_out(task):
    rng = random.Random(1)
    questions = {TASKS[task](rng)[0] for _ in range(2000)}
    share = sum(Problem(task, q, "").held_out for q in questions) / len(questions)
    assert 0.06 < share < 0.14


@pytest.mark.parametrize("task", TASKS)
def test_a_seed_draws_the_same_problems(task):
    assert drawn(task, seed=3) == drawn(task, seed=3) != drawn(task, seed=4)

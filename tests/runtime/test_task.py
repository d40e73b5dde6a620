from dlmc_runtime.task import Task


def test_a_shadow_is_fed_and_read_besides():
    task = Task("denoise", 2, 9, 4, 7, shadow=(4, 7))
    assert (task.fed, task.read) == (10, 6)

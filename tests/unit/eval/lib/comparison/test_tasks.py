"""The small tasks of a comparison, and how a folder says which one it holds."""

import pytest
from lib.comparison.tasks import TASKS, task_of


@pytest.mark.parametrize("name", TASKS)
def test_a_folder_says_its_task(name, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/task.txt").write_text(f"{name}\n")
    assert task_of(tmp_path).name == name and task_of(tmp_path).grader.is_file()


def test_a_folder_that_does_not_say_it_is_refused(tmp_path):
    with pytest.raises(ValueError, match=f"--task {tmp_path} does not say which task it holds: make it again with"):
        task_of(tmp_path)

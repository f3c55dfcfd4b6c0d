"""A finished run of an evaluation is used again only for what it was made with."""

import pytest
from lib import runs
from lib.turns import opened_log


def test_a_run_is_used_again_for_what_it_was_made_with_only(tmp_path, capsys):
    """What is made is kept; another task's data, in what it was made with, has it made again."""
    tasks = []
    for name in "ab":
        (tmp_path / name / "data").mkdir(parents=True)
        (tmp_path / name / "data/train.jsonl").write_text(name)
    for name in "aabb":
        runs.once(tmp_path / "out", runs.state_of("cpu-patched", tmp_path / name), lambda: tasks.append(name))
    assert tasks == ["a", "b"]
    assert (
        capsys.readouterr().err == f"{tmp_path / 'out'} was made with another package, task or flags: it runs again\n"
    )


def test_nothing_is_touched_while_a_run_of_an_earlier_start_goes_on(tmp_path):
    runs.set_done(tmp_path, "before", 1)
    with opened_log(tmp_path / "train.log"), pytest.raises(ValueError, match="belongs to a run that has not ended"):
        runs.once(tmp_path, "now", lambda: pytest.fail("it began"))
    assert runs.once(tmp_path, "before", lambda: pytest.fail("it began")) == 1

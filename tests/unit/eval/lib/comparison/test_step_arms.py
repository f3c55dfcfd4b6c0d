"""The prompts that the runs of step_time.py need."""

import pytest
from lib.comparison.step_arms import check_prompts, prompts_of

SIZES = [8, 16]


@pytest.fixture
def task(tmp_path):
    """task(count) -> a task's folder with so many prompts."""

    def make(count):
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / "data/train.jsonl").write_text("{}\n" * count)
        return tmp_path

    return make


def test_a_task_that_has_just_enough_prompts_passes(task):
    assert prompts_of("grpo", 8, 30) == 560 and prompts_of("dapo", 8, 30) == 840
    check_prompts(task(840), ["grpo", "dapo"], SIZES, 30)
    check_prompts(task(560), ["grpo"], SIZES, 30)


@pytest.mark.parametrize("count", [839, 600, 200])
def test_what_the_message_says_would_pass(task, count):
    with pytest.raises(
        ValueError, match=f"^--steps 30 with --sizes 8 needs 840 prompts in dapo, .* has {count}"
    ) as error:
        check_prompts(task(count), ["grpo", "dapo"], SIZES, 30)
    words = str(error.value).partition(": use ")[2].split()
    steps, size = int(words[words.index("--steps") + 1]), int(words[words.index("from") + 1])
    check_prompts(task(count), ["grpo", "dapo"], SIZES, steps)
    check_prompts(task(count), ["grpo", "dapo"], [size], 30)
    with pytest.raises(ValueError):
        check_prompts(task(count), ["grpo", "dapo"], SIZES, steps + 1)
    with pytest.raises(ValueError):
        check_prompts(task(count), ["grpo", "dapo"], [size // 2], 30)


@pytest.mark.parametrize(
    "count, size, advice", [(100, 2, "--sizes from 64 on"), (10, 64, "a --task with more of them")]
)
def test_what_would_not_do_is_not_said(task, count, size, advice):
    with pytest.raises(ValueError, match=f"has {count}: use {advice}$"):
        check_prompts(task(count), ["grpo"], [size], 30)


def test_a_task_without_prompts_is_named(tmp_path):
    with pytest.raises(ValueError, match="train.jsonl has 0: use a --task with more of them"):
        check_prompts(tmp_path, ["grpo"], SIZES, 30)

"""Steps in what a run prints."""

import pytest
from lib.run_logs.console import STEP_END, phase_seconds, read_console
from lib.run_logs.read import read

PREFIX = "INFO 11-27 08:59:%02d ppo_trainer.py:555] "


def line(step, second=0, **more):
    metrics = {"reward": 0.5, "timing/generation": 1.5, "timing/other": 9.0, **more}
    return PREFIX % second + f"✨ Global step {step}: {metrics}"


def test_the_seconds_of_steps_are_the_sum_of_their_phases():
    more = {"timing/make_experience": 0.5, "timing/ppo_train": 1.0, "timing/broadcast": 0.25}
    printed = f"x\n\x1b[36m(GroupTrainer pid=7, ip=192.0.2.7)\x1b[0m {line(12, **more)}\n'timing/generation': 7.0\n{line(13)}\n"
    assert phase_seconds(printed) == [3.25, 1.5]


def test_a_quoted_cut_or_repeated_line_is_no_step():
    quoted = PREFIX % 1 + "Sample: ['Global step 99: {'timing/generation': 5.0}']"
    cut = line(3)[:-4]
    assert phase_seconds("\n".join([line(1), quoted, line(1), line(2), cut])) == [1.5, 1.5]
    assert len(STEP_END.findall("\n".join([line(1), quoted, line(2)]))) == 2


@pytest.mark.parametrize(
    "before",
    [
        "\x1b[36m(PPOTrainer pid=7, ip=192.0.2.7)\x1b[0m ",
        "2026-11-27T08:59:01.123456789Z (PPOTrainer pid=7) ",  # kubectl logs --timestamps
        "0: (PPOTrainer pid=7) ",  # srun --label
        "Nov 27 08:59:01 (PPOTrainer pid=7) ",
        "Train epoch [1/1]:  50%|#  | 1/2 [00:01<00:07, 7.02s/it](PPOTrainer pid=7) ",  # without its \r
        "\x1b[A\x1b[2K\x1b[?25l",  # a bar that moves the cursor
    ],
)
def test_what_ray_bars_and_clusters_put_before_a_line(before):
    assert phase_seconds(f"{before}{line(1)}\n{before}{line(2)}\n") == [1.5, 1.5]
    quoted = f"{before}{PREFIX % 3}Sample: {line(9)}"
    assert phase_seconds(quoted) == []


def test_steps_and_evaluations_of_a_log_are_a_run(tmp_path):
    evaluated = (
        PREFIX % 20 + "✨ Evaluation completed in 00:00:02, global_step 2, eval_metrics: {'eval_math_pass1': 0.25}"
    )
    bar = "Train epoch [1/1]:  50%|#  | 1/2 [00:01<00:07]\r"
    log = tmp_path / "run.log"
    log.write_text(bar + "\n".join([line(1, 10), line(2, 17, kl=float("nan")), evaluated, line(3, 28)]) + "\n")
    run = read(str(log))
    assert run.steps.index.tolist() == [1, 2, 3] and run.steps["wall_time"].tolist() == [0, 7, 18]
    assert run.steps["timing/generation"].tolist() == [1.5] * 3 and run.steps["kl"].isna().all()
    assert run.evaluations["eval_math_pass1"].to_dict() == {2: 0.25}


def test_a_run_that_goes_on_in_the_same_log_has_two_starts(tmp_path):
    log = tmp_path / "run.log"
    log.write_text("\n".join([line(1, 1), line(2, 2), line(3, 3), line(3, 30, reward=0.75), line(4, 31)]))
    assert [start.table["step"].unique().tolist() for start in read_console(log)] == [[1, 2, 3], [3, 4]]
    assert read(str(log)).steps["reward"].tolist() == [0.5, 0.5, 0.75, 0.5]


@pytest.mark.parametrize(
    "text, message",
    [
        ("(TaskRunner pid=7) step:1 - actor/entropy:0.4 - timing_s/gen:41.0\n", "is a log of verl"),
        ("{'loss': 0.0, 'grad_norm': 0.2}\n", "is a log of TRL"),
        ("Train epoch [1/1]:   1%|##  | 1/100 [00:01<03:00, rm=0.25]\r", "has bars only"),
        ("nothing\n", "no training steps in .*: did the run reach its first step"),
    ],
)
def test_other_logs_are_named(tmp_path, text, message):
    (tmp_path / "train.log").write_text(text)
    with pytest.raises(ValueError, match=message):
        read(str(tmp_path / "train.log"))

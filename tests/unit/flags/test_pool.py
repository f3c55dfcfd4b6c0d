"""A pool of prompts in flight: what its flags come to, and what they cannot have."""

import pytest
from up_to_ray import RayStarted

PARTIAL = ["--train.async_enable", "--train.partial_rollout_enable"]
PROMPTS = "--rollout.vllm_generate_batch_size"
CORRECTION = "--algo.advantage.is_correction_level"
SIZES = ["--rollout.sagc.enable", "--rollout.sagc.hold", "prompts"]


def started(run_trainer, capsys, *flags):
    """The start line of a run with these flags."""
    with pytest.raises(RayStarted):
        run_trainer(*PARTIAL, *flags)
    return next(line for line in capsys.readouterr().out.splitlines() if line.startswith("openrlhf_sagc: every step"))


def test_prompts_stay_in_flight_and_importance_correction_is_on(run_trainer, capsys):
    line = started(run_trainer, capsys, PROMPTS, "16")
    assert "16 prompts stay in flight over steps, and no group is trained more than 4 updates late" in line
    assert f"importance correction is on ({CORRECTION} token)" in line


def test_a_correction_that_is_given_stays(run_trainer, capsys):
    line = started(run_trainer, capsys, PROMPTS, "16", CORRECTION, "off")
    assert f"tokens of older weights count as if they were new ({CORRECTION} off)" in line
    assert f"({CORRECTION} seq)" in started(run_trainer, capsys, PROMPTS, "16", CORRECTION, "seq")


def test_a_batch_at_a_time_has_no_pool_and_no_correction_of_its_own(run_trainer, capsys):
    line = started(run_trainer, capsys)
    assert "in flight" not in line and "correction" not in line


@pytest.mark.parametrize(
    "flags", [["8"], ["40"], ["16", "--rollout.max_age", "1"], ["16", *SIZES, "--rollout.sagc.objective", "size"]]
)
def test_good_pools(run_trainer, capsys, flags):
    assert f"{flags[0]} prompts stay in flight" in started(run_trainer, capsys, PROMPTS, *flags)


def test_an_age_without_a_pool_is_a_line(run_trainer, capsys):
    with pytest.raises(
        SystemExit, match="^openrlhf_sagc: --rollout.max_age 2 has no effect without .* 16, or drop it"
    ):
        run_trainer(*PARTIAL, "--rollout.max_age", "2")
    started(run_trainer, capsys, PROMPTS, "16", "--rollout.max_age", "2")


@pytest.mark.parametrize(
    "flags, line, repair",
    [
        (
            ["4"],
            f"{PROMPTS} 4 leaves a step of --rollout.batch_size 8 too few prompts in flight: use 8 or more",
            ["8"],
        ),
        (
            ["48"],
            f"{PROMPTS} 48 is more than steps of 8 prompts train before groups are older than --rollout.max_age 4: use at most "
            "40, or --rollout.max_age 5",
            ["48", "--rollout.max_age", "5"],
        ),
        (
            ["16", "--rollout.max_age", "1", "--train.async_queue_size", "2"],
            "--rollout.max_age 1 does not work with --train.async_queue_size 2, as the samples of a step wait for so many "
            "updates: use --rollout.max_age 2 or more",
            ["16", "--rollout.max_age", "2", "--train.async_queue_size", "2"],
        ),
        (
            ["16", *SIZES],
            "with --rollout.sagc.enable it needs --rollout.sagc.hold prompts and --rollout.sagc.objective size",
            ["16", *SIZES, "--rollout.sagc.objective", "size"],
        ),
    ],
)
def test_what_a_pool_cannot_have_is_a_line_that_works_when_followed(run_trainer, capsys, flags, line, repair):
    with pytest.raises(SystemExit, match="^openrlhf_sagc: [^\n]+$") as ended:
        run_trainer(*PARTIAL, PROMPTS, *flags)
    assert line in str(ended.value)
    started(run_trainer, capsys, PROMPTS, *repair)

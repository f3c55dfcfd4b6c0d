"""The command step_time.py on made-up logs; the runs themselves are replaced."""

import json
import sys
from pathlib import Path

import common.runs
import pandas as pd
import pytest
import step_time
from common.group_size_runs import WARM_UP
from comparison.step_arms import SWITCHES
from comparison_runs import scalars, write_run

PARTS = {"step_seconds/idle_tail": 0.5, "step_seconds/optimizer": 0.25}


def arguments_of(tmp_path, *words):
    task = tmp_path / "task"
    for folder in ("model", "data"):
        (task / folder).mkdir(parents=True, exist_ok=True)
    (task / "data/task.txt").write_text("countdown\n")
    (task / "data/train.jsonl").write_text("{}\n" * 2168)  # as many as the quickstart's
    folders = ["--task", task, "--runs", tmp_path / "runs", "--output", tmp_path / "out"]
    return ["step_time.py", *map(str, folders), *words]


def value_of(flags, name):
    """The one that counts: later flags win."""
    return flags[len(flags) - flags[::-1].index(f"--{name}")]


@pytest.fixture(autouse=True)
def memory(monkeypatch):
    """Enough for five arms."""
    monkeypatch.setattr(step_time, "room_for_runs", lambda: 5)


@pytest.fixture
def parse(monkeypatch, tmp_path):
    def run(*words):
        monkeypatch.setattr(sys, "argv", arguments_of(tmp_path, *words))
        return step_time.parse_arguments()

    return run


# --- flags of the arms -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arm, old_log_probs, micro_batches",
    [
        ("all on", "auto", "length"),
        ("without old_log_probs", "forward", "length"),
        ("without micro_batches", "auto", "shuffled"),
        ("all off", "forward", "shuffled"),
    ],
)
def test_an_arm_switches_off_what_it_is_named_for(parse, arm, old_log_probs, micro_batches):
    tree, flags = step_time.run_flags(arm, "grpo", 8, 2, parse())
    assert tree == "cpu-patched" and value_of(flags, "rollout.n_samples_per_prompt") == "8"
    assert value_of(flags, "train.old_log_probs") == old_log_probs
    assert value_of(flags, "train.micro_batches") == micro_batches


def test_arms_are_what_is_run_and_every_switch_has_one():
    assert {f"without {name}" for name in SWITCHES} == {*step_time.ARMS} - {"unpatched", "all on", "all off"}
    assert all(on != off for on, off in SWITCHES.values())


def test_unpatched_has_the_same_flags_but_those_of_this_project(parse):
    arguments = parse("--micro_batch_size", "32", "--steps", "20")
    tree, theirs = step_time.run_flags("unpatched", "grpo", 16, 1, arguments)
    _, ours = step_time.run_flags("all on", "grpo", 16, 1, arguments)
    assert tree == "cpu-base"
    more = [flag for flag in ours if flag.startswith("--") and flag not in theirs]
    assert all(flag.startswith(("--rollout.sagc", *(f"--train.{name}" for name in SWITCHES))) for flag in more)
    for flags in (theirs, ours):
        assert value_of(flags, "train.seed") == "1" and value_of(flags, "actor.adam.lr") == "0"
        assert value_of(flags, "train.micro_batch_size") == value_of(flags, "rollout.micro_batch_size") == "32"
        assert value_of(flags, "rollout.batch_size") == "8" and value_of(flags, "rollout.n_samples_per_prompt") == "16"
        assert value_of(flags, "data.max_samples") == str((WARM_UP + 20) * 8)
        assert Path(value_of(flags, "reward.remote_url")).is_file()


def test_a_run_has_the_lengths_and_the_reward_of_its_task(parse, tmp_path):
    arguments = parse()
    (tmp_path / "task/data/task.txt").write_text("route\n")
    _, flags = step_time.run_flags("all on", "grpo", 8, 0, arguments)
    assert value_of(flags, "rollout.max_new_tokens") == "584" and value_of(flags, "data.max_len") == "592"
    assert value_of(flags, "reward.remote_url").endswith("train_scripts/route/reward.py")
    assert value_of(flags, "actor.adam.lr") == "0"


def test_dapo_makes_two_optimizer_steps_and_has_prompts_to_drop(parse):
    arguments = parse("--steps", "20")
    flags = {name: step_time.run_flags("all on", name, 8, 0, arguments)[1] for name in ("grpo", "dapo")}
    assert [value_of(flags[name], "train.batch_size") for name in flags] == ["128", "64"]
    assert [value_of(flags[name], "data.max_samples") for name in flags] == ["400", "600"]


# --- a run's log -----------------------------------------------------------------------------------------------------


def write_steps(folder, seconds, count, **more):
    """A run of `count` steps of so many seconds by the clock, the warm-up's of ten times as many."""
    at, logs = 100.0, []
    for number in range(count):
        at += seconds * (10 if number < WARM_UP else 1)
        logs.append((at, scalars(0.5, 128.0, **more)))  # 3.5 s of phases besides
    write_run(folder, [], logs)


def test_a_runs_steps_are_timed_by_the_clock_after_the_warm_up(tmp_path):
    write_steps(tmp_path, 5.0, WARM_UP + 4, **PARTS)
    steps = step_time.read_steps(tmp_path, 3, [])
    assert steps["step"].tolist() == [WARM_UP + 1, WARM_UP + 2, WARM_UP + 3]
    assert steps["seconds"].tolist() == [5.0] * 3 and steps["rest"].tolist() == [1.0] * 3
    assert steps[["generation", "experience", "training", "sync"]].iloc[0].tolist() == [0.5, 1.0, 2.0, 0.5]
    assert steps[["idle_tail", "optimizer"]].iloc[0].tolist() == [0.5, 0.25]


def test_a_steps_seconds_are_without_its_pauses(tmp_path):
    write_steps(tmp_path, 5.0, WARM_UP + 3, **PARTS)  # the warm-up ends at 350 s by the clock
    steps = step_time.read_steps(tmp_path, 3, [[345.0, 347.0], [350.25, 350.5], [355.125, 355.25], [359.875, 360.125]])
    assert steps["seconds"].tolist() == [4.75, 4.75, 4.875]
    assert steps["generation"].tolist() == [0.25, 0.25, 0.375] and steps["rest"].tolist() == [1.0] * 3
    assert steps["idle_tail"].tolist() == [0.25, 0.25, 0.375]  # longer than the pause, and so with it


def test_a_tail_that_is_shorter_than_the_pause_was_after_it(tmp_path):
    write_steps(tmp_path, 5.0, WARM_UP + 1, **PARTS | {"step_seconds/idle_tail": 0.125})
    (step,) = step_time.read_steps(tmp_path, 1, [[350.25, 350.5]]).to_dict("records")
    assert step["generation"] == 0.25 and step["idle_tail"] == 0.125


def test_unpatched_runs_log_no_finer_parts(tmp_path):
    write_steps(tmp_path, 5.0, WARM_UP + 1)
    assert step_time.read_steps(tmp_path, 1, [])[["idle_tail", "optimizer"]].isna().all(axis=None)


def test_a_run_that_ended_in_the_warm_up_is_named(tmp_path):
    write_steps(tmp_path, 5.0, WARM_UP)
    with pytest.raises(
        ValueError, match=f"has 0 of 3 steps after the {WARM_UP} of the warm-up: ask for fewer --steps"
    ):
        step_time.read_steps(tmp_path, 3, [])


# --- the table -------------------------------------------------------------------------------------------------------


def steps_of(seconds_of_arms, algorithm="grpo", size=8):
    """Three steps a run, the last of them slow; seconds_of_arms: arm -> seconds of each repetition."""
    rows = []
    for arm, seconds_R in seconds_of_arms.items():
        finer = {"idle_tail": None, "optimizer": None} if arm == "unpatched" else {"idle_tail": 0.3, "optimizer": 0.1}
        for repetition, seconds in enumerate(seconds_R):
            for step, factor in enumerate((1, 1, 30)):
                key = {"algorithm": algorithm, "size": size, "arm": arm, "repetition": repetition, "step": step}
                parts = {"generation": 0.5, "experience": 0.2, "training": 0.5, "sync": 0.1, "rest": 0.05} | finer
                rows.append({**key, "seconds": seconds * factor, **parts})
    return pd.DataFrame(rows).astype({"idle_tail": float, "optimizer": float})


SETTINGS = {"processor": "A Processor 7", "cores": 2, "data_type": "float32", "micro_batch_size": 16}


def test_an_arms_seconds_and_how_many_times_as_fast_it_is():
    arms = {"unpatched": [4.0, 4.4, 3.6], "all on": [2.0, 2.2, 1.8], "without micro_batches": [3.0, 3.2, 2.8]}
    rows = {row["arm"]: row for row in step_time.summaries(steps_of(arms))}
    assert [row["seconds"] for row in rows.values()] == pytest.approx([4.0, 2.0, 3.0])
    assert rows["all on"]["speedup"] == pytest.approx(
        {"value": 2.0, "low": 2.0, "high": 2.0, "runs": 3}
    )  # pairs drift together
    assert rows["all on"]["all_on_is"] is None and rows["unpatched"]["speedup"] is None
    without = rows["without micro_batches"]
    assert without["all_on_is"]["value"] == pytest.approx(1.5)
    # Student's t of three runs reaches beyond the least and the greatest of them.
    assert without["all_on_is"]["high"] > 2.8 / 1.8 and 1 < without["all_on_is"]["low"] < 3.2 / 2.2
    assert rows["all on"]["idle_tail"] == pytest.approx(0.3) and rows["unpatched"]["optimizer"] is None
    assert [row["runs"] for row in rows.values()] == [3] * 3 and rows["all on"]["steps"] == 9


def test_the_report_has_a_table_for_each_algorithm_and_size():
    steps = [
        steps_of({"unpatched": [4.0, 4.4, 3.6], "all on": [2.0, 2.2, 1.8]}, algorithm, size)
        for algorithm in ("grpo", "dapo")
        for size in (8, 16)
    ]
    text = step_time.report(step_time.summaries(pd.concat(steps)), SETTINGS)
    assert text.startswith("A Processor 7, 2 cores, float32; steps of 128 samples in micro-batches of 16.")
    titles = [line for line in text.splitlines() if line.startswith("## ")]
    assert titles[0] == "## GRPO, groups of 8, one optimizer step a rollout" and len(titles) == 4
    assert titles[3] == "## DAPO, groups of 16, two optimizer steps a rollout"
    unpatched, ours = (line for line in text.splitlines()[:10] if line.startswith(("| unpatched", "| all on")))
    assert unpatched == "| unpatched | 3 | 4.00 | 0.50 | – | 0.20 | 0.50 | – | 0.10 | 0.05 | – | 2.00 [2.00, 2.00] |"
    assert ours == "| all on | 3 | 2.00 | 0.50 | 0.30 | 0.20 | 0.50 | 0.10 | 0.10 | 0.05 | 2.00 [2.00, 2.00] | – |"


def test_one_repetition_has_no_interval_and_a_missing_arm_no_ratio():
    text = step_time.report(step_time.summaries(steps_of({"unpatched": [4.0], "all on": [2.0]})), SETTINGS)
    assert "| 2.00 | – |" in text and "[" not in text
    (row,) = step_time.summaries(steps_of({"all off": [4.0, 3.0]}))
    assert row["speedup"] is None and row["all_on_is"] is None


# --- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def command(monkeypatch, tmp_path):
    """command(*words) -> the repetitions that were started, in their order; `fail_at` ends the one of this number."""
    started = []

    def take_turns(commands, boundary, warm_up, on_turn):
        if len(started) == command.fail_at:
            raise KeyboardInterrupt
        started.append([str(log.parent.relative_to(tmp_path / "runs")) for _, log in commands.values()])
        pauses = {}
        for arm, (words, log) in commands.items():
            seconds, more = (4.5, {}) if words[2] == "cpu-base" else (4.25, PARTS)
            write_steps(log.parent, seconds, WARM_UP + 2, **more)
            begin = 100 + 10 * seconds * WARM_UP  # of the first step that counts
            pauses[arm] = [[begin, begin + PAUSES[arm]]]
            on_turn(arm, "")
        return pauses

    def command(*words):
        started.clear()
        monkeypatch.setattr(sys, "argv", arguments_of(tmp_path, *words))
        step_time.main()
        return list(started)

    command.fail_at, command.started = None, started
    monkeypatch.setattr(step_time, "take_turns", take_turns)
    return command


PAUSES = {"unpatched": 0.25, "all on": 0.125, "all off": 0.0}  # in the first step
WORDS = ["--steps", "1", "--algorithms", "grpo", "--sizes", "8", "--arms", "unpatched", "all on", "all off"]


def test_a_measurement_goes_on_where_it_was_stopped(command, tmp_path, capsys):
    command.fail_at = 1
    with pytest.raises(KeyboardInterrupt):
        command(*WORDS)
    runs = list(command.started)
    command.fail_at = None
    runs += command(*WORDS)
    arms = ["unpatched", "all-on", "all-off"]
    assert runs == [[f"repetition-{turn}/grpo-8/{arm}" for arm in arms[turn:] + arms[:turn]] for turn in range(3)]
    assert command(*WORDS) == []
    out = tmp_path / "out"
    assert (out / "REPORT.md").read_text() in capsys.readouterr().out
    steps = pd.read_csv(out / "steps.csv")
    assert len(steps) == 3 * 3
    seconds = {arm: found.tolist() for arm, found in steps.groupby("arm")["seconds"].unique().items()}
    assert seconds == {"unpatched": [4.25], "all on": [4.125], "all off": [4.25]}
    found = json.loads((out / "step_time.json").read_text())
    assert found["settings"]["processor"] and found["settings"]["repetitions"] == 3
    assert [row["arm"] for row in found["arms"]] == ["unpatched", "all on", "all off"]
    assert found["arms"][1]["speedup"]["value"] == pytest.approx(4.25 / 4.125)


def test_a_report_is_made_again_from_the_results(command, tmp_path):
    command(*WORDS)
    out = tmp_path / "out"
    names = ("steps.csv", "step_time.json", "REPORT.md")
    before = [(out / name).read_text() for name in names]
    (out / "REPORT.md").unlink()
    assert command("--report") == [] and [(out / name).read_text() for name in names] == before
    (out / "steps.csv").unlink()
    with pytest.raises(
        SystemExit, match="eval/step_time.py: --report needs .*steps.csv, which a run without --report"
    ):
        command("--report")


@pytest.mark.parametrize(
    "words, message",
    [
        (["--repetitions", "0"], "--repetitions 0 must be at least 1"),
        (["--sizes", "8", "12"], "--sizes 12 does not divide the 128 samples"),
        (["--micro_batch_size", "48"], "--micro_batch_size 48 does not divide the 64 samples"),
        (
            ["--sizes", "4", "--steps", "100", "--algorithms", "grpo"],
            "--steps 100 with --sizes 4 needs 3360 prompts in grpo, and .*train.jsonl has 2168: use --steps 62 or "
            "fewer, or --sizes from 8 on",
        ),
        (["--repetitions", "1"], "6 --arms need 5 GB of memory each at once, which 5 have: name fewer"),
        (["--task", "/nowhere"], "--task /nowhere holds no model: run train_scripts/quickstart.sh"),
    ],
)
def test_bad_arguments_are_named(command, words, message):
    with pytest.raises(SystemExit, match=f"eval/step_time.py: {message}"):
        command(*words)


def test_a_run_that_fails_is_named_with_its_log(monkeypatch, tmp_path):
    script = tmp_path / "train_scripts/countdown/train.sh"
    script.parent.mkdir(parents=True)
    script.write_text("echo no such flag; exit 2\n")
    monkeypatch.setattr(common.runs, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", arguments_of(tmp_path, "--arms", "all on"))
    with pytest.raises(SystemExit, match="eval/step_time.py: a run failed with exit code 2, see .*train.log"):
        step_time.main()
    assert next(tmp_path.rglob("train.log")).read_text() == "no such flag\n"

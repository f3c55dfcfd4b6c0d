"""The comparison's flags, its logs and its report; the runs themselves are replaced."""

import argparse
import json
import re
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.progress import Progress
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "eval"))
import compare  # noqa: E402
import compare_log  # noqa: E402
import compare_plots  # noqa: E402
import compare_report  # noqa: E402
import graded_reward  # noqa: E402
from graded_reward import checksum  # noqa: E402

CONTROL = {"max_straggler_rate": 0.3, "straggler_ratio": 2.5, "tradeoff": 2.0}
SETTINGS = {"target": 0.75, "seconds": 100.0, **CONTROL}
HELDOUT = ["held 1", "held 2"]


def value_of(flags: list[str], name: str) -> str:
    return flags[flags.index(f"--{name}") + 1]


@pytest.mark.parametrize(
    "policy, tree, prompts, size, sizes",
    [
        ("unpatched:4", "cpu-base", 32, 4, None),
        ("unpatched:32@prompts", "cpu-base", 16, 32, None),
        ("fixed:16", "cpu-patched", 8, 16, ["16"]),
        ("sagc", "cpu-patched", 16, 8, ["4", "8", "16", "32"]),
        ("sagc@prompts", "cpu-patched", 16, 8, ["4", "8", "16", "32"]),
        ("fixed:8+tail:1", "cpu-patched", 16, 8, ["8"]),
        ("sagc+tail+lengths@prompts", "cpu-patched", 16, 8, ["4", "8", "16", "32"]),
    ],
)
def test_policies(policy, tree, prompts, size, sizes):
    made, flags = compare.flags_of(policy, "grpo", 3, CONTROL)
    assert made == tree and value_of(flags, "train.seed") == "3"
    assert value_of(flags, "rollout.batch_size") == str(prompts)
    assert value_of(flags, "rollout.n_samples_per_prompt") == str(size)
    assert value_of(flags, "train.batch_size") == str(prompts * size)
    control = [flag for flag in flags if flag.startswith("--rollout.sagc")]
    if sizes is None:
        assert not control  # unpatched OpenRLHF does not know them
    else:
        at = flags.index("--rollout.sagc.group_sizes") + 1
        assert flags[at:] == sizes
        assert value_of(flags, "rollout.sagc.hold") == ("prompts" if "@prompts" in policy else "samples")
        assert value_of(flags, "rollout.sagc.max_straggler_rate") == "0.3"


@pytest.mark.parametrize("policy, ratio", [("sagc", None), ("sagc+tail", None), ("fixed:8+tail:1", "1")])
def test_tail_batching_and_its_ratio(policy, ratio):
    flags = compare.flags_of(policy, "grpo", 0, CONTROL)[1]
    assert ("--rollout.tail_batching.enable" in flags) == ("+tail" in policy)
    assert ("--rollout.tail_batching.response_ratio" in flags) == (ratio is not None)
    assert ratio is None or value_of(flags, "rollout.tail_batching.response_ratio") == ratio
    assert "--rollout.length_aware_dispatch" not in flags
    assert "--rollout.length_aware_dispatch" in compare.flags_of(f"{policy}+lengths", "grpo", 0, CONTROL)[1]


def test_dapo_is_the_same_work_in_two_optimizer_steps():
    flags = {name: compare.flags_of("unpatched:8", name, 0, CONTROL)[1] for name in compare.ALGORITHMS}
    assert [value_of(flags[name], "train.batch_size") for name in ("grpo", "dapo")] == ["128", "64"]
    assert (
        "--algo.dynamic_filtering_enable" in flags["dapo"] and "--algo.dynamic_filtering_enable" not in flags["grpo"]
    )


@pytest.mark.parametrize(
    "policy, words",
    [
        ("fixed", "use unpatched:N, fixed:N or sagc"),
        ("sagc:8", "use unpatched:N, fixed:N or sagc"),
        ("unpatched:8+tail", "after the latter two"),
        ("fixed:8+lengths+tail", "after the latter two"),
        ("fixed:12", "12 does not divide the 128 samples of a step"),
        ("unpatched:256", "256 does not divide the 128 samples of a step"),
        ("unpatched:0", "0 does not divide the 128 samples of a step"),
        ("sagc+tail:1..2", "after the latter two"),
    ],
)
def test_a_bad_policy_is_named(policy, words):
    with pytest.raises(SystemExit, match=f"--policies {re.escape(policy)}: .*{words}"):
        compare.flags_of(policy, "grpo", 0, CONTROL)


def fake_trainer(folder: Path, script: str) -> Path:
    path = folder / "train_scripts/countdown/train.sh"
    path.parent.mkdir(parents=True)
    path.write_text(script)
    return folder


def test_a_run_ends_after_its_seconds_and_the_evaluation_that_follows(tmp_path, monkeypatch):
    script = "trap 'echo stopped >$3/stopped; exit 0' TERM\nfor i in 1 2 3 4 5; do\n"
    script += "echo \"Global step $i: {'timing/step_total': 10.5, 'x': 1}\"\ndone\necho ' Evaluation completed in'\n"
    script += "while :; do sleep 0.05; done\n"
    monkeypatch.setattr(compare, "ROOT", fake_trainer(tmp_path, script))
    with Progress(disable=True) as progress:
        bar = progress.add_task("", total=40)
        compare.train(tmp_path, tmp_path / "out", "cpu-base", [], 40.0, progress, bar)
        assert progress.tasks[0].completed == 40
    assert (tmp_path / "out/stopped").exists()
    assert (tmp_path / "out/train.log").read_text().count("Global step") == 5


def test_a_run_that_dies_is_reported_with_its_log(tmp_path, monkeypatch):
    script = "echo \"Global step 1: {'timing/step_total': 9.0}\"\necho \"Global step 2: {'timing/step_total': 3.0}\"\nexit 7\n"
    monkeypatch.setattr(compare, "ROOT", fake_trainer(tmp_path, script))
    with Progress(disable=True) as progress, pytest.raises(SystemExit, match="exit code 7 after 3 of 40 s, see .*log"):
        compare.train(tmp_path, tmp_path / "out", "cpu-base", [], 40.0, progress, progress.add_task(""))


def write_run(folder: Path, samples: list[tuple], logs: list[tuple[float, dict]]) -> Path:
    """A run's two logs: samples of (prompt, score, tokens, time), and the scalars of steps with their time."""
    (folder / "tensorboard/run").mkdir(parents=True)
    lines = (f"{checksum(prompt)} {score} {tokens} {at}\n" for prompt, score, tokens, at in samples)
    (folder / "rewards.log").write_text("".join(lines))
    writer = EventFileWriter(str(folder / "tensorboard/run"))
    for step, (at, scalars) in enumerate(logs, 1):
        for name, value in scalars.items():
            summary = Summary(value=[Summary.Value(tag=f"train/{name}", simple_value=value)])
            writer.add_event(Event(wall_time=at, step=step, summary=summary))
    writer.close()
    evaluated = folder / "evaluated.jsonl"
    evaluated.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in HELDOUT))
    return evaluated


def scalars(generation, trained, **more):
    times = {"make_experience": 1.0, "ppo_train": 2.0, "broadcast": 0.5, "generation": generation}
    rollout = {"rollout/num_samples": trained, "rollout/response_length_mean": 14.0}
    return {f"timing/{name}": value for name, value in times.items()} | rollout | more


@pytest.fixture
def recorded(tmp_path):
    """Two steps and an evaluation after each; in the second step a group was stopped after its first sample."""
    samples = [("a", 1.0, tokens, 102.0 + tokens / 10) for tokens in (10, 10, 10, 25)]  # generated up to 105
    samples += [("b", 0.0, 20, 104.0)] * 4
    samples += [(prompt, right, 5, 110.0) for prompt in HELDOUT for right in (1.0, 0.0)]
    samples += [("c", 1.0, 12, 120.5)] * 2 + [("d", 0.0, 30, 121.0), ("d", 0.0, 10, 120.0)] + [("e", 1.0, 9, 120.0)]
    samples += [("held 2", 1.0, 5, 130.0)] * 2 + [("held 1", 0.0, 5, 131.0)] * 2
    logs = [(108.5, scalars(4.0, 8.0)), (125.0, scalars(2.0, 4.0, **{"sagc/virtual_queue": 0.7}))]
    return tmp_path, write_run(tmp_path, samples, logs)


def test_steps_are_read_from_the_logs(recorded):
    folder, evaluated = recorded
    steps = compare_log.read_steps(folder, evaluated, straggler_ratio=2.5).set_index("step")
    assert steps["seconds"].tolist() == [0.0, 5.5]
    assert steps["group_size"].tolist() == [4, 2] and steps["groups"].tolist() == [2, 2]
    assert steps["straggler_rate"].tolist() == [0.5, 0.0]  # max / median 2.5 and 1; 1 and 1.5
    waits = [2.0, 2.0, 2.0, 0.5, 1.0, 1.0, 1.0, 1.0]
    assert steps["idle_tail"][1] == pytest.approx(np.mean(waits), abs=1e-3)
    assert steps["reward"].tolist() == pytest.approx([0.5, 3 / 5])
    assert steps["length_max"].tolist() == [25, 30] and steps["trained"].tolist() == [8, 4]
    assert steps["trained_length"].tolist() == [14, 14]
    assert np.isnan(steps["virtual_queue"][1]) and steps["virtual_queue"][2] == pytest.approx(0.7)


def test_control_says_itself_what_the_groups_were(tmp_path):
    control = {"sagc/straggler_rate": 0.125, "sagc/group_size": 8.0}
    evaluated = write_run(tmp_path, [("a", 1.0, 10, 101.0)] * 4, [(108.5, scalars(4.0, 4.0, **control))])
    steps = compare_log.read_steps(tmp_path, evaluated, straggler_ratio=2.5)
    assert steps["straggler_rate"].tolist() == [0.125] and steps["group_size"].tolist() == [8]


def test_evaluations_are_read_from_the_logs(recorded):
    folder, evaluated = recorded
    steps = compare_log.read_steps(folder, evaluated, straggler_ratio=2.5)
    made = compare_log.read_evaluations(folder, evaluated, steps)
    assert made["right"].tolist() == ["1 1", "0 2"] and made["samples"].tolist() == [2, 2]
    assert made["step"].tolist() == [1, 2] and made["seconds"].tolist() == [0.0, 5.5]


def test_an_evaluation_that_was_cut_is_left_out(recorded):
    folder, evaluated = recorded
    log = folder / "rewards.log"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:-1]))
    steps = compare_log.read_steps(folder, evaluated, straggler_ratio=2.5)
    assert compare_log.read_evaluations(folder, evaluated, steps)["step"].tolist() == [1]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.floats(0.01, 0.99))
def test_time_to_target_is_the_first_crossing(rewards, target):
    seconds = 10.0 * np.arange(1, len(rewards) + 1)
    (found,) = compare_report.time_to(target, seconds, np.array([rewards]))
    if max(rewards) < target:
        assert found == np.inf
    else:
        assert 10 <= found <= seconds[np.argmax(np.array(rewards) >= target)]
        assert np.interp(found, seconds, rewards) >= target - 1e-6
        earlier = seconds[seconds < found - 1e-9]
        assert all(np.interp(earlier, seconds, rewards) < target)


def learning(policy: str, reach: float, seeds=(0, 1, 2), problems=32) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Runs whose held-out reward goes up to 1 at `reach` seconds, linear from 0."""
    steps, evaluations = [], []
    for seed in seeds:
        for step in range(11):
            right = np.clip(np.full(problems, 8 * min(10.0 * step / reach, 1.0)).round(), 0, 8).astype(int)
            evaluations.append(
                {"step": step, "seconds": 10.0 * step, "samples": 8, "right": " ".join(map(str, right)), "seed": seed}
            )
            if not step:
                continue
            phases = dict(generation=4.0, idle_tail=1.0, experience=1.0, training=3.0, sync=0.5)
            shape = dict(groups=16, group_size=8, straggler_rate=0.25, reward=0.5, trained=128, virtual_queue=0.1)
            lengths = dict(length_mean=60.0, length_median=50.0, length_max=150.0, trained_length=60.0)
            steps.append({"step": step, "seconds": 10.0 * step, "seed": seed, **phases, **shape, **lengths})
    arm = {"algorithm": "grpo", "policy": policy}
    return pd.DataFrame(steps).assign(**arm), pd.DataFrame(evaluations).assign(**arm)


def report_of(folder: Path, *arms) -> tuple[str, dict]:
    steps, evaluations = (pd.concat(frames) for frames in zip(*arms))
    steps.to_csv(folder / "steps.csv", index=False)
    evaluations.to_csv(folder / "evaluations.csv", index=False)
    (folder / "settings.json").write_text(json.dumps(SETTINGS))
    text = compare_report.write_report(folder)
    return text, {row["policy"]: row for row in json.loads((folder / "comparison.json").read_text())["policies"]}


def test_the_report_says_who_is_sooner(tmp_path):
    arms = [learning("unpatched:4", 80.0), learning("unpatched:8", 64.0), learning("sagc", 32.0)]
    text, rows = report_of(tmp_path, *arms)
    assert rows["unpatched:8"]["time_to_target"]["value"] == pytest.approx(50.0)
    assert rows["sagc"]["best_fixed"] == "unpatched:8"
    assert (
        rows["sagc"]["speedup"]["value"] == pytest.approx(50 / (20 + 10 / 3), abs=0.01)
        and rows["sagc"]["speedup"]["low"] > 1.5
    )
    assert "sagc reached 0.75 sooner than the best fixed size (unpatched:8)" in text
    assert all((tmp_path / name).stat().st_size > 10_000 for name in ("reward.png", "control.png", "seconds.png"))


def test_tail_batching_at_a_fixed_size_is_compared_with_the_fixed_size(tmp_path):
    arms = [learning("unpatched:8", 64.0), learning("fixed:8+tail", 32.0), learning("sagc", 96.0)]
    text, rows = report_of(tmp_path, *arms)
    assert rows["fixed:8+tail"]["best_fixed"] == "unpatched:8" and rows["fixed:8+tail"]["speedup"]["low"] > 1.5
    assert "fixed:8+tail reached 0.75 sooner than the best fixed size (unpatched:8)" in text


def test_rewards_are_compared_after_the_same_seconds():
    seconds_E, values_BE = np.array([10.0, 30.0, 60.0]), np.array([[0.0, 0.4, 1.0], [0.1, 0.1, 0.7]])
    for seconds, expected in ((5, [0.0, 0.1]), (10, [0.0, 0.1]), (20, [0.2, 0.1]), (45, [0.7, 0.4]), (99, [1.0, 0.7])):
        assert compare_report.value_at(seconds, seconds_E, values_BE) == pytest.approx(expected)
    assert compare_report.value_at(9, seconds_E[:1], values_BE[:, :1]) == pytest.approx([0.0, 0.1])


def test_the_report_says_what_other_rewards_took_and_what_the_idle_tail_could_give(tmp_path):
    text, rows = report_of(tmp_path, learning("unpatched:8", 64.0), learning("sagc", 32.0))
    times = rows["sagc"]["times"]
    assert list(times) == ["0.65", "0.7", "0.75", "0.8", "0.85"] and times["0.75"] == pytest.approx(
        rows["sagc"]["time_to_target"]["value"]
    )
    row = rows["sagc"]
    assert 1 < row["bound"] == pytest.approx(row["step_seconds"] / (row["step_seconds"] - row["idle_tail"]))
    assert "| policy | 0.65 | 0.7 | 0.75 | 0.8 | 0.85 |" in text


def test_the_report_has_each_run(tmp_path):
    text, rows = report_of(tmp_path, learning("unpatched:8", 64.0), learning("sagc", 32.0))
    lines = [line for line in text.partition("### Each run")[2].splitlines() if line.startswith("| grpo")]
    assert len(lines) == sum(row["runs"] for row in rows.values())
    times = [float(line.split("|")[4]) for line in lines if "sagc" in line]
    assert np.mean(times) == pytest.approx(rows["sagc"]["time_to_target"]["value"], abs=0.5)
    assert all(line.endswith(" | 8.50 | 3.00 |") for line in lines)


def test_the_report_says_where_a_fixed_size_wins(tmp_path):
    text, rows = report_of(tmp_path, learning("unpatched:8", 32.0), learning("sagc", 64.0))
    assert "sagc reached 0.75 later than the best fixed size (unpatched:8): the fixed size wins" in text
    assert rows["sagc"]["speedup"]["high"] < 1


def test_the_report_says_what_was_not_reached(tmp_path):
    text, rows = report_of(tmp_path, learning("unpatched:8", 64.0), learning("sagc", 400.0))
    assert rows["sagc"]["time_to_target"]["value"] is None and rows["sagc"]["reached"] == 0
    assert "sagc did not reach 0.75 in every run" in text and "| – [–, –] |" in text


@pytest.mark.parametrize("seeds", [(0,), (0, 1)])
def test_few_runs_give_no_verdict(tmp_path, seeds):
    text, _ = report_of(tmp_path, learning("unpatched:8", 64.0, seeds), learning("sagc", 32.0, seeds))
    assert f"- sagc has too few runs for a verdict ({len(seeds)} of 3)" in text and "sooner" not in text


def test_a_target_that_none_reached_compares_nothing(tmp_path):
    text, rows = report_of(tmp_path, learning("unpatched:8", 400.0), learning("sagc", 300.0))
    assert rows["sagc"]["speedup"] == {"value": None, "low": None, "high": None} and "[1.00" not in text


def test_a_draw_in_which_neither_reaches_the_target_is_left_out():
    draws = compare_report.speedup_of(
        np.array([1.0, 2.0, 3.0, np.inf, np.inf]), np.array([1.0, 4.0, 1.0, 2.0, np.inf])
    )
    assert draws[:4].tolist() == [1.0, 0.5, 3.0, np.inf] and np.isnan(draws[4])
    assert compare_report.interval(draws[[0, 1, 1, 4]], 2) == "1.00 [0.50, 0.50]"
    assert compare_report.interval(draws[[0, 1, 4, 4, 4]], 2) == "1.00 [–, –]"


def test_every_policy_has_a_colour():
    policies = ["unpatched:8", "fixed:8+tail", "fixed:8+tail:1", "sagc", "sagc+tail:1", "sagc+lengths", "sagc@prompts"]
    assert list(compare_plots.colors_of(policies)) == policies


def test_the_start_is_evaluated_once_a_seed(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    commands = []

    def run(command, **_):
        commands.append(list(command))
        rows = [{"prompt_id": i, "correct": [True, False, True]} for i in range(2)]
        (tmp_path / "start.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return argparse.Namespace(returncode=0)

    (tmp_path / "made").touch()
    monkeypatch.setattr(compare.subprocess, "run", run)
    for _ in range(2):
        compare.make_task(tmp_path, 5)
    assert len(commands) == 1
    start = pd.read_csv(tmp_path / "data/start.csv").to_dict("records")
    assert start == [{"step": 0, "seconds": 0.0, "samples": 3, "right": "2 2"}]


def test_the_report_says_that_no_fixed_size_reached_it(tmp_path):
    text, rows = report_of(tmp_path, learning("unpatched:8", 400.0), learning("sagc", 64.0))
    assert rows["sagc"]["speedup"]["value"] is None and "e+" not in text
    assert "sagc reached 0.75 in every run, which no fixed size did" in text


def test_problems_and_seeds_widen_the_interval(tmp_path):
    steps, evaluations = learning("unpatched:8", 64.0)
    generator = np.random.default_rng(1)
    noisy = evaluations.assign(right=[" ".join(map(str, generator.integers(0, 9, 32))) for _ in evaluations["right"]])
    draws = compare_report.resample(noisy, SETTINGS | {"seconds": 1e9}, np.random.default_rng(0))
    again = compare_report.resample(noisy, SETTINGS | {"seconds": 1e9}, np.random.default_rng(0))
    assert np.array_equal(draws["reward"], again["reward"])
    last = [compare_report.right_of(run)[-1] for _, run in noisy.groupby("seed")]
    assert draws["reward"][0] == pytest.approx(np.mean(last))
    within = np.sqrt(np.mean([np.var(run) / 32 for run in last]) / 3)
    assert within < draws["reward"][1:].std() < 3 * within  # and some of the seeds'


def test_a_comparison_goes_on_where_it_was_stopped(tmp_path, monkeypatch):
    trained = []

    def train(task, output, tree, flags, seconds, progress, bar):
        if len(trained) == 3:
            raise KeyboardInterrupt
        trained.append(output)
        shutil.rmtree(output, ignore_errors=True)
        samples = [("a", 1.0, 10, 101.0)] * 4 + [(prompt, 1.0, 5, 110.0) for prompt in HELDOUT for _ in range(8)]
        write_run(output, samples, [(108.5, scalars(4.0, 4.0))])

    def make_task(folder, seed):
        (folder / "data").mkdir(exist_ok=True)
        text = "".join(json.dumps({"prompt": prompt}) + "\n" for prompt in HELDOUT)
        (folder / "data/evaluated.jsonl").write_text(text)
        (folder / "data/start.csv").write_text("step,seconds,samples,right\n0,0.0,8,1 2\n")

    monkeypatch.setattr(compare, "train", train)
    monkeypatch.setattr(compare, "make_task", make_task)
    arguments = argparse.Namespace(
        policies=["unpatched:8", "sagc"], algorithms=["grpo"], seeds=[0, 1], output=tmp_path, seconds=10.0
    )
    with pytest.raises(KeyboardInterrupt):
        compare.run(arguments, CONTROL)
    before = list(trained)
    trained.clear()
    steps, evaluations = compare.run(arguments, CONTROL)
    assert len(before) == 3 and len(trained) == 1 and trained[0] not in before
    assert [path.name for path in before] == ["unpatched-8", "sagc", "sagc"]  # arms take turns at going first
    assert len(steps) == 4 and steps["seed"].tolist() == [0, 0, 1, 1]
    assert evaluations["step"].tolist() == [0, 1] * 4 and evaluations["right"].tolist()[::2] == ["1 2"] * 4
    arguments.seconds = 11.0  # other settings, other runs
    trained.clear()
    with pytest.raises(KeyboardInterrupt):
        compare.run(arguments, CONTROL)
    assert len(trained) == 3


@pytest.mark.parametrize(
    "words, message",
    [(["--seconds", "0"], "--seconds 0.0 must be above 0"), (["--target", "75"], "--target 75.0 is a mean reward")],
)
def test_bad_arguments_are_named(words, message, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["compare.py", *words, "--output", str(tmp_path)])
    with pytest.raises(SystemExit, match=message):
        compare.main()


def test_the_reward_logs_every_sample(tmp_path, monkeypatch):
    monkeypatch.setenv("REWARD_LOG", str(tmp_path / "rewards.log"))
    prompt = "use 4 15 6 to make 13 :"
    right, wrong = "13 -4 = 9 -15 = -6 +6 = 0 !", "13 -6 = 7 stuck"
    queries = [f"{prompt} {answer} <eos>" for answer in (right, wrong)]
    made = graded_reward.reward_func(queries, [prompt] * 2, ["13", "13"])
    assert made["rewards"].tolist() == [1.0, 0.0]
    (tmp_path / "evaluated.jsonl").write_text(json.dumps({"prompt": prompt}) + "\n")
    samples = compare_log.read_samples(tmp_path, tmp_path / "evaluated.jsonl")
    assert samples["score"].tolist() == [1.0, 0.0] and samples["tokens"].tolist() == [12, 6]
    assert samples["heldout"].all() and (samples["time"] - time.time()).abs().max() < 60

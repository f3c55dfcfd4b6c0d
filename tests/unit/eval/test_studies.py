"""Each study once in small: what it writes, and the one thing that its table is read for."""

import argparse
import json
from dataclasses import replace
from importlib import import_module

import lib.runs
import numpy as np
import pandas as pd
import pytest
from comparison_runs import scalars, write_run
from cpu_stack import ROOT
from lib.comparison.arms import flags_of
from lib.comparison.group_size_runs import WARM_UP
from lib.comparison.step_arms import ARMS, SWITCHES
from lib.paths import ENGINES, STUDIES
from lib.simulation.costs import CostModel
from lib.simulation.lengths import Trace
from lib.simulation.workloads import Workload
from lib.synthetic_reward import checksum

from openrlhf_sagc.arguments import PREFIX, add_arguments

NAMES = sorted(file.parent.name for file in STUDIES.glob("*/run.py"))


@pytest.fixture
def task(tmp_path):
    """A warm-started task's folder, with as many prompts as the quickstart's."""
    for folder in ("model", "data"):
        (tmp_path / "task" / folder).mkdir(parents=True)
    (tmp_path / "task/data/task.txt").write_text("countdown\n")
    (tmp_path / "task/data/train.jsonl").write_text('{"input": "1 2", "label": "3"}\n' * 2168)
    return tmp_path / "task"


def test_a_name_that_is_none_is_answered_with_all(study, capsys):
    with pytest.raises(
        SystemExit, match=f"^eval/studies: prompt_sizes is not a study: give one of {', '.join(NAMES)}$"
    ):
        study("prompt_sizes")
    study("--help")
    assert capsys.readouterr().out.endswith(f"{', '.join(NAMES)}\n")


# --- simulated -------------------------------------------------------------------------------------------------------


def test_placed_rollouts_make_shorter_steps_than_placed_groups(study, small):
    module = small("placement.run", GPUS=(8,), SIZES=(32,), STEPS=2)
    table = pd.read_csv(study("placement") / "seconds.csv")
    assert table["setting"].tolist() == list(module.SETTINGS)
    plain = table.iloc[0]
    assert plain["rollouts by length"] < plain["groups by length"]
    assert plain["times as fast"] == pytest.approx(plain["OpenRLHF's"] / plain["rollouts by length"], rel=1e-3)


def test_sorted_steps_waste_no_token(study, small):
    small("sorted_steps.run", PROMPTS=640, STEPS=10)
    rows = pd.read_csv(study("sorted_steps", "--gpus", 16, "--seeds", 0) / "runs.csv").set_index("arm")
    assert rows["wasted_share"]["fixed:8+tail:stop"] > 0 == rows["wasted_share"]["fixed:8+tail:sort"]
    assert rows["trained_length_ratio"]["fixed:8+tail:stop"] < rows["trained_length_ratio"]["fixed:8+tail:sort"]


def test_defaults_are_those_of_the_flags_and_a_higher_limit_gives_larger_groups(study, small):
    module = import_module("studies.defaults.run")
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    flags = vars(parser.parse_args([]))
    assert module.DEFAULTS == {name: flags[PREFIX[2:] + name] for name in module.DEFAULTS}
    kept = pd.read_csv(STUDIES / "defaults/defaults.csv")
    assert {(row.flag, row.value) for row in kept.itertuples()} == {
        (f, v) for f, vs in module.VALUES.items() for v in vs
    }
    small("defaults.run", FIRST=5, STEPS=40, SEEDS=(0,), VALUES={"max_straggler_rate": (0.2, 0.6)})
    out = study("defaults")
    for _, pair in pd.read_csv(out / "defaults.csv").groupby(["lengths", "hold"]):
        for name in ("group_size", "straggler_rate"):
            assert pair[name].is_monotonic_increasing and pair[name].nunique() == 2
    assert (out / "defaults.png").stat().st_size > 10_000


def test_each_part_of_a_faster_step_is_added_and_left_out(study, small):
    module = small("faster_step.run", SIZE=4, MICRO_BATCH_SIZE=2, STEPS=3)
    said = {
        arm: (work.has_forward, work.by_length, work.streams)
        for arm, parts in module.ARMS.items()
        for work in [module.work_of(parts, packed=False, actor_gpus=8)]
    }
    assert said["nothing"] == (True, False, False) and said["… + stream"] == (False, True, True)
    assert said["all without micro_batches"] == (False, False, True) and said["all"] == (False, True, True)
    assert not module.work_of(module.PARTS, packed=True, actor_gpus=8).streams
    out = study("faster_step", "--gpus", 4, 8, "--batch_size", 8, "--seeds", 0, 1)
    runs = pd.read_csv(out / "runs.csv")
    assert len(runs) == (len(module.arms_of(packed=False)) + len(module.arms_of(packed=True))) * 2 * 2
    parts = runs[[f"{part}_seconds" for part in module.SECONDS]].sum(axis=1)
    assert parts.tolist() == pytest.approx(runs["seconds"].tolist(), rel=1e-3)
    arms = runs.query("gpus == 8 and samples == 'padded' and seed == 0").set_index("arm")
    assert arms["seconds"]["… + micro_batches"] < arms["seconds"]["old_log_probs"] < arms["seconds"]["nothing"]
    assert arms["sample_share"]["… + stream"] > 0 == arms["sample_share"]["… + micro_batches"]
    both = pd.DataFrame({"arm": ["nothing", "nothing", "all", "all"], "seed": [0, 1, 0, 1], "seconds": [4.0, 8, 2, 2]})
    _, everything = module.summary(both.assign(gpus=16, prompts=128, samples="padded")).to_dict("records")
    assert (everything["speedup"], everything["low"], everything["high"]) == (3.0, 2.0, 4.0)  # ratios of a seed
    with pytest.raises(SystemExit, match="^eval/studies faster_step: --actor_share 0.01 of --gpus 16 leaves"):
        study("faster_step", "--actor_share", 0.01, "--gpus", 16)


def test_objectives_are_compared_with_the_best_fixed_size_that_keeps_the_limit(study, small):
    module = small("objectives.run", STEPS=3)
    small("objectives.run", cells=lambda: [module.Cell(2, "slow nodes", False, "samples", True)])
    out = study("objectives")
    runs, (free, limited) = pd.read_csv(out / "runs.csv"), pd.read_csv(out / "cells.csv").to_dict("records")
    assert len(runs) == len(module.POLICIES) and runs["effective_per_second"].gt(0).all()
    assert free["limit"] == 0.95 and max(free[f"fixed:{size}"] for size in module.SIZES) == 1
    assert free[f"fixed:{free['best']}"] == 1 and limited["throughput"] > 0
    rates = dict(zip(module.SIZES, (0.1, 0.19, 0.3, 0.5)))
    worth = {size: 10.0 * size for size in module.SIZES}
    policies = [(f"fixed:{size}", 0.95, worth[size], rates[size]) for size in module.SIZES]
    policies += [(name, limit, 60.0, 0.2) for name in ("size", "throughput") for limit in module.LIMITS]
    made = pd.DataFrame(policies, columns=["policy", "limit", "effective_per_second", "straggler_rate"])
    cell = dict(zip(module.CELL, (2, "mid", False, "samples", False)))
    free, limited = module.shares(made.assign(**cell, seed=0, group_size=8.0, changes=0.0)).to_dict("records")
    assert (free["best"], free["size"]) == (32, 60 / 320) and (limited["best"], limited["size"]) == (8, 60 / 80)


def test_tenths_have_their_weight_of_plain_steps_where_tokens_are_weighed(study, small):
    small("token_weights.shares", SPREADS=(1.3,), GPUS=(16,), WARM_UP=5, STEPS=40)
    out = study("token_weights", "shares")
    rows = pd.read_csv(out / "shares.csv").set_index(["scheme", "tenth"])["of plain"]
    assert rows["weighed", 10] == pytest.approx(1, abs=0.1) and rows["by round", 10] < 0.6
    assert (out / "shares.png").stat().st_size > 10_000


@pytest.mark.parametrize("signal", [0.1, 0.3], ids=["noise", "less noise"])
def test_tail_batching_moves_a_parameter_as_plain_steps_do(signal):
    drift = import_module("studies.token_weights.drift")
    plain = drift.drift(signal, drift.PLAIN, "by round", frames=80)
    assert drift.drift(signal, drift.TAIL, "weighed", frames=80) == pytest.approx(plain, rel=0.1)
    assert drift.drift(signal, drift.TAIL, "by round", frames=80) < 0.6 * plain


def test_steps_that_all_runs_have_are_compared_and_paired(study, small, tmp_path):
    def read(folder):
        weighed, seed = "round" not in folder.parts[-3] and "tail" in folder.parts[-3], int(folder.parts[-5][-1])
        values = {tag: [seed + 2.0 * weighed] * 3 + [100.0] * weighed for tag in module.LOGGED}
        if weighed:
            for tenth in module.TENTHS:
                values |= {f"{tenth}_update": [0.0, 0.0, 0.0, 0.3], f"{tenth}_tokens": [1.0, 1.0, 1.0, 0.2]}
        return pd.DataFrame(values)

    module = small("token_weights.learning", read_run=read, drawn_rows=lambda *_: [])
    out = study("token_weights", "learning", tmp_path)
    table = pd.read_csv(out / "learning.csv").set_index(["quantity", "arm"])
    plain, _, weighed = module.ARMS
    assert table.loc[("clip share", plain), "mean"] == 1.5 and table.loc[("clip share", weighed), "mean"] == 3.5
    assert table.loc[("clip share", weighed), "difference"] == 2
    assert table.loc[("weight of the longest tenth", weighed), "mean"] == pytest.approx(1.5)
    with pytest.raises(SystemExit, match="token_weights: learning needs the folder of a comparison, got None"):
        study("token_weights", "learning")


def test_chance_moves_the_weights_of_prompts_in_small_steps(small, tmp_path):
    """Sixteen prompts a step, one in ten four times as long: a step with more of these has more tokens."""
    held = tmp_path / "task-0/data/heldout.jsonl"
    held.parent.mkdir(parents=True)
    held.write_text('{"prompt": "held out"}\n')
    run = tmp_path / "seed-0/grpo/plain"
    run.mkdir(parents=True)
    lines = [f"{prompt} 1.0 {40 if prompt % 10 == 9 else 10} 0.0" for prompt in range(1600) for _ in range(8)]
    lines += [f"{checksum('held out')} 1.0 999 0.0"] * 8 + ["5000 1.0 999 0.0"] * 7  # not whole
    (run / "rewards.log").write_text("\n".join(lines))
    learning = small("token_weights.learning", DRAWS=20)
    longest, shortest = learning.drawn_rows(tmp_path, ["plain"], [0])
    assert 0.8 < longest["mean"] < 1 < shortest["mean"] < 1.1
    assert 0.001 < longest["sd"] < 0.05
    alike = [learning.Trained(80, 8)] * 1600
    assert learning.drawn_weights(alike) == pytest.approx([1, 1])


def test_runs_that_go_wrong_do_so_where_the_plot_is_red(study, small, tmp_path):
    module = import_module("studies.health.run")
    beyond, cap, failing = module.out_of_reach(), module.cap_reached(10), module.reward_failing(0.1)
    late = pd.DataFrame(beyond.steps).tail(module.STEPS // 2)
    assert (late["group_size"] == 4).all() and (late["rate"] > module.LIMIT).all() and not beyond.ended
    batches = pd.DataFrame(cap.steps)["gen_batches"]
    assert cap.ended and batches.iloc[-1] == 10 > batches.iloc[:-1].max() and batches.iloc[0] < 3
    shares = pd.DataFrame(failing.steps)["failure_share"]
    assert failing.ended and shares.iloc[-1] > 0.1 >= shares.iloc[:-1].max() and not shares.iloc[:15].any()
    log = {"sagc/straggler_rate_mean": [0.4, 0.3], "sagc/group_size": [8.0, 16.0]}
    log |= {"dynamic_filtering/dispatched": [16.0, 8.0], "dynamic_filtering/gen_batches": [1.0, 2.0]}
    log = pd.DataFrame(log | {"rollout/reward_failures": [0.0, 32.0]})
    small("health.run", STEPS=6, read_run=lambda folder: log)
    assert [step["failure_share"] for step in module.real(tmp_path)] == [0, 0.25]
    assert (study("health", "--tensorboard", tmp_path) / "health.png").stat().st_size > 20_000
    small("health.run", read_run=lambda folder: log.drop(columns="sagc/group_size"))
    with pytest.raises(SystemExit, match="has no 'sagc/group_size': use the log of a run with this package's flags"):
        study("health", "--tensorboard", tmp_path)
    with pytest.raises(SystemExit, match="eval/studies health: --tensorboard .*: there is no such folder"):
        study("health", "--tensorboard", tmp_path / "none")


# --- on the CPU stack, whose runs are replaced ------------------------------------------------------------------------


def timed_log(costs, source, hold, size, steps):
    """What TensorBoard would hold of steps that cost this, their groups drawn from `source`."""
    module = import_module("studies.simulate.run")
    generator = np.random.default_rng(size)
    groups = module.SAMPLES // size if hold == "samples" else module.PROMPTS
    drawn = [source.draw_rollouts(source.draw_prompts(groups, generator), size, generator)[0] for _ in range(steps)]
    log = pd.DataFrame({"rollout/num_samples": [tokens.size for tokens in drawn]})
    log["rollout/response_length_max"] = [tokens.max() for tokens in drawn]
    log["response_length"] = [tokens.mean() for tokens in drawn]
    log["total_length"] = log["response_length"] + 8
    tokens = log["response_length"] * log["rollout/num_samples"]
    every, longest = log["total_length"] * log["rollout/num_samples"], log["rollout/response_length_max"]
    log["timing/generation"] = costs.generation_base + costs.decode_base * longest + costs.decode_per_request * tokens
    log["timing/generation"] += costs.prefill_per_token * (every - tokens)
    log["timing/make_experience"] = costs.experience_base + costs.experience_per_token * every
    log["timing/ppo_train"] = costs.train_base + costs.train_per_token * every
    log["timing/broadcast"] = costs.sync
    return log.assign(**{"timing/step_total": log[list(module.PARTS.values())].sum(axis=1)})


def test_calibration_finds_the_costs_behind_logs_and_predicts_a_size_left_out(study, small, task, tmp_path):
    module = import_module("studies.simulate.run")
    per = {
        "decode_per_request": 3e-5,
        "experience_per_token": 2e-5,
        "train_per_token": 7e-5,
        "prefill_per_token": 1e-4,
    }
    base = {"decode_base": 2e-3, "generation_base": 0.1, "experience_base": 0.03, "train_base": 0.02, "sync": 0.13}
    costs, source = CostModel(**per, **base, **module.GIVEN), Trace(STUDIES / "simulate/countdown.csv")

    def run(task, output, flags):
        hold, size = output.name.split("-fixed-")
        return timed_log(costs, source, hold, int(size), 300)

    small("simulate.run", run=run, ROUNDS=1, SIMULATED_STEPS=300)
    out = study("simulate", "--task", task, "--engine", tmp_path / "engine.json")
    table = pd.read_csv(out / "calibration.csv")
    assert table["error_percent"].abs().max() < 5 and len(table) == 8
    assert vars(CostModel.load(tmp_path / "engine.json")) == pytest.approx(vars(costs), rel=1e-6)
    assert json.loads((tmp_path / "engine.json").read_text())["calibration"].endswith("out/calibration.csv")
    with pytest.raises(SystemExit, match="^eval/studies simulate: --engine .*: it is a folder: give a file$"):
        study("simulate", "--task", task, "--engine", tmp_path)


def test_a_policy_is_compared_with_the_fixed_sizes_that_meet_its_limit(study, small, task):
    effective = iter([10.0, 20.0, 40.0, 30.0, 36.0, 18.0, 22.0])
    rates = iter([0.1, 0.15, 0.3, 0.5, 0.5, 0.2, 0.2])

    def run(task, output, flags):
        steps = {name: 8.0 for name in module.COLUMNS} | {"sagc/straggler_rate": next(rates)}
        return pd.DataFrame([steps | {"timing/step_total": 7.0 / next(effective)}] * 2)

    module = small("group_sizes.run", REPETITIONS=1, run=run)
    out = study("group_sizes", "--task", task)
    table = pd.read_csv(out / "table.csv")
    assert table["policy"].tolist()[4:] == ["throughput, limit 0.95", "throughput, limit 0.2", "size, limit 0.2"]
    assert table["share of the best"].tolist() == pytest.approx([0.25, 0.5, 1, 0.75, 0.9, 0.9, 1.1], abs=1e-3)
    none = module.with_shares(table.assign(**{"straggler rate": 0.5}))["share of the best"]
    assert none.tolist()[5:] == pytest.approx([1.8, 2.2], abs=1e-2)  # the smallest size stands in
    assert (out / "group_sizes.png").stat().st_size > 10_000


def test_groups_with_a_signal_are_counted_in_the_rewards_log(study, small, task):
    def once(output, made_with, train):
        output.mkdir(parents=True, exist_ok=True)
        train()
        return 0, 60

    def run_logged(command, log, REWARD_LOG):
        assert len((log.parent / "prompts.jsonl").read_text().splitlines()) == module.PROMPTS
        patched = command[2] == "cpu-patched"
        scores = {"a": [0.0, 1.0] * 4, "b": [1.0] * 8} if patched else {"a": [0.0, 1.0] * 4, "b": [0.5] * 8}
        lines = [f"{prompt} {score} 5 1.0\n" for prompt, group in scores.items() for score in group]
        (log.parent / "rewards.log").write_text("".join(lines))
        log.write_text("Global step 1: done")
        return 0

    def read_run(folder):
        samples = 8 if "patched" in folder.parts[-3].removeprefix("mixed-un") and "un" not in folder.parts[-3] else 16
        return pd.DataFrame({"rollout/num_samples": [samples], "timing/generation": [1.0]})

    module = small(
        "dynamic_sampling.run", once=once, run_logged=run_logged, read_run=read_run, DATA={"mixed": ["hard"]}
    )
    small("dynamic_sampling.run", RUNS=task.parent / "runs")
    out = study("dynamic_sampling", "--task", task)
    table = pd.read_csv(out / "table.csv").set_index("OpenRLHF")
    assert table.loc["unpatched", "with a signal"] == 0.5 and table.loc["patched", "with a signal"] == 1
    assert table["samples scored"].tolist() == [16] * 3 and (out / "dynamic_sampling.png").stat().st_size > 10_000


PAUSES = {"unpatched": 0.25, "all on": 0.125, "all off": 0.0}  # in the first step that counts
FINER = {"step_seconds/idle_tail": 0.5, "step_seconds/optimizer": 0.25}
WORDS = ["--steps", 1, "--algorithms", "grpo", "--sizes", 8, "--arms", *PAUSES]


@pytest.fixture
def step_time(study, small, task, tmp_path):
    """step_time(*words) -> the repetitions that were started; `fail_at` ends the one of this number."""

    def take_turns(commands, boundary, warm_up, on_turn):
        if len(started) == run.fail_at:
            raise KeyboardInterrupt
        started.append([log.parent.name for _, log in commands.values()])
        pauses = {}
        for arm, (words, log) in commands.items():
            seconds, more = (4.5, {}) if words[2] == "cpu-base" else (4.25, FINER)
            times = [100 + 10 * seconds * n for n in range(1, WARM_UP + 1)]  # the warm-up's steps are long
            times += [times[-1] + seconds, times[-1] + 2 * seconds]
            write_run(log.parent, [], [(at, scalars(0.5, 128.0, **more)) for at in times])
            pauses[arm] = [[times[WARM_UP - 1], times[WARM_UP - 1] + PAUSES[arm]]]
            on_turn(arm, "")
        return pauses

    started = []
    small("step_time.run", take_turns=take_turns, room_for_runs=lambda: 5, RUNS=tmp_path / "runs")

    def run(*words):
        started.clear()
        study("step_time", *["--task", task][: 2 * ("--task" not in words)], *words)
        return list(started)

    run.fail_at, run.started = None, started
    return run


def test_a_measurement_of_steps_goes_on_where_it_was_stopped(step_time, tmp_path, capsys):
    step_time.fail_at = 1
    with pytest.raises(KeyboardInterrupt):
        step_time(*WORDS)
    runs, step_time.fail_at = list(step_time.started), None
    runs += step_time(*WORDS)
    arms = ["unpatched", "all-on", "all-off"]
    assert runs == [arms[turn:] + arms[:turn] for turn in range(3)] and step_time(*WORDS) == []
    out = tmp_path / "out"
    steps, found = pd.read_csv(out / "steps.csv"), json.loads((out / "step_time.json").read_text())
    # Seconds are those of the clock without pauses; the warm-up is left out; unpatched runs log no finer parts.
    seconds = {arm: of.tolist() for arm, of in steps.groupby("arm")["seconds"].unique().items()}
    assert seconds == {"unpatched": [4.25], "all on": [4.125], "all off": [4.25]}
    assert steps.query("arm == 'unpatched'")[["idle_tail", "optimizer"]].isna().all(axis=None)
    assert steps.query("arm == 'all on'")[["generation", "idle_tail"]].iloc[0].tolist() == [0.375, 0.375]
    assert [row["arm"] for row in found["arms"]] == list(PAUSES)
    assert found["arms"][1]["speedup"]["value"] == pytest.approx(4.25 / 4.125)
    assert (out / "REPORT.md").read_text() in capsys.readouterr().out
    before = (out / "REPORT.md").read_text()
    assert step_time("--report") == [] and (out / "REPORT.md").read_text() == before
    (out / "steps.csv").unlink()
    with pytest.raises(SystemExit, match="eval/studies step_time: --report needs .*steps.csv, which a run without"):
        step_time("--report")


@pytest.mark.parametrize(
    "words, message",
    [
        (["--repetitions", 0], "--repetitions 0 must be at least 1"),
        (
            ["--steps", 100, "--sizes", 4, "--algorithms", "grpo"],
            "--steps 100 with --sizes 4 needs 3360 prompts in grpo",
        ),
        (["--repetitions", 1], "6 --arms need 5 GB of memory each at once, which 5 have: name fewer"),
        (["--task", "/nowhere"], "--task /nowhere holds no model: run train_scripts/quickstart.sh"),
    ],
)
def test_what_cannot_be_measured_is_named(step_time, words, message):
    with pytest.raises(SystemExit, match=f"eval/studies step_time: {message}"):
        step_time(*words)


def test_an_arm_differs_from_unpatched_in_what_it_is_named_for(task):
    module = import_module("studies.step_time.run")
    assert {f"without {name}" for name in SWITCHES} == {*ARMS} - {"unpatched", "all on", "all off"}
    flags = {}
    for arm in ARMS:
        tree, words = module.run_flags(arm, "grpo", 8, 2, argparse.Namespace(task=task, steps=20, shape="padded"))
        assert tree == ("cpu-base" if arm == "unpatched" else "cpu-patched")
        flags[arm] = {
            word: words[i + 1] for i, word in enumerate(words[:-1]) if word.startswith("--")
        }  # later ones win
        assert flags[arm]["--actor.adam.lr"] == "0" and flags[arm]["--data.max_samples"] == str((WARM_UP + 20) * 16)
    for name, (on, off) in SWITCHES.items():
        assert flags["all on"][f"--train.{name}"] == on and flags[f"without {name}"][f"--train.{name}"] == off
    more = flags["all on"].items() - flags["unpatched"].items()
    assert all(flag.startswith(("--rollout.sagc", *(f"--train.{name}" for name in SWITCHES))) for flag, _ in more)
    (task / "data/task.txt").write_text("route\n")
    _, words = module.run_flags("all on", "dapo", 8, 0, argparse.Namespace(task=task, steps=20, shape="padded"))
    assert "584" in words and str(ROOT / "train_scripts/route/reward.py") in words  # its own lengths and reward


@pytest.mark.parametrize("arm", ["unpatched", "all on"])
def test_the_gpu_shape_is_that_of_the_launch_scripts(task, arm):
    module = import_module("studies.step_time.run")
    padded, packed = (
        module.run_flags(arm, "dapo", 8, 0, argparse.Namespace(task=task, steps=20, shape=shape))[1]
        for shape in ("padded", "gpu")
    )
    launched = (ROOT / "train_scripts/launch.sh").read_text()
    added = {word for word in packed if word.startswith("--")} - {word for word in padded if word.startswith("--")}
    assert set(padded) <= set(packed) and len(added) == 9 and all(name in launched for name in added)


def test_a_run_that_fails_is_named_with_its_log(study, small, task, tmp_path, monkeypatch):
    script = tmp_path / "train_scripts/countdown/train.sh"
    script.parent.mkdir(parents=True)
    script.write_text("echo no such flag; exit 2\n")
    monkeypatch.setattr(lib.runs, "ROOT", tmp_path)
    small("step_time.run", RUNS=tmp_path / "runs", room_for_runs=lambda: 5)
    with pytest.raises(SystemExit, match="eval/studies step_time: a run failed with exit code 2, see .*train.log"):
        study("step_time", "--task", task, "--arms", "all on")
    assert next(tmp_path.rglob("train.log")).read_text() == "no such flag\n"


# --- predicted -------------------------------------------------------------------------------------------------------


USUAL = CostModel.load(ENGINES / "cpu-2-cores.json")
# Another machine: an engine of half the speed, and an optimizer that takes much longer.
GENERATION = ("generation_base", "decode_base", "decode_per_request", "decode_per_kv_token", "prefill_per_token")
OTHER = replace(USUAL, **{name: 2 * getattr(USUAL, name) for name in GENERATION}, train_base=0.4, sync=0.3)


@pytest.mark.parametrize("costs_of", ["unpatched", "all off"])
def test_a_machine_of_other_speed_is_predicted_from_one_arm(study, small, trace, tmp_path, costs_of):
    module = small("predict.run", STEPS=20)
    (tmp_path / "step_time.json").write_text(json.dumps({"settings": {"micro_batch_size": 16}}))
    empty = pd.DataFrame(columns=[*module.ARM, "repetition", "seconds", *module.PARTS, "rest", "optimizer"])
    empty.to_csv(tmp_path / "steps.csv", index=False)
    simulate = module.of_step_time(tmp_path, trace).simulate
    rows = []
    for algorithm in ("grpo", "dapo"):
        for arm in ARMS:
            parts = simulate(OTHER, (algorithm, 8, arm), None)
            for factor in (1, 1, 9):  # the last step is slow, and the median does not see it
                row = {"algorithm": algorithm, "size": 8, "arm": arm, "repetition": 0, "rest": 0.1 * factor}
                row |= {name: factor * parts[name] for name in ("seconds", *module.PARTS)}
                row["sync"] -= 0.1 * factor  # 0.1 s of a step are in no part
                rows.append(row | {"optimizer": 0.4 * factor})
    pd.DataFrame(rows).to_csv(tmp_path / "steps.csv", index=False)
    study("predict", "--results", tmp_path, "--trace", trace, "--costs_of", costs_of)
    table = pd.read_csv(tmp_path / "predicted.csv")
    assert table["arm"].tolist() == ARMS * 2 and table["error_percent"].abs().max() < 1e-6
    assert (tmp_path / "predicted.md").read_text().count("costs are from here") == 2
    with pytest.raises(SystemExit, match="--costs_of none was not run for grpo at 8: unpatched, all on"):
        study("predict", "--results", tmp_path, "--trace", trace, "--costs_of", "none")


POLICIES = ["unpatched:8", "unpatched:16@prompts", "fixed:8+tail:1", "fixed:8+shuffled", "sagc"]


def test_policies_of_a_comparison_are_predicted_with_its_settings(study, small, trace, tmp_path, monkeypatch):
    module = small("predict.run", REPETITIONS=2)
    settings = {"max_straggler_rate": 0.3, "straggler_ratio": 2.5, "tradeoff": 2.0}
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    columns = ["algorithm", "policy", "seed", "step", *module.SECONDS]
    pd.DataFrame(columns=columns).to_csv(tmp_path / "steps.csv", index=False)
    simulate, rows = module.of_comparison(tmp_path, trace).simulate, []
    trained = {name: 2 * getattr(USUAL, name) for name in ("train_base", "train_per_token")}
    costs = replace(OTHER, **trained)  # logs do not say what the optimizer takes
    for policy in POLICIES:
        parts = simulate(costs, ("grpo", policy), {"steps": 4})
        for step in range(5):
            row = {"algorithm": "grpo", "policy": policy, "seed": 0, "step": step}
            rows.append(row | {name: parts[name] * (100 if step == 0 else 1) for name in module.PARTS})
    frame = pd.DataFrame(rows).reindex(columns=columns).fillna(0.0)
    slow = frame["policy"] == "fixed:8+shuffled"
    frame.loc[slow, module.SECONDS] *= 1.25
    frame.to_csv(tmp_path / "steps.csv", index=False)
    study("predict", "--results", tmp_path, "--trace", trace)
    table = pd.read_csv(tmp_path / "predicted.csv").set_index("policy")
    assert table.loc["fixed:8+shuffled", "error_percent"] == pytest.approx(-20)
    assert table.drop("fixed:8+shuffled")["error_percent"].abs().max() < 1e-6 and (table["steps"] == 4).all()
    for policy in POLICIES:  # prompts and samples of a simulated first step are those of the measured one
        prompts, size = module.first_step_of(module.parse_policy(policy))
        words = flags_of(policy, "grpo", 0, settings)[1]
        measured = [words[words.index(f"--rollout.{name}") + 1] for name in ("batch_size", "n_samples_per_prompt")]
        assert measured == [str(prompts), str(size)]
    with pytest.raises(SystemExit, match="predict: --trace is required, as .*settings.json names no task"):
        study("predict", "--results", tmp_path)
    (tmp_path / "settings.json").unlink()
    with pytest.raises(SystemExit, match="predict: there is no .*settings.json: run eval/compare.py or the study"):
        study("predict", "--results", tmp_path, "--trace", trace)


# --- what parts cost, and grades --------------------------------------------------------------------------------------


def test_overheads_are_measured(study, small):
    scheduler, controller = import_module("studies.overhead.scheduler"), import_module("studies.overhead.controller")
    table = scheduler.measure(groups=(256,), engines=4, repeats=3)
    assert (table["in_flight"] >= 256).all() and (table["dispatched"] >= table["in_flight"]).all()
    per_group = 1e3 * table["seconds"] / table["dispatched"]
    assert table["seconds_per_1000"].tolist() == pytest.approx(per_group.tolist(), rel=0.5)
    small("overhead.controller", measure=lambda measure=controller.measure: measure(rollouts=256, repeats=3))
    table = pd.read_csv(study("overhead", "controller") / "controller.csv")
    assert table["rollouts"].unique().tolist() == [256] and (table["median_ms"] > 0).all()


@pytest.mark.parametrize("name", ["ours", "unpatched"])
def test_a_step_of_each_driver_has_seconds_in_every_part(name):
    parts = import_module("studies.overhead.driver").measured_apart(name, 64, 4, tokens=32)
    assert parts.keys() == {"dispatch", "answers", "samples", "decisions", "experience", "handover", "ray's calls"}
    assert min(parts.values()) > 0


def test_forward_batches_are_cut_by_both_trees():
    table = import_module("studies.overhead.partition").measure([(256, 4)]).set_index("tree")
    assert table.index.tolist() == ["patched", "unpatched"] and (table["batches"] % 4 == 0).all()
    patched = table.loc["patched"]
    assert patched["above"] == 0 and patched["largest"] <= 1 and patched["busy_7b"] > table.loc["unpatched", "busy_7b"]


def test_what_a_driver_serves_follows_from_the_nearest_sizes():
    driver, sizes = import_module("studies.overhead.driver"), [100, 1000, 10_000]
    seconds = [0.5 * size**1.1 / 1000 for size in sizes]
    assert driver.exponent_of(sizes, seconds) == pytest.approx(1.1)
    assert driver.served(sizes, seconds) == pytest.approx((3000 / 0.5) ** (1 / 1.1))


@pytest.mark.parametrize("tokens", [256, 3000])
def test_a_made_up_tokenizer_is_as_large_as_it_should_be(tokens):
    tokenizer = import_module("studies.overhead.dispatch").made_up_tokenizer(tokens)
    assert len(tokenizer) == tokens and tokenizer("a text")["input_ids"] != []


def test_graders_are_counted_on_cases_whose_verdict_is_known(study, small, tmp_path):
    module = small("grader.run", FILES={"GSM8K": ("gsm8k_test", "question", "answer", "answer")}, OTHERS=1)
    small("grader.run", FORMS=tmp_path / "forms.csv", GRADERS={"this project": module.ours})
    (tmp_path / "forms.csv").write_text("gold,answer,equal\n1/2,0.5,1\n1/2,0.6,0\n")
    lines = [json.dumps({"question": "?", "answer": f"so it is\n#### {number}"}) for number in (12, 34)]
    (tmp_path / "gsm8k_test.jsonl").write_text("\n".join(lines))
    table = pd.read_csv(study("grader", "--data", tmp_path) / "table.csv")
    assert (table["this project"] == table["cases"]).all() and table["cases"].sum() > 10


def test_every_study_with_a_command_is_tried_in_this_room():
    texts = "".join(file.read_text() for file in (ROOT / "tests/unit/eval").glob("test_*.py"))
    assert all(f'study("{name}"' in texts for name in NAMES)
    assert Workload()  # the made-up rollouts that most of them share

"""Each study once in small: what it writes, and the one thing that its table is read for."""

import argparse
import json
from importlib import import_module

import pandas as pd
import pytest
from cpu_stack import ROOT
from lib.paths import STUDIES
from lib.simulation.workloads import Workload
from lib.synthetic_reward import checksum

from openrlhf_sagc.arguments import PREFIX, add_arguments

NAMES = sorted(file.parent.name for file in STUDIES.glob("*/run.py"))


def test_a_name_that_is_none_is_answered_with_all(study, capsys):
    with pytest.raises(
        SystemExit, match=f"^eval/studies: prompt_sizes is not a study: give one of {', '.join(NAMES)}$"
    ):
        study("prompt_sizes")
    study("--help")
    lines = capsys.readouterr().out.splitlines()[2:]
    assert [line.split()[0] for line in lines] == NAMES and all(len(line.split()) > 5 for line in lines)


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
    assert rows["trained_length_ratio"]["fixed:8+tail:sort"] == pytest.approx(1, abs=0.03)


def test_the_default_is_compared_with_the_best_method_of_each_size(study, small):
    small("sorted_steps.sizes", STEPS=1)
    rows = pd.read_csv(
        study("sorted_steps", "sizes", "--shapes", "128x8", "--gpus", 4, 64, "--caps", 512) / "sizes.csv"
    )
    # Engines of 64 GPUs have a slot for each rollout.
    assert rows[["gpus", "slots"]].drop_duplicates().to_numpy().tolist() == [[4, 128], [4, 512], [64, 128]]
    best = rows[["plain", "stop", "sort"]].max(axis=1)
    assert rows["of the best"].tolist() == pytest.approx((rows["auto"] / best).tolist(), rel=1e-3)
    assert (rows["plain"] == 1).all() and rows["filter"].tolist() == [False, True] * 3


def test_the_default_is_compared_with_plain_steps_for_each_set_of_lengths(study, small):
    module = small("sorted_steps.lengths", PROMPTS=128, EPISODES=1)
    sets = dict([*module.SETS.items()][-1:])
    small("sorted_steps.lengths", SETS=sets)
    rows = pd.read_csv(study("sorted_steps", "lengths", "--gpus", 16, "--seeds", 0) / "lengths.csv")
    assert rows[["filter", "prompts come"]].to_numpy().tolist() == [
        [f, c] for f in (False, True) for c in ("again", "once")
    ]
    assert rows["lengths"].unique().tolist() == [*sets] and rows["plain in vain"][:2].tolist() == [0, 0]
    assert (rows[["generation", "step"]] > 0).all(axis=None) and rows["length"].between(0.7, 1.3).all()
    made = pd.concat([rows.assign(seed=seed, generation=share) for seed, share in ((0, 0.4), (1, 0.4))])
    assert module.summary(made)["generation, %"].tolist() == ["40 [40, 40]"] * 4


def test_a_measured_method_is_compared_with_plain_steps_of_its_seed():
    """At the steps that all runs have; the first episode counts for rewards alone, and seeds differ by more than arms."""
    rows = []
    for seed, slower in ((0, 1.0), (1, 3.0)):
        for policy, seconds, reward, steps in (("fixed:8", 4.0, 0.5, 3), ("fixed:8+tail:sort", 2.0, 0.7, 4)):
            for step in range(1, steps + 1):
                took = slower * (seconds if step > 1 else 8.0)
                row = {"seed": seed, "policy": policy, "step": step, "reward": reward + seed / 10, "trained": 128}
                row |= {"generation": took / 2, "experience": 0.0, "training": took / 2, "sync": 0.0}
                more = {"trained_length": 50.0 * slower, "wasted_tokens": 1600.0 * slower * (seconds == 2.0)}
                rows.append(row | more | ({"reward": 99.0} if step == 4 else {}))
    table = import_module("studies.sorted_steps.measured").against_plain(pd.DataFrame(rows), "fixed:8", 1)
    plain, sort = table.to_dict("records")
    assert (plain["steps"], plain["reward"], plain["s a step"], plain["length, %"]) == (3, "0.550", "8.00", "")
    assert sort["reward minus plain"] == "0.200 [0.200, 0.200]" and sort["tokens wasted, %"] == "20.0"
    assert sort["after the first episode"] == sort["generation after it"] == "2.00 [2.00, 2.00]"
    assert sort["step, times as fast"] == "1.33 [1.33, 1.33]" and sort["length, %"] == "0.00 [0.00, 0.00]"


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
def test_a_step_of_each_driver_has_seconds_in_every_part(name, python, monkeypatch):
    monkeypatch.setattr("sys.executable", str(python))
    parts = import_module("studies.overhead.driver").measured_apart(name, 64, 4, tokens=32)
    assert parts.keys() == {"dispatch", "answers", "samples", "decisions", "experience", "handover", "ray's calls"}
    assert min(parts.values()) > 0


def test_forward_batches_are_cut_by_both_trees(python, monkeypatch):
    monkeypatch.setattr("sys.executable", str(python))
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

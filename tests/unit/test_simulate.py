"""Simulated training against the scheduler of training, traces, and the command."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from openrlhf_sagc.controller import StragglerAwareGroupController
from openrlhf_sagc.decisions.dynamic_sampling import DynamicSampler
from openrlhf_sagc.decisions.planner import StepPlanner
from openrlhf_sagc.decisions.tail_batching import NoTailBatching, TailBatcher

ROOT = Path(__file__).parents[2]
TRACES = ROOT / "../shared/data/traces"
sys.path.insert(0, str(ROOT / "eval"))

import calibrate  # noqa: E402
import simulate  # noqa: E402
from engine_model import CostModel  # noqa: E402
from rollout_lengths import LogNormal, Trace  # noqa: E402
from simulated_training import SimulatedTraining  # noqa: E402

sys.path.remove(str(ROOT / "eval"))

# A token of every rollout takes a second, whatever runs beside it.
ONE_TOKEN_A_SECOND = CostModel(1.0, 0.0, 0.0, 0.0, 1000, 10**6, 1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


class Prompts:
    """A source of prompts 0, 1, ... in order, with respond(prompt, size) -> [(tokens, score), ...]."""

    def __init__(self, respond):
        self.respond, self.drawn, self.new = respond, [], 0

    def draw_prompts(self, count, generator):
        self.new += count
        return list(range(self.new - count, self.new))

    def draw_rollouts(self, prompts_B, size, generator):
        self.drawn += prompts_B
        groups = np.array([self.respond(prompt, size) for prompt in prompts_B])
        return groups[:, :, 0].astype(int), groups[:, :, 1]


def simulated(source, controller, sampler, costs=ONE_TOKEN_A_SECOND, *, gpus=1, seed=0, batcher=None, **settings):
    settings = {"hold": "samples", "samples": 16, "prompts": 4, "signal": "tokens"} | settings
    planner = StepPlanner(controller, sampler, batcher or NoTailBatching(), None, num_engines=gpus, **settings)
    return SimulatedTraining(planner, source, costs, gpus=gpus, prompt_tokens=3, seed=seed)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("hold", ["samples", "prompts"])
@pytest.mark.parametrize("filtering", [False, True])
@pytest.mark.parametrize("tail", [False, True])
def test_steps_are_those_of_the_scheduler_of_training(make_generator, tail, filtering, hold, seed):
    """openrlhf_sagc/driver/rollout.py on engines that decode a token a tick: same prompts, sizes, rounds, stops and clock."""

    def respond(prompt, size):
        random = np.random.default_rng([seed, prompt])
        tokens = random.integers(5, 12, size) * np.where(random.random(size) < 0.1, 5, 1)
        return list(zip(tokens.tolist(), (random.random(size) < 0.3).astype(float).tolist()))

    trained = make_generator(2000, respond, filtering=filtering, hold=hold, rollout__tail_batching__enable=tail)
    source = Prompts(respond)
    controller = StragglerAwareGroupController([4, 8], initial_group_size=4)
    sampler, batcher = DynamicSampler(tolerance=1e-6 if filtering else None), TailBatcher() if tail else None
    run = simulated(source, controller, sampler, hold=hold, batcher=batcher)
    sizes, rounds = set(), set()
    for _ in range(12):
        samples = trained.generate_samples()[0]
        step = run.step()
        metrics = trained.metrics
        sizes.add(step["group_size"])
        assert source.drawn == trained.drawn
        assert run.cluster.now == trained.ray.clock
        assert (step["samples"], step["group_size"]) == (len(samples), metrics["sagc/group_size"])
        assert step["dispatched"] == metrics["dynamic_filtering/dispatched"]
        assert step["straggler_rate"] == metrics["sagc/straggler_rate"]
        assert step["tokens_max"] == metrics["rollout/response_length_max"]
        assert run.planner.controller.state_dict() == trained.planner.controller.state_dict()
        assert run.planner.sampler.state_dict() == trained.planner.sampler.state_dict()
        if tail:
            assert run.planner.batcher.metrics() == trained.planner.batcher.metrics()
            rounds.add(step["long_round"])
    assert sizes == {4, 8} and rounds == ({0, 1} if tail else set())


def test_decisions_are_those_of_a_controller_fed_the_same_groups():
    """And do not depend on the engines, where lengths are tokens and no group is stopped."""
    source, sizes, samples = LogNormal(100, 0.5, 0.8, 2000), (4, 8, 16), 64
    alone, generator, expected = StragglerAwareGroupController(sizes), np.random.default_rng(5), []
    for _ in range(40):
        expected.append(alone.group_size)
        prompts = source.draw_prompts(samples // alone.group_size, generator)
        alone.observe(source.draw_rollouts(prompts, alone.group_size, generator)[0].tolist())
    assert len(set(expected)) > 1
    for gpus, costs in ((1, ONE_TOKEN_A_SECOND), (7, CostModel.load(ROOT / "eval/engines/h100-7b.json"))):
        controller = StragglerAwareGroupController(sizes)
        run = simulated(source, controller, DynamicSampler(tolerance=None), costs, gpus=gpus, samples=samples, seed=5)
        assert [run.step()["group_size"] for _ in range(40)] == expected


def test_figures_of_a_step():
    """Two groups of four on two engines of one slot a second; costs a token and GPU."""
    lengths = {0: [1, 2, 3, 4], 1: [10, 10, 10, 40]}
    costs = CostModel(1.0, 0.0, 0.0, 0.0, 4, 1000, 1, 0.5, 0.25, 0.01, 0.125, 0.02, 2.0)
    source = Prompts(lambda prompt, size: [(tokens, 0.0) for tokens in lengths[prompt]])
    step = simulated(
        source, StragglerAwareGroupController([4]), DynamicSampler(tolerance=None), costs, gpus=2, samples=8
    ).step()
    tokens = 80 + 8 * 3
    assert step["generation_seconds"] == 0.5 + 40 and step["sync_seconds"] == 2
    assert step["experience_seconds"] == pytest.approx(0.25 + 0.01 * tokens / 2)
    assert step["train_seconds"] == pytest.approx(0.125 + 0.02 * tokens / 2)
    assert step["seconds"] == pytest.approx(sum(value for name, value in step.items() if name.endswith("_seconds")))
    assert step["idle_fraction"] == pytest.approx(1 - 80 / 8 / 40)
    assert (step["straggler_rate"], step["tokens_max"], step["rollouts"], step["dispatched"]) == (0.5, 40, 8, 2)


def test_seconds_leave_out_the_wait_for_a_slot():
    costs = CostModel(1.0, 0.0, 0.0, 0.0, 1, 1000, 1, *[0.0] * 6)
    seen = []
    controller = StragglerAwareGroupController([4])
    controller.observe = lambda groups, running: seen.append(groups)
    source = Prompts(lambda prompt, size: [(10, 0.0)] * 4)
    run = simulated(source, controller, DynamicSampler(tolerance=None), costs, samples=4, signal="seconds")
    step = run.step()
    assert seen == [[[10.0] * 4]] and step["generation_seconds"] == 40


def test_a_step_that_cannot_be_filled_ends_the_run():
    source = Prompts(lambda prompt, size: [(10, 1.0)] * size)
    run = simulated(source, StragglerAwareGroupController([4]), DynamicSampler(max_gen_batches=2))
    with pytest.raises(RuntimeError, match=r"8 prompts of 4 samples gave 0 of the 4 groups .*dropped: 8 all right"):
        run.step()


HEADER = "prompt_id,sample_id,tokens,correct,truncated\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: no column prompt_id, sample_id, tokens; found nothing"),
        ("prompt_id,tokens\na,1\n", "line 1: no column sample_id; found prompt_id, tokens"),
        ("prompt_id,sample_id,tokens,tokens\na,0,1,1\n", "line 1: a column has the name of another one"),
        ("x" * 200_000 + "\na\n", "line 1: field larger than field limit"),
        (HEADER, "line 2: no rollouts below the header"),
        (HEADER + "a,0,5,1,0\na,1,5.5,1,0\n", "line 3: tokens must be a whole number from 0 to 999999999, got 5.5"),
        (HEADER + "a,0,-5,1,0\n", "line 2: tokens must be a whole number .* got -5"),
        (HEADER + "a,0,nan,1,0\n", "line 2: tokens must be a whole number .* got nan"),
        (HEADER + "a,0,,1,0\n", "line 2: tokens must be a whole number .* got nothing"),
        (HEADER + "a,0,9999999999,1,0\n", "line 2: tokens must be a whole number .* got 9999999999"),
        (HEADER + "a,0,5,1,0\n\na,0,6,1,0\n", "line 4: prompt_id a, sample_id 0 are those of line 2"),
        (HEADER + "a,0,5,2,0\n", "line 2: correct must be 0 or 1, got 2"),
        (HEADER + "a,0,5,1,yes\n", "line 2: truncated must be 0 or 1, got yes"),
        (HEADER + "a,0,5,1,\na,1,5,,0\n", "line 3: correct is empty: give it in all lines or in none"),
        (HEADER + "a,0,5,1\n", "line 2: not 5 fields as in line 1"),
        (HEADER + "a,0,5,1,0,7\n", "line 2: not 5 fields as in line 1"),
    ],
)
def test_bad_traces_are_refused_with_the_line(text, message, tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"trace.csv {message}"):
        Trace(path)


def test_a_trace_that_cannot_be_read_is_refused(tmp_path):
    (tmp_path / "trace.csv").write_bytes(b"prompt_id\xff")
    for path in (tmp_path / "trace.csv", tmp_path / "none.csv"):
        with pytest.raises(ValueError, match=f"{path.name} cannot be read as text: "):
            Trace(path)


def test_groups_of_a_trace_are_of_one_prompt_with_its_verdicts(tmp_path):
    path = tmp_path / "trace.csv"
    rows = {"a": [(1, 1), (2, 0)], "b": [(10, 0)], "c": [(20, 1), (21, 0), (22, 1)]}
    lines = [f"{prompt},{i},{n},{right}" for prompt, group in rows.items() for i, (n, right) in enumerate(group)]
    path.write_text("prompt_id,sample_id,tokens,correct\n" + "\n".join(lines))
    trace, generator = Trace(path), np.random.default_rng(0)
    prompts = trace.draw_prompts(300, generator)
    tokens_BG, correct_BG = trace.draw_rollouts(prompts, 20, generator)
    assert trace.has_correct and tokens_BG.shape == correct_BG.shape == (300, 20)
    groups = {frozenset(zip(*group)) for group in zip(tokens_BG.tolist(), correct_BG.astype(int).tolist())}
    assert groups == {frozenset(group) for group in rows.values()}
    assert all(len(set(group)) == 1 for group in trace.draw_rollouts([1], 4, generator)[0])  # b has a single sample
    of_c, _ = trace.draw_rollouts([2] * 50, 3, generator)
    assert all(len(set(group)) == 3 for group in of_c.tolist()) and len({*map(tuple, of_c.tolist())}) == 6


def test_lognormal_lengths_have_their_moments_and_cap():
    source, generator = LogNormal.parse(
        "lognormal:median=500,between=0.6,within=0.3,cap=100000"
    ), np.random.default_rng(0)
    logs = np.log(source.draw_rollouts(source.draw_prompts(4000, generator), 8, generator)[0])
    assert np.median(logs) == pytest.approx(math.log(500), abs=0.03)
    assert logs.std(axis=1, ddof=1).mean() == pytest.approx(0.3, rel=0.05)
    assert logs.mean(axis=1).std() == pytest.approx(math.sqrt(0.6**2 + 0.3**2 / 8), rel=0.05)
    capped = LogNormal(500, 0.6, 0.3, 400)
    assert capped.draw_rollouts(capped.draw_prompts(50, generator), 8, generator)[0].max() == 400


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("normal:median=1,between=1,within=1,cap=9", "does not have the form lognormal:median=TOKENS"),
        ("lognormal:median=1,between=1,within=1", "does not have the form"),
        ("lognormal:median=1,between=x,within=1,cap=9", "does not have the form"),
        ("lognormal:median=0,between=1,within=1,cap=9", "median and cap must be at least 1"),
        ("lognormal:median=1,between=-1,within=1,cap=9", "between and within at least 0"),
        ("lognormal:median=1,between=nan,within=1,cap=9", "all finite"),
        ("lognormal:median=1,between=1,within=1,cap=9.5", "cap and prompts must be whole numbers"),
        ("lognormal:median=1,between=1,within=1,cap=9,prompts=0.5", "cap and prompts must be whole numbers"),
    ],
)
def test_bad_distributions_are_refused(words, message):
    with pytest.raises(ValueError, match=message):
        LogNormal.parse(words)


@pytest.fixture
def trace(tmp_path):
    generator = np.random.default_rng(0)
    tokens = generator.lognormal(5, 0.8, (30, 12)).astype(int)
    correct = generator.random((30, 12)) < 0.5
    lines = [f"p{i},{j},{tokens[i, j]},{correct[i, j]:d}" for i in range(30) for j in range(12)]
    path = tmp_path / "trace.csv"
    path.write_text("prompt_id,sample_id,tokens,correct\n" + "\n".join(lines))
    return path


@pytest.fixture
def command(monkeypatch, trace, tmp_path):
    """command(*flags) -> the JSON that simulate.py writes in this process for a small step on `trace`."""

    def run(*flags):
        small = ["--steps", "5", "--batch_size", "8", "--json", str(tmp_path / "out.json")]
        monkeypatch.setattr(sys, "argv", ["simulate.py", "--trace", str(trace), *small, *flags])
        simulate.main()
        return (tmp_path / "out.json").read_text()

    return run


def test_the_command_that_others_script_against(trace, tmp_path):
    out, table, image = (tmp_path / name for name in ("out.json", "out.csv", "out.png"))
    flags = ["--trace", str(trace), "--policies", "fixed:8,fixed:16,sagc", "--json", str(out)]
    more = ["--csv", str(table), "--plot", str(image), "--gpus", "1", "4", "--steps", "5"]
    run = subprocess.run([sys.executable, "eval/simulate.py", *flags, *more], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    content = json.loads(out.read_text())
    assert content["settings"]["group_sizes"] == [4, 8, 16, 32] and content["settings"]["max_straggler_rate"] == 0.2
    assert content["engine"] == vars(CostModel.load(ROOT / "eval/engines/h100-7b.json"))
    rows = content["rows"]
    policies = ["fixed:8@samples", "fixed:16@samples", "sagc@samples"]
    assert [(row["gpus"], row["policy"]) for row in rows] == [(gpus, policy) for gpus in (1, 4) for policy in policies]
    for row in rows:
        assert all(math.isfinite(value) for name, value in row.items() if name != "policy")
        assert row["samples"] == 1024 and row["steps"] == 5 and row["rollouts"] == 5 * 1024
        assert row["samples_an_hour"] == pytest.approx(1024 * 3600 / row["seconds"])
        assert 0 < row["idle_fraction"] < 1 and 0 <= row["straggler_rate"] <= 1
    assert [row["group_size"] for row in rows[:2]] == [8, 16] and rows[0]["prompts"] == 128
    assert rows[0]["generation_seconds"] > rows[3]["generation_seconds"]  # more engines
    assert len(pd.read_csv(table)) == len(rows) and image.stat().st_size > 10_000
    assert "rollouts simulated in" in run.stdout and "sagc@samples" in run.stdout


def test_same_seed_same_json(command):
    flags = ["--policies", "sagc,fixed:4@prompts", "--dynamic_sampling", "--gpus", "3"]
    first = command(*flags)
    assert command(*flags) == first
    assert json.loads(command(*flags, "--seed", "1"))["rows"] != json.loads(first)["rows"]


def test_a_policy_names_what_its_steps_keep(command):
    rows = json.loads(command("--policies", "fixed:16,fixed:16@samples,sagc", "--hold", "prompts"))["rows"]
    assert [row["policy"] for row in rows] == ["fixed:16@prompts", "fixed:16@samples", "sagc@prompts"]
    assert [(row["prompts"], row["samples"]) for row in rows[:2]] == [(8, 128), (4, 64)]
    assert rows[2]["samples"] == pytest.approx(8 * rows[2]["group_size"])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--policies", "fixed:x"], "--policies fixed:x must be fixed:N or sagc, with .tail"),
        (["--policies", "sagc@tokens"], "--policies sagc@tokens must be fixed:N or sagc"),
        (["--policies", "sagc:8"], "--policies sagc:8 must be fixed:N or sagc"),
        (["--policies", "fixed:8,fixed:5"], "--policies fixed:5: a group size of 5 .* does not divide the 64 samples"),
        (["--policies", "fixed:1@prompts"], "a group size of 1 is below 2"),
        (
            ["--policies", "sagc", "--group_sizes", "4", "16"],
            "--group_sizes 4 16 do not hold --n_samples_per_prompt 8",
        ),
        (["--policies", "sagc", "--max_straggler_rate", "2"], "--max_straggler_rate must lie between 0 and 1, got 2"),
        (["--max_gen_batches", "0"], "--max_gen_batches must be at least 1, got 0"),
        (["--gpus", "0"], "--gpus 0 is no multiple of the 1 GPUs of an engine"),
        (["--steps", "0"], "--steps must be at least 1, got 0"),
        (["--csv", "no/out.csv"], "--csv no/out.csv: there is no folder no"),
        *((["--" + name, "."], f"--{name} .: it is a folder: give a file") for name in ("json", "csv", "plot")),
        (["--engine", "no.json"], "no.json is not a JSON file that can be read"),
        (["--prompt_tokens", "10000000"], "kv_limit 571987 is less than a rollout of 1000"),
    ],
)
def test_bad_flags_are_refused_in_one_line(command, flags, message):
    with pytest.raises(SystemExit, match=f"^eval/simulate.py: .*{message}") as error:
        command(*flags)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("gpus", [[1], [1, 4]])
def test_policies_are_told_apart_in_the_plot(gpus, tmp_path, monkeypatch):
    kinds = [kind + more for kind in ("fixed:8", "sagc") for more in ("", "+tail", "+lengths", "+tail+lengths")]
    rows = [
        {"gpus": n, "policy": f"{kind}@samples", **dict.fromkeys(simulate.PANELS, 1)} for n in gpus for kind in kinds
    ]
    monkeypatch.setattr(simulate.plt, "close", lambda figure: None)
    simulate.plot(pd.DataFrame(rows), 0.2, tmp_path / "plot.png")
    lines = [line for line in simulate.plt.gcf().axes[0].get_lines() if line.get_label() in kinds]
    monkeypatch.undo()
    simulate.plt.close("all")
    points = {(str(line.get_color()), line.get_marker(), line.get_fillstyle()) for line in lines}
    strokes = {(str(line.get_color()), line.get_linestyle()) for line in lines}
    assert len(points) == len(strokes) == len(kinds)


def test_dynamic_sampling_needs_verdicts(command, trace):
    lines = trace.read_text().splitlines()
    trace.write_text("\n".join(line.rpartition(",")[0] for line in lines))
    with pytest.raises(SystemExit, match="--dynamic_sampling needs a --trace with the column correct"):
        command("--dynamic_sampling")
    trace.write_text("\n".join([lines[0], *(line[:-1] + "1" for line in lines[1:])]))
    with pytest.raises(SystemExit, match="--max_gen_batches 10 reached, fixed:8@samples, step 1: .* all right"):
        command("--dynamic_sampling")


@pytest.mark.skipif(not TRACES.is_dir(), reason="the real traces are not here")
def test_real_traces():
    trace = Trace(TRACES / "qwen25math_math100_n8.csv")
    assert trace.samples_per_prompt.tolist() == [8] * 100 and trace.has_correct
    assert sorted(Trace(TRACES / "deepscaler_1p5b_aime24_n3_cap16k.csv").samples_per_prompt) == [2] * 18 + [3] * 12
    with pytest.raises(ValueError, match="line 1: no column prompt_id, sample_id, tokens; found tokens_lo"):
        Trace(TRACES / "servegen_deepseek_r1_output_hist.csv")


def timed_log(costs, source, hold, size, steps):
    """What TensorBoard would hold of steps that cost this, their groups drawn from `source`."""
    generator = np.random.default_rng(size)
    groups = calibrate.SAMPLES // size if hold == "samples" else calibrate.PROMPTS
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
    return log.assign(**{"timing/step_total": log[list(calibrate.PARTS.values())].sum(axis=1)})


def test_calibration_refuses_a_folder_for_its_costs_before_it_trains(tmp_path, monkeypatch):
    (tmp_path / "model").mkdir()
    monkeypatch.setattr(sys, "argv", ["calibrate.py", "--task", str(tmp_path), "--engine", str(tmp_path)])
    with pytest.raises(SystemExit, match="^eval/calibrate.py: --engine .*: it is a folder: give a file$"):
        calibrate.main()


def test_calibration_finds_the_costs_behind_a_log_and_predicts_a_size_left_out(trace, tmp_path):
    costs = CostModel(
        decode_base=2e-3,
        decode_per_request=3e-5,
        prefill_per_token=1e-4,
        generation_base=0.1,
        experience_base=0.03,
        experience_per_token=2e-5,
        train_base=0.02,
        train_per_token=7e-5,
        sync=0.13,
        **calibrate.GIVEN,
    )
    source = Trace(trace)
    runs = [(hold, size) for hold in calibrate.HOLDS for size in calibrate.SIZES]
    logs = [calibrate.features(timed_log(costs, source, *run, 1000)).assign(hold=run[0], size=run[1]) for run in runs]
    steps = pd.concat(logs).assign(round=0)
    assert vars(calibrate.fit(steps)) == pytest.approx(vars(costs), rel=1e-6)
    table = calibrate.leave_one_size_out(steps, source)
    assert table["error_percent"].abs().max() < 5 and len(table) == 8
    steps.loc[steps["size"] == 32, "seconds"] *= 2
    table = calibrate.leave_one_size_out(steps, source)
    assert table[table["size"] == 32]["error_percent"].between(-53, -47).all()
    assert calibrate.markdown(table).count("\n") == 10
    calibrate.plot(table, tmp_path / "calibration.png")
    assert (tmp_path / "calibration.png").stat().st_size > 10_000


def test_prompts_of_many_episodes_come_again():
    rng = np.random.default_rng(0)
    few = LogNormal.parse("lognormal:median=100,between=1,within=0.2,cap=9999,prompts=5")
    assert len(set(few.draw_prompts(200, rng))) == 5
    assert set(few.draw_prompts(200, rng)) == set(few.draw_prompts(200, np.random.default_rng(7)))
    new = LogNormal.parse("lognormal:median=100,between=1,within=0.2,cap=9999")
    assert len(set(new.draw_prompts(200, rng))) == 200

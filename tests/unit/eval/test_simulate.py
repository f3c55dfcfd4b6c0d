"""The command simulate.py."""

import json
import math
import subprocess
import sys

import pandas as pd
import pytest
import simulate
from cpu_stack import ROOT
from lib.simulation.costs import CostModel


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


def test_a_policy_may_bring_its_response_ratio(command):
    named = json.loads(command("--policies", "sagc+tail:1.25"))["rows"]
    flagged = json.loads(command("--policies", "sagc+tail:stop", "--response_ratio", "1.25"))["rows"]
    assert [row.pop("policy") for row in named + flagged] == ["sagc+tail:1.25@samples", "sagc+tail:stop@samples"]
    assert named == flagged != json.loads(command("--policies", "sagc+tail:stop"))["rows"]


def test_a_policy_names_what_its_steps_keep(command):
    rows = json.loads(command("--policies", "fixed:16,fixed:16@samples,sagc", "--hold", "prompts"))["rows"]
    assert [row["policy"] for row in rows] == ["fixed:16@prompts", "fixed:16@samples", "sagc@prompts"]
    assert [(row["prompts"], row["samples"]) for row in rows[:2]] == [(8, 128), (4, 64)]
    assert rows[2]["samples"] == pytest.approx(8 * rows[2]["group_size"])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--policies", "fixed:x"],
            "--policies fixed:x: use fixed:N or sagc or FILE.py:Class or pool:R; behind fixed:N or sagc or FILE",
        ),
        (
            ["--policies", "unpatched:8"],
            "--policies unpatched:8: use fixed:N or sagc or FILE.py:Class or pool:R; behind",
        ),
        (["--policies", "sagc@tokens"], "--policies sagc@tokens: use fixed:N or sagc"),
        (["--policies", "sagc:8"], "--policies sagc:8: use fixed:N or sagc"),
        (["--policies", "fixed:8,fixed:5"], "--policies fixed:5: a group size of 5 .* does not divide the 64 samples"),
        (["--policies", "fixed:1@prompts"], "a group size of 1 is below 2"),
        (
            ["--policies", "sagc", "--group_sizes", "4", "16"],
            "--group_sizes 4 16 do not hold --n_samples_per_prompt 8",
        ),
        (["--policies", "sagc", "--max_straggler_rate", "2"], "--max_straggler_rate must lie between 0 and 1, got 2"),
        (["--max_gen_batches", "0"], "--max_gen_batches must be at least 1, got 0"),
        (["--gpus", "0"], "--gpus 0 is not a multiple of the 1 GPUs of an engine"),
        (["--steps", "0"], "--steps must be at least 1, got 0"),
        (["--csv", "no/out.csv"], "--csv no/out.csv: there is no folder no"),
        *((["--" + name, "."], f"--{name} .: it is a folder: give a file") for name in ("json", "csv", "plot")),
        (["--engine", "no.json"], "no.json is not a JSON file that can be read"),
        (
            ["--gpus", "65", "--micro_batches", "length"],
            "--micro_batches length: a step of 64 samples is too small for 65 GPUs",
        ),
        (["--prompt_tokens", "10000000"], "kv_limit 571987 is less than a rollout of 1000"),
    ],
)
def test_bad_flags_are_refused_in_one_line(command, flags, message):
    with pytest.raises(SystemExit, match=f"^eval/simulate.py: .*{message}") as error:
        command(*flags)
    assert "\n" not in str(error.value)


def test_dynamic_sampling_needs_verdicts(command, trace):
    lines = trace.read_text().splitlines()
    trace.write_text("\n".join(line.rpartition(",")[0] for line in lines))
    with pytest.raises(SystemExit, match="--dynamic_sampling needs a --trace with the column correct"):
        command("--dynamic_sampling")
    trace.write_text("\n".join([lines[0], *(line[:-1] + "1" for line in lines[1:])]))
    with pytest.raises(SystemExit, match="--max_gen_batches 10 reached, fixed:8@samples, step 1: .* all right"):
        command("--dynamic_sampling")


def test_flags_of_a_faster_step_make_it_faster(command):
    split = ["--policies", "fixed:8", "--gpus", "4", "--actor_gpus", "2", "--micro_batch_size", "4"]
    flags = [
        ["--micro_batches", "shuffled"],
        ["--old_log_probs", "auto", "--micro_batches", "shuffled"],
        ["--old_log_probs", "auto", "--micro_batches", "length"],
        ["--old_log_probs", "auto", "--micro_batches", "length", "--stream", "auto"],
    ]
    rows = [json.loads(command(*split, *more))["rows"][0] for more in flags]
    seconds = [row["seconds"] for row in rows]
    assert seconds == sorted(seconds, reverse=True) and len(set(seconds)) == len(seconds)
    assert ["hidden_seconds" in row for row in rows] == [False, False, False, True]
    assert len({row["generation_seconds"] for row in rows}) == 1


def test_a_run_that_cannot_stream_says_why(command):
    with pytest.raises(SystemExit, match="eval/simulate.py: --stream auto: training waits for all groups"):
        command("--stream", "auto")

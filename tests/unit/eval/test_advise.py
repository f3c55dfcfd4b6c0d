"""The command advise.py: its numbers are those of simulate.py, its advice follows the trace."""

import json
import sys

import advise
import pytest
import simulate
from comparison_runs import write_run
from cpu_stack import ROOT
from fake_engines import ONE_SIZE
from made_traces import write_trace

SMALL = ["--batch_size", "16", "--steps", "6"]


@pytest.fixture
def advised(monkeypatch, tmp_path, capsys):
    """advised(trace, *flags) -> the JSON of the command with four draws, and what it printed."""

    def run(trace, *flags):
        out = tmp_path / "advice.json"
        words = ["--trace", trace, *SMALL, "--draws", "4", "--jobs", "1", "--json", out, *flags]
        monkeypatch.setattr(sys, "argv", ["advise.py", *map(str, words)])
        advise.main()
        return json.loads(out.read_text()), capsys.readouterr().out

    return run


def test_the_numbers_are_those_of_the_simulator(advised, monkeypatch, tmp_path):
    trace = write_trace(tmp_path / "t.csv")
    flags = ["--gpus", "4", "--seed", "3", "--max_straggler_rate", "0.3", "--prompt_tokens", "20"]
    found, screen = advised(trace, *flags)
    assert found["settings"]["group_sizes"] == [4, 8, 16, 32] and "group sizes 32 are not tried" in screen
    for filtered in ([], ["--dynamic_sampling"]):
        mine = {
            row["policy"]: row
            for row in found["rows"]
            if row["switch"].startswith("dynamic sampling") == bool(filtered)
        }
        words = [
            "--trace",
            trace,
            *SMALL,
            *flags,
            "--policies",
            ",".join(mine),
            "--json",
            tmp_path / "s.json",
            *filtered,
        ]
        words += ["--group_sizes", "4", "8", "16"]
        monkeypatch.setattr(sys, "argv", ["simulate.py", *map(str, words)])
        simulate.main()
        theirs = json.loads((tmp_path / "s.json").read_text())["rows"]
        assert len(theirs) == len(mine) == (2 if filtered else 9)
        for row in theirs:
            own = mine[row.pop("policy").partition("@")[0]]
            assert row.pop("gpus") == 4
            assert {name: own[name] for name in row} == pytest.approx(row, rel=1e-12)
    base = found["rows"][0]
    for row in found["rows"]:
        if row["policy"].startswith("fixed") and not row["switch"].startswith("dynamic sampling"):
            size = row["group_size"]
            effective = (1 - 1 / size) * row["samples_an_hour"] / ((1 - 1 / 8) * base["samples_an_hour"])
            assert row["gain"] == pytest.approx(effective - 1)


def test_a_tail_between_prompts_is_for_tail_batching(advised, tmp_path):
    trace = write_trace(tmp_path / "t.csv", prompts=80, between=1.2, within=0.1, median=2000, success=None)
    flags = ["--gpus", "16", "--batch_size", "32", "--steps", "12", "--group_sizes", "8", "--plot", tmp_path / "a.png"]
    found, screen = advised(trace, *flags)
    assert found["advice"]["switch"] == "tail batching" and found["tail"]["between"] > 0.8
    assert found["advice"]["flags"] == "--rollout.tail_batching.enable"
    assert "Advice: tail batching. It gains +" in screen and (tmp_path / "a.png").stat().st_size > 10_000
    row = found["rows"][1]
    assert 0.12 < row["low"] < row["gain"] < row["high"]
    assert "not calibrated: no step was measured" in screen


def test_lengths_without_a_tail_need_no_switch(advised, tmp_path):
    trace = write_trace(tmp_path / "t.csv", between=0.05, within=0.05, success=None)
    found, screen = advised(trace, "--group_sizes", "8", "--gpus", "1")
    assert found["advice"]["switch"] is None and found["advice"]["flags"] == "" and "Advice: none." in screen


def test_the_trace_of_a_run_is_advised_on(advised, make_generator, tmp_path):
    """Of the scheduler on stub engines: 60 prompts, groups of four, one straggler in three groups."""

    def respond(prompt, size):
        return [
            (20 + prompt + (200 if not place and prompt % 3 == 0 else place), float(place % 2))
            for place in range(size)
        ]

    generator = make_generator(60, respond, rollout__trace=str(tmp_path / "run.csv"), **ONE_SIZE)
    for _ in range(15):
        generator.generate_samples()
    found, screen = advised(tmp_path / "run.csv", "--n_samples_per_prompt", "4", "--gpus", "2")
    assert "run.csv: 60 prompts with 4 rollouts, 240 in all, 50% correct" in screen
    assert found["tail"]["stragglers"] == pytest.approx(1 / 3, abs=0.1) and len(screen.splitlines()) < 40


def test_a_log_without_a_trace_gives_a_bound(monkeypatch, tmp_path, capsys):
    parts = {"timing/generation": 6.0, "timing/make_experience": 1.0, "timing/ppo_train": 2.0, "timing/broadcast": 0.5}
    write_run(tmp_path, [], [(float(step), parts | {"timing/step_total": 10.0}) for step in range(12)])
    monkeypatch.setattr(sys, "argv", ["advise.py", "--log", str(tmp_path / "tensorboard")])
    advise.main()
    assert "No switch makes a step more than 2.50 times as fast" in capsys.readouterr().out


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--gpus", "0"], "--gpus 0 is not a multiple of the 1 GPUs of an engine"),
        (["--draws", "3"], "--draws must be at least 4, got 3"),
        (["--dynamic_sampling"], "--dynamic_sampling needs a --trace with the column correct: drop one of them"),
        (["--engine", "none.json"], "none.json is not a JSON file that can be read"),
        (["--plot", "none/a.png"], "--plot none/a.png: there is no folder none: make it first"),
        (["--kind", "x"], None),
    ],
)
def test_bad_flags_are_one_line(advised, tmp_path, flags, message):
    with pytest.raises(SystemExit) as ended:
        advised(write_trace(tmp_path / "t.csv", success=None), *flags)
    assert ended.value.code == 2 if message is None else str(ended.value).startswith(f"eval/advise.py: {message}")


def test_the_engines_of_the_project_are_advised_on(advised, tmp_path):
    trace = write_trace(tmp_path / "t.csv", success=None)
    flags = ["--engine", ROOT / "eval/engines/cpu-2-cores.json", "--gpus", "1", "--group_sizes", "8"]
    assert "The simulator is calibrated: it predicted seconds a step" in advised(trace, *flags)[1]

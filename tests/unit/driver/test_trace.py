"""The trace of a run, on the engines of fake_engines.py: what its rows say, and that a resumed run has none twice."""

import csv
import json
import os
import subprocess
import sys

import pytest
from cpu_stack import ROOT
from fake_engines import MIXED, ONE_SIZE, prompts_of
from lib.simulation.lengths import Trace

from openrlhf_sagc.decisions.records import Back, Group, Prompt, Rollout, Round
from openrlhf_sagc.decisions.step import Step
from openrlhf_sagc.driver.trace import COLUMNS, HEADER, RunTrace, prompt_id

LOST = pytest.fail  # as `warn` where no row may be lost


@pytest.fixture
def file(tmp_path):
    return tmp_path / "traces" / "run.csv"  # whose folder the run makes


def rows_of(file):
    return list(csv.DictReader(file.read_text().splitlines()))


def mixed(prompt, size):
    """Prompt 1 has a straggler; the first of every two rollouts is correct."""
    return [(40 if prompt == 1 and not place else 5 + place, MIXED[place % 4]) for place in range(size)]


def test_a_row_a_rollout(make_generator, file):
    generator = make_generator(8, mixed, rollout__trace=str(file), **ONE_SIZE)
    trained = generator.generate_samples()[0]
    rows = rows_of(file)
    assert list(rows[0]) == list(COLUMNS) and len(rows) == len(trained) == 16
    (straggler,) = [row for row in rows if row["tokens"] == "40"]
    text = {"truncated": "0", "step": "1", "group_size": "4", "seconds": "40", "stopped": "0"}
    assert straggler == {"prompt_id": prompt_id(Prompt("1", "", None, 1)), "sample_id": "1-0"} | {
        "tokens": "40",
        "correct": "1",
        **text,
    }
    generator.generate_samples()
    assert [row["step"] for row in rows_of(file)] == ["1"] * 16 + ["2"] * 16
    assert file.stat().st_size < 50 * 32  # bytes


def test_a_prompt_has_one_id_in_all_episodes_and_its_label_counts():
    first = Prompt("2 + 2", "4", None, 1)
    assert prompt_id(first) == prompt_id(first._replace(episode=2, must_finish=True, stops=1))
    assert len({prompt_id(first), prompt_id(first._replace(label="5")), prompt_id(first._replace(text="2 + 3"))}) == 3
    assert prompt_id(first._replace(text="\ud800"))  # which no file could hold


def test_the_simulator_reads_all_but_stopped_rollouts(make_generator, file):
    """Under tail batching, whose short rounds stop the slowest; a rollout that no engine has begun has no row."""
    flags = {
        "rollout__tail_batching__enable": True,
        "rollout__tail_batching__method": "stop",
        "rollout__tail_batching__response_ratio": 1.0,
        **ONE_SIZE,
    }

    def respond(prompt, size):
        return [(90 if prompt == 1 else 5 + prompt, float(place % 2)) for place in range(size)]

    generator = make_generator(40, respond, rollout__trace=str(file), **flags)
    generator.generate_samples()
    rows = rows_of(file)
    stopped = [row for row in rows if row["stopped"] == "1"]
    assert len(stopped) == 4 and {(row["correct"], row["truncated"]) for row in stopped} == {("", "")}
    assert all(0 < int(row["tokens"]) < 90 for row in stopped)
    trace = Trace(file)
    assert trace.has_correct and sum(trace.samples_per_prompt) == len(rows) - 4


def back_of(number, rollouts, responses):
    return Back(Group(number, 0, Prompt("text", "", None, 1), 4, 4), rollouts, responses, [], None)


def trace_of(file, rollouts, responses, warn=LOST):
    trace = RunTrace(str(file), warn)
    step = Step(0, len(rollouts), 1, Round(True, 1.0, 1), 1.0, 1)
    trace.add(step, back_of(0, rollouts, responses))
    trace.write()
    return rows_of(file)


@pytest.mark.parametrize(
    "response, correct",
    [
        ({"reward": 0.2, "scores": 1.0}, "1"),  # the score, before anything is taken off
        ({"reward": 1.0}, "1"),
        ({"reward": -1.0, "scores": None}, "0"),
        ({"reward": 0.5}, "0"),  # the form alone was right
        ({"reward": None, "scores": None}, ""),  # a reward model's comes later
    ],
)
def test_correct_is_a_score_above_one_half(file, response, correct):
    rollout = Rollout(7, 1.5, 0.25, finished=True, stopped=False, failure=None)
    (row,) = trace_of(file, [rollout], [response | {"truncated": True}])
    assert (row["correct"], row["truncated"], row["seconds"]) == (correct, "1", "1.25")


def test_a_rollout_without_a_reward_counts_as_stopped(file):
    failed = Rollout(7, 1.5, 0.0, finished=True, stopped=False, failure="timeout")
    fell = Rollout(3, 0.5, 0.0, finished=False, stopped=False, failure="ValueError")
    right = Rollout(9, 2.0, 0.0, finished=True, stopped=False, failure=None)
    rows = trace_of(file, [failed, fell, right], [{"reward": None}, {}, {"reward": 1.0}])
    assert [(row["sample_id"], row["tokens"], row["correct"], row["stopped"]) for row in rows] == [
        ("0-0", "7", "", "1"),
        ("0-1", "3", "", "1"),
        ("0-2", "9", "1", "0"),
    ]
    assert Trace(file).samples_per_prompt.tolist() == [1]


@pytest.mark.parametrize("flags", [{}, {"algo__dynamic_filtering_surplus": "keep"}], ids=["discard", "keep"])
@pytest.mark.parametrize("saved, ran", [(1, 1), (2, 4), (3, 4)])
def test_a_resumed_run_has_the_rows_of_the_uninterrupted_one(make_generator, tmp_path, saved, ran, flags):
    """The run is killed after step `ran`, and begun again from the checkpoint of step `saved`."""

    def respond(prompt, size):
        return [(5 + prompt * 37 % 83, float(place % 2 and prompt % 3)) for place in range(size)]

    def make(name):
        return make_generator(30, respond, True, rollout__trace=str(tmp_path / name), **ONE_SIZE, **flags)

    straight, killed, resumed = make("straight.csv"), make("run.csv"), make("run.csv")
    for _ in range(6):
        straight.generate_samples()
    for step in range(1, ran + 1):
        killed.generate_samples()
        if step == saved:
            state = killed.state_dict()
    resumed.load_state_dict(state)
    before = (tmp_path / "run.csv").read_bytes()
    for _ in range(6 - saved):
        resumed.generate_samples()
    aside = tmp_path / "run.before-resume-1.csv"
    assert aside.exists() == (ran > saved)
    if ran > saved:
        kept = state["samples_generator"]["trace_bytes"]
        assert aside.read_bytes() == HEADER + before[kept:]  # all that was there is still somewhere
    rows = rows_of(tmp_path / "run.csv")
    names = [(row["prompt_id"], row["sample_id"]) for row in rows]
    assert len(set(names)) == len(names)
    if not flags:  # what ran at the checkpoint is rolled out again
        assert rows == rows_of(tmp_path / "straight.csv")


def test_a_run_that_is_resumed_twice_knows_the_length_of_its_file(make_generator, file):
    """It is killed in step 4, resumed at step 1, killed in step 3 and resumed at step 2."""
    make = lambda: make_generator(30, mixed, rollout__trace=str(file), **ONE_SIZE)  # noqa: E731
    lost = []
    state = None
    for steps, saved in ((4, 1), (3, 2), (1, None)):
        generator = make()
        generator.trace._warn = lost.append
        if state:
            generator.load_state_dict(state)
        for _ in range(steps):
            generator.generate_samples()
            assert generator.trace.state_dict()["trace_bytes"] == file.stat().st_size
            if generator.planner.steps == saved:
                state = generator.state_dict()
    assert [row["step"] for row in rows_of(file)] == ["1"] * 16 + ["2"] * 16 + ["3"] * 16
    assert [line.split(", now in ")[1] for line in lost] == [
        f"{file.parent}/run.before-resume-{i}.csv" for i in (1, 2)
    ]


def test_a_run_that_begins_anew_keeps_no_rows_of_the_start_before(make_generator, file):
    """It was killed before its first checkpoint was whole, or its checkpoints are of a time without a trace."""
    for state in (None, make_generator(8, **ONE_SIZE).state_dict()):
        generator = make_generator(8, rollout__trace=str(file), **ONE_SIZE)
        if state:
            generator.load_state_dict(state | {"data_loader_state_dict": {"next": 0}})
        generator.generate_samples()
        assert len(rows_of(file)) == 16
    assert len(rows_of(file.parent / "run.before-resume-1.csv")) == 16  # of the first of the two


def test_without_the_flag_nothing_is_noted_or_saved(make_generator):
    generator = make_generator(8, **ONE_SIZE)
    generator.generate_samples()
    assert not generator.trace._rows and "trace_bytes" not in generator.state_dict()["samples_generator"]


def test_a_file_that_has_lost_rows_goes_on_with_whole_ones_and_one_that_is_gone_begins_anew(file):
    rollout = Rollout(7, 1.0, 0.0, finished=True, stopped=False, failure=None)
    warnings = []
    trace = RunTrace(str(file), warnings.append)
    step = Step(0, 1, 1, Round(True, 1.0, 1), 1.0, 1)

    def roll_out(number):
        trace.add(step, back_of(number, [rollout], [{"reward": 1.0}]))
        trace.write()

    for number in range(3):
        roll_out(number)
    assert not warnings
    content = file.read_bytes()
    file.write_bytes(content[:-5])
    roll_out(3)
    assert [row["sample_id"] for row in rows_of(file)] == ["0-0", "1-0", "3-0"]
    whole = content[:-5].rfind(b"\n") + 1
    assert warnings[0].endswith(f"has {whole} of {len(content)} bytes: rows of earlier steps are missing")
    assert (file.parent / "run.before-resume-1.csv").read_bytes() == HEADER + content[whole:-5]  # the rest of a row
    warnings.clear()
    file.unlink()
    roll_out(4)
    assert [row["sample_id"] for row in rows_of(file)] == ["4-0"] and len(warnings) == 1


def test_a_full_disk_ends_the_trace_and_not_the_run(make_generator, monkeypatch):
    warnings = []
    monkeypatch.setattr("openrlhf_sagc.driver.rollout.logger.warning", warnings.append)
    respond = lambda prompt, size: [(10, float(prompt))] * size  # noqa: E731
    generator = make_generator(20, respond, rollout__trace="/dev/full", **ONE_SIZE)
    steps = [prompts_of(generator.generate_samples()[0]) for _ in range(3)]
    assert len(steps) == 3 and len(warnings) == 1
    assert warnings[0].startswith("--rollout.trace /dev/full cannot be written to (")


ROW = "0123456789,{},7,1,0,1,4,1,0\n"


def resumed_trace(file, state, warn):
    """A resumed run's trace, after its first step."""
    trace = RunTrace(str(file), warn)
    trace.load_state_dict(state)
    rollout = Rollout(7, 1.0, 0.0, finished=True, stopped=False, failure=None)
    trace.add(Step(0, 1, 1, Round(True, 1.0, 1), 1.0, 1), back_of(9, [rollout], [{"reward": 1.0}]))
    trace.write()
    return trace


@pytest.mark.parametrize("rows", [3, 10, 50], ids=["shorter", "as long", "longer"])
@pytest.mark.parametrize("knows", [True, False], ids=["", "the checkpoint had no trace"])
def test_another_runs_trace_is_moved_and_keeps_every_row(file, rows, knows):
    """A resumed run names the file of another run, which may be shorter or longer than its own was."""
    state = {}
    if knows:
        own = RunTrace(str(file), LOST)
        own._rows = [ROW.format(f"own-{row}") for row in range(10)]
        own.write()
        state = own.state_dict()
    file.parent.mkdir(exist_ok=True)
    others = HEADER + "".join(ROW.format(f"oth-{row}") for row in range(rows)).encode()
    file.write_bytes(others)
    (file.parent / "run.before-resume-1.csv").write_text("of another resume")
    warnings = []
    trace = resumed_trace(file, state, warnings.append)
    assert (file.parent / "run.before-resume-2.csv").read_bytes() == others
    assert (file.parent / "run.before-resume-1.csv").read_text() == "of another resume"
    assert [row["sample_id"] for row in rows_of(file)] == ["9-0"]
    assert warnings == [
        f"--rollout.trace {file} had rows that no checkpoint of this run knows of, now in "
        f"{file.parent}/run.before-resume-2.csv"
    ]
    assert resumed_trace(file, trace.state_dict(), LOST)._length == file.stat().st_size


def test_a_checkpoint_before_format_4_takes_the_rows_for_its_own(file):
    file.parent.mkdir()
    file.write_bytes(HEADER + b"".join(ROW.format(row).encode() for row in range(4)))
    known = len(HEADER) + 2 * len(ROW.format(0))
    resumed_trace(file, {"trace_bytes": known}, lambda _: None)
    assert [row["sample_id"] for row in rows_of(file)] == ["0", "1", "9-0"]
    assert [row["sample_id"] for row in rows_of(file.parent / "run.before-resume-1.csv")] == ["2", "3"]


def test_rows_that_cannot_be_moved_stay(file, monkeypatch):
    """On a disk that is full the trace ends, with the rows that it had."""
    file.parent.mkdir()
    before = HEADER + ROW.format(1).encode() * 100
    file.write_bytes(before)
    warnings = []
    monkeypatch.setattr("os.fsync", lambda _: os.write(os.open("/dev/full", os.O_WRONLY), b"row"))
    resumed_trace(file, {}, warnings.append)
    assert file.read_bytes() == before
    assert warnings == [f"--rollout.trace {file} cannot be written to (No space left on device): the trace ends here"]


def test_the_simulator_runs_on_a_trace(make_generator, file, tmp_path):
    generator = make_generator(40, mixed, rollout__trace=str(file), **ONE_SIZE)
    for _ in range(5):
        generator.generate_samples()
    command = [sys.executable, ROOT / "eval/simulate.py", "--trace", file, "--policies", "fixed:4", "--steps", "2"]
    command += ["--dynamic_sampling", "--json", tmp_path / "out.json"]
    subprocess.run(list(map(str, command)), check=True, capture_output=True)
    assert json.loads((tmp_path / "out.json").read_text())["rows"][0]["steps"] == 2


def test_a_checkpoint_without_a_digest_takes_no_part_of_another_runs_row(tmp_path):
    """One of before format 4 knows how long its rows were; here the flag names another run's file."""
    path, warnings = tmp_path / "trace.csv", []
    rows = HEADER + b"aaaaaaaaaa,0-0,5,1,0,1,4,1.5,0\n" * 3
    path.write_bytes(rows)
    trace = RunTrace(str(path), warnings.append)
    trace.load_state_dict({"trace_bytes": len(rows) - 40})  # in the middle of the second one
    trace.write()
    assert path.read_bytes() == HEADER and (tmp_path / "trace.before-resume-1.csv").read_bytes() == rows
    assert len(warnings) == 1

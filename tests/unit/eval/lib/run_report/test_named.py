"""The command `compare.py report`: what its words name."""

import json
import shutil
import sys

import compare
import pytest
from comparison_runs import learning, record, write_run


@pytest.fixture
def command(monkeypatch, tmp_path):
    """command(*words) -> what the report's JSON holds."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["compare.py", "report", *map(str, words), "--output", str(tmp_path / "out")])
        compare.main()
        return json.loads((tmp_path / "out/comparison.json").read_text())

    return run


@pytest.fixture(scope="module")
def comparisons(tmp_path_factory):
    """Folders of two comparisons: of the seeds from 0, and of those from 3."""
    folder = tmp_path_factory.mktemp("comparisons")
    for name, seeds in (("a", 0), ("b", 3)):
        runs = [learning("unpatched:8", 64.0), learning("sagc", 32.0), learning("fixed:8", 48.0)]
        record(folder / name, *[tuple(frame.assign(seed=frame["seed"] + seeds) for frame in run) for run in runs])
    return folder / "a", folder / "b"


def log(folder, generation, steps=25):
    parts = {
        "timing/make_experience": 1.0,
        "timing/ppo_train": 2.0,
        "timing/broadcast": 0.5,
        "rollout/num_samples": 64.0,
    }
    write_run(
        folder,
        [],
        [(10.0 * step, {**parts, "timing/generation": generation + step % 2 / 10}) for step in range(steps)],
    )
    return folder


def test_runs_by_their_logs(command, tmp_path):
    found = command(f"off={log(tmp_path / 'off', 4.0)}", f"my name={log(tmp_path / 'ours', 2.0)}")
    assert [row["policy"] for row in found["policies"]] == ["off", "my name"] and found["policies"][0][
        "step_speedup"
    ] is None
    assert found["policies"][1]["step_speedup"]["value"] == pytest.approx(7.55 / 5.55, rel=0.01)
    assert "my name was faster than off" in found["verdicts"][0]
    assert "my name was faster than off" in (tmp_path / "out/REPORT.md").read_text()


def test_several_sources_of_one_name_are_its_seeds(command, tmp_path):
    offs = [f"off={log(tmp_path / f'off-{seed}', 4.0 + seed / 10)}" for seed in range(3)]
    ours = [f"ours={log(tmp_path / f'ours-{seed}', 2.0 + seed / 10)}" for seed in range(3)]
    rows = command(*offs, *ours)["policies"]
    assert [row["runs"] for row in rows] == [3, 3] and rows[1]["step_speedup"]["runs"] == 3
    with pytest.raises(SystemExit, match="off has .*off-0 twice: give each run once"):
        command(offs[0], offs[0])


def test_runs_of_two_comparisons_are_put_together(command, comparisons):
    a, b = comparisons
    words = [f"{policy}={folder}" for policy in ("unpatched:8", "sagc") for folder in (a, b)]
    rows = command(*words)["policies"]
    assert [(row["policy"], row["runs"]) for row in rows] == [("unpatched:8", 6), ("sagc", 6)]
    assert rows[1]["sooner"]["0.75"]["runs"] == 6
    assert [row["policy"] for row in command(a)["policies"]] == ["unpatched:8", "sagc", "fixed:8"]


def test_charts_of_one_run_are_put_together(command, tmp_path):
    for tag, value in (("train/timing/step_total", 6.0), ("train/rollout/num_samples", 64.0)):
        rows = [f'"{step}","{value + step % 2}"' for step in range(1, 31)]
        name = tag.rpartition("/")[2]
        (tmp_path / f"{name}.csv").write_text(
            "\n".join([f'"train/global_step","plain - seed 0 - {tag}"', *rows]) + "\n"
        )
    rows = command(*[f"off={tmp_path / name}.csv#plain - seed 0" for name in ("step_total", "num_samples")])[
        "policies"
    ]
    assert [row["runs"] for row in rows] == [1] and rows[0]["step_seconds"] == pytest.approx(6.5, abs=0.1)
    assert "an hour" in (tmp_path / "out/REPORT.md").read_text()


def test_another_target_is_for_a_comparison(command, comparisons, tmp_path):
    assert command(comparisons[0], "--target", "0.5")["settings"]["target"] == 0.5
    with pytest.raises(SystemExit, match="eval/compare.py: --target 70.0 is a mean reward"):
        command(comparisons[0], "--target", "70")
    with pytest.raises(SystemExit, match="eval/compare.py: --seconds 0.0 must be above 0"):
        command(comparisons[0], "--seconds", "0")
    with pytest.raises(SystemExit, match="--target 0.5 is for comparisons of this command"):
        command(f"off={log(tmp_path / 'off', 4.0)}", "--target", "0.5")


def test_only_runs_of_one_shape_are_put_together(command, comparisons, tmp_path):
    a, b = comparisons
    settings = json.loads((b / "settings.json").read_text())
    for shape in ("padded", "gpu"):
        shutil.copytree(b, tmp_path / shape)
        packed = {"shape": shape, "micro_batch_size": 16} if shape == "gpu" else {"shape": shape}
        (tmp_path / shape / "settings.json").write_text(json.dumps(settings | packed))
    assert command(a, tmp_path / "padded")["settings"]["shape"] == "padded"  # that of a, which does not say it
    assert "packs of" not in (tmp_path / "out/REPORT.md").read_text()
    with pytest.raises(SystemExit, match="they differ in micro_batch_size, shape"):
        command(a, tmp_path / "gpu")
    command(tmp_path / "gpu")
    assert "packs of at most 1024 tokens, unpatched of 16 samples" in (tmp_path / "out/REPORT.md").read_text()


def test_what_names_no_runs_is_said_in_a_line(command, comparisons, tmp_path):
    a, b = comparisons
    with pytest.raises(SystemExit, match="a has no policy fixed:4, but unpatched:8, sagc, fixed:8"):
        command(f"fixed:4={a}")
    with pytest.raises(SystemExit, match="a has a run that is there already, grpo unpatched:8 0: give other seeds"):
        command(a, a)
    with pytest.raises(
        SystemExit, match="tmp.*: give NAME=.*, with a name for the arm, or a folder that eval/compare.py"
    ):
        command(tmp_path)
    with pytest.raises(SystemExit, match="there is no .*/none"):
        command(f"off={tmp_path / 'none'}")
    settings = json.loads((b / "settings.json").read_text())
    (tmp_path / "c").mkdir()
    for name in ("steps.csv", "evaluations.csv"):
        (tmp_path / "c" / name).write_text((b / name).read_text())
    (tmp_path / "c/settings.json").write_text(json.dumps(settings | {"task": "other"}))
    with pytest.raises(
        SystemExit, match="was made with other settings than the comparison before it; they differ in task"
    ):
        command(a, tmp_path / "c")
    (tmp_path / "c/steps.csv").write_text("")
    with pytest.raises(SystemExit, match="c/steps.csv: No columns to parse from file"):
        command(tmp_path / "c")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "words, message",
    [
        (["--trace", "mine=/x"], "--trace mine=/x: give NAME=FILE, with NAME off"),
        (["--trace", "off=/none"], "--trace off=/none: there is no /none"),
    ],
)
def test_a_bad_trace_is_named(command, tmp_path, words, message):
    with pytest.raises(SystemExit, match=message):
        command(f"off={log(tmp_path / 'off', 4.0)}", *words)

"""The files of a report."""

import json

import numpy as np
from lib.run_report.write import plain, write_report
from report_runs import arm_of, noisy, run_of


def test_everything_is_in_the_folder(tmp_path):
    arms = [arm_of("off", run_of(noisy(6.0))), arm_of("ours", run_of(noisy(3.0, seed=1)))]
    text = write_report(arms, tmp_path / "out", remarks=["The arms took turns."])
    assert text == (tmp_path / "out/REPORT.md").read_text() and "The arms took turns." in text
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"REPORT.md", "report.html", "comparison.json", "parts.svg", "steps.svg"}
    assert all(f"]({name})" in text for name in names if name.endswith(".svg"))
    assert json.loads((tmp_path / "out/comparison.json").read_text())["verdicts"][0].startswith(
        "In these runs ours was faster than off"
    )
    assert (tmp_path / "out/parts.svg").read_text().startswith('<svg xmlns="http://www.w3.org/2000/svg" ')


def test_runs_of_a_few_steps_give_a_report(tmp_path):
    text = write_report([arm_of("off", run_of([9.0, 4.0, 4.0])), arm_of("ours", run_of([9.0]))], tmp_path)
    assert "ours against off: cannot tell: 0 steps after the warm-up, 20 or more would do." in text


def test_algorithms_of_a_comparison_have_a_section_each(tmp_path):
    arms = [arm_of("off", run_of(noisy(6.0)))._replace(algorithm=name) for name in ("grpo", "dapo")]
    text = write_report(arms, tmp_path)
    assert "## GRPO: Seconds" in text and "## DAPO: Seconds" in text and (tmp_path / "dapo-parts.svg").exists()


def test_json_of_cells():
    assert plain({1: np.float64(2.0), "x": np.nan, "y": "a\nb"}) == {"1": 2.0, "x": None, "y": "a b"}

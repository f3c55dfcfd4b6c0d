"""Traces, as people have them."""

import numpy as np
import pandas as pd
import pytest
from lib.run_report.traces import read_trace, section, straggler_rate, weight_by_length

ROWS = [["prompt_id", "sample_id", "tokens", "correct", "step"]] + [
    [f"p{p}", str(s), str(10 * (p + 1) if s or p % 2 else 40 * (p + 1)), str((s + p) % 2), "1"]
    for p in range(6)
    for s in range(4)
]


def written(path, rows=ROWS, separator=",", encoding="utf-8", end="\n"):
    path.write_bytes((end.join(separator.join(row) for row in rows) + end).encode(encoding))
    return path


def test_every_form_is_the_same_rate(tmp_path):
    forms = [
        {},
        {"separator": ";"},
        {"separator": "\t"},
        {"encoding": "utf-16"},
        {"encoding": "utf-8-sig", "end": "\r\n"},
    ]
    for form in forms:
        found = straggler_rate(read_trace(written(tmp_path / "trace.csv", **form)))
        assert found["value"] == 0.5 and found["groups"] == 6  # each other prompt has a rollout of 4 times the median


def test_a_cut_line_repeated_rows_and_what_is_no_length_count_for_nothing(tmp_path):
    path = written(tmp_path / "trace.csv", [*ROWS, ROWS[1], ["p9", "0", "nan", "0", "1"], ["p9", "1"]])
    assert len(read_trace(path)) == 24
    assert (
        read_trace(
            written(path, [[*row[:2], f"{row[2]}.0" if row[2].isdigit() else row[2], *row[3:]] for row in ROWS])
        )["tokens"].sum()
        > 0
    )


def test_groups_are_those_of_this_packages_names_and_stopped_ones_are_left_out(tmp_path):
    rows = [["prompt_id", "sample_id", "tokens", "correct", "step", "stopped"]]
    rows += [
        ["p", f"{group}-{place}", str(50 if place == 0 and group == 2 else 10), "", "1", str(int(group == 3))]
        for group in (1, 2, 3)
        for place in range(3)
    ]
    found = straggler_rate(read_trace(written(tmp_path / "trace.csv", rows)))
    assert (found["value"], found["groups"], found["stopped"]) == (0.5, 2, 1)


def test_the_weight_of_prompts_by_their_length(tmp_path):
    frame = read_trace(written(tmp_path / "trace.csv"))
    drops_long = frame.assign(
        correct=np.where(frame["tokens"].groupby(frame["group"]).transform("mean") > 55, 1, frame["correct"])
    )
    rows = weight_by_length({"off": frame, "ours": drops_long})
    assert [row[0] for row in rows] == ["1 of 3", "2 of 3", "3 of 3"] and rows[-1][1] == "88"
    assert [row[2] for row in rows] == ["33 %, 33 %"] * 3 and rows[2][3] == "33 %, 0 %"


def test_many_groups_are_weighed_by_tenths():
    groups = pd.DataFrame({"group": np.repeat(np.arange(200), 2), "tokens": np.repeat(np.arange(200), 2)})
    short = groups["group"] < 20
    rows = weight_by_length({"ours": groups.assign(correct=np.where(short, 1, np.tile([0, 1], 200)))})
    assert rows[0] == ["1 of 10", "20", "10 %, 0 %"] and {row[2] for row in rows[1:]} == {"10 %, 11 %"}


def test_a_section_says_for_whom_it_is_not_known(tmp_path):
    found = section({"ours": [written(tmp_path / "trace.csv")]}, ["off", "ours"])
    assert "not known for off:" in found.blocks[0] and [row[0] for row in found.blocks[2].rows] == ["ours"]
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="--trace .*other.csv has no column prompt_id"):
        section({"ours": [tmp_path / "other.csv"]}, ["ours"])
    (tmp_path / "empty.csv").write_text("prompt_id,sample_id,tokens\n")
    with pytest.raises(ValueError, match="has no rollouts"):
        read_trace(tmp_path / "empty.csv")

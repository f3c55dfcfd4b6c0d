"""Exports of W&B."""

import json

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lib.run_logs.read import read, read_all

STEPS = 5


def history(steps=range(1, STEPS + 1), clock=0):
    """Rows as scan_history gives them: a table, then the metrics; an evaluation after step 4."""
    rows = []
    for step in steps:
        rows.append({"_timestamp": clock + 10 * step, "train/generated_samples": {"_type": "table-file", "path": "x"}})
        rows.append(
            {
                "_timestamp": clock + 10 * step,
                "train/timing/generation": 2.0 * step,
                "train/kl": "NaN",
                "train/global_step": step,
            }
        )
        if step == 4:
            rows.append(
                {
                    "_timestamp": clock + 45,
                    "eval/eval_math_pass1": 0.5,
                    "eval/eval_num_samples": 64,
                    "eval/global_step": 4,
                }
            )
    return [{"_step": number, **row} for number, row in enumerate(rows)]


def written(path, text, encoding="utf-8"):
    path.write_text(text, encoding=encoding)
    return str(path)


def as_csv(rows, separator=",", point="."):
    titles = list(dict.fromkeys(name for row in rows for name in row))

    def cell(value):
        return json.dumps(value).replace('"', "'") if isinstance(value, dict) else str(value).replace(".", point)

    quoted = lambda words: separator.join(f'"{word}"' for word in words)  # noqa: E731
    return "\n".join([quoted(titles), *(quoted(cell(row.get(name, "")) for name in titles) for row in rows)]) + "\n"


def check(run):
    assert run.steps.index.tolist() == [1, 2, 3, 4, 5] and run.steps["timing/generation"].tolist() == [2, 4, 6, 8, 10]
    assert run.steps["wall_time"].tolist() == [10, 20, 30, 40, 50] and run.steps["kl"].isna().all()
    assert "generated_samples" not in run.steps
    assert run.evaluations["eval_math_pass1"].to_dict() == {4: 0.5}


def test_every_form_of_a_history_is_the_same_table(tmp_path):
    check(read(written(tmp_path / "a.json", json.dumps(history()))))
    check(read(written(tmp_path / "a.jsonl", "\n".join(map(json.dumps, history())))))
    check(read(written(tmp_path / "a.csv", as_csv(history()))))
    check(read(written(tmp_path / "b.csv", as_csv(history(), ";", ",").replace("\n", "\r\n"), "utf-8-sig")))
    check(read(written(tmp_path / "c.csv", as_csv(history()), "utf-16")))


@pytest.mark.parametrize("orient", ["records", "columns", "split", "table", "list"])
def test_every_json_of_pandas_is_the_same_table(tmp_path, orient):
    frame = pd.DataFrame(history())
    text = json.dumps(frame.to_dict("list")) if orient == "list" else frame.to_json(orient=orient)
    check(read(written(tmp_path / "a.json", text)))


def test_objects_over_several_lines(tmp_path):
    text = pd.DataFrame(history()).to_json(orient="records", lines=True, indent=4)
    check(read(written(tmp_path / "a.json", text)))
    run = read(written(tmp_path / "a.json", text[: text.rindex('"train') - 9]))
    assert run.steps.index.tolist() == [1, 2, 3, 4] and "still being written" in run.notes[0]


def test_a_column_of_row_numbers_is_none(tmp_path):
    path = tmp_path / "a.csv"
    pd.DataFrame(history()).to_csv(path)
    check(read(str(path)))


def test_a_table_of_several_runs_is_split_by_them(tmp_path):
    rows = [{"run_id": name, **row} for name, first in (("a", 1), ("b", 2)) for row in history(range(first, 6))]
    for name, text in (("a.csv", as_csv(rows)), ("a.json", json.dumps(rows))):
        path = written(tmp_path / name, text)
        with pytest.raises(ValueError, match="has the runs a, b: give one as FILE#RUN"):
            read(path)
        check(read(f"{path}#a"))
        assert read(f"{path}#b").steps.index.tolist() == [2, 3, 4, 5]
    check(read(written(tmp_path / "one.csv", as_csv(rows[: len(history())]))))


def test_a_row_a_scalar_as_readers_of_event_files_write_it(tmp_path):
    rows = [(step, f"train/{tag}", 2.0 * step) for step in range(1, 4) for tag in ("timing/generation", "reward")]
    frame = pd.DataFrame(rows, columns=["step", "tag", "value"])
    frame.assign(wall_time=10.0 * frame["step"]).to_csv(tmp_path / "a.csv", index=False)
    run = read(str(tmp_path / "a.csv"))
    assert run.steps["timing/generation"].to_dict() == {1: 2, 2: 4, 3: 6} and run.steps["wall_time"][3] == 30
    both = pd.concat([frame.assign(dir_name="off"), frame.assign(dir_name="ours", value=7)])
    both.to_csv(tmp_path / "b.csv")
    assert read(f"{tmp_path / 'b.csv'}#ours").steps["reward"].tolist() == [7, 7, 7]


def test_lines_end_as_any_program_ends_them_and_a_sample_may_be_long(tmp_path):
    rows = [{"note": "x" * 200_000 if not number else "", **row} for number, row in enumerate(history())]
    path = tmp_path / "a.csv"
    for end in (b"\n", b"\r", b"\r\n"):
        path.write_bytes(as_csv(rows).encode().replace(b"\n", end))
        check(read(str(path)))


def test_a_cut_last_line_is_a_run_that_is_being_written(tmp_path):
    run = read(written(tmp_path / "a.jsonl", "\n".join(map(json.dumps, history()))[:-8]))
    assert run.steps.index.tolist() == [1, 2, 3, 4] and "still being written" in run.notes[0]


def test_a_resumed_history_has_two_starts(tmp_path):
    run = read(written(tmp_path / "a.json", json.dumps(history() + history(range(4, 8), clock=1000))))
    assert run.steps.index.tolist() == [1, 2, 3, 4, 5, 6, 7] and run.steps["wall_time"][4] == 1040
    assert run.evaluations["wall_time"].tolist() == [1045] and "2 steps are left out" in run.notes[0]


def chart(axis="train/global_step", spread=0.0):
    """The CSV of a chart with two runs; the second has no step 2."""
    titles, rows = [axis], [[str(step)] for step in range(1, 4)]
    for run, missing in (("plain - seed 0", 0), ("ours", 2)):
        titles += [f"{run} - train/timing/generation{end}" for end in ("", "__MIN", "__MAX")]
        for step, row in enumerate(rows, 1):
            row += [""] * 3 if step == missing else [str(value) for value in (step, step - spread, step + spread)]
    return "\n".join(",".join(f'"{cell}"' for cell in row) for row in [titles, *rows])


def test_a_chart_is_split_by_runs_whose_names_may_have_a_dash(tmp_path):
    path = written(tmp_path / "chart.csv", chart())
    assert read(f"{path}#plain - seed 0").steps["timing/generation"].to_dict() == {1: 1, 2: 2, 3: 3}
    assert read(f"{path}#ours").steps.index.tolist() == [1, 3]
    with pytest.raises(ValueError, match="has the runs ours, plain - seed 0: give one as FILE#RUN"):
        read(path)
    with pytest.raises(ValueError, match="has no run 'mine', but 'plain - seed 0', 'ours'"):
        read(f"{path}#mine")


def test_rows_without_a_number_of_steps_and_columns_that_are_there_twice(tmp_path):
    rows = [*chart().splitlines()[:-1], '"x","9","9","9","9","9","9"', '"1e300","9","9","9","9","9","9"']
    rows = [f"{row},{row.partition(',')[2]}" for row in rows]
    run = read(written(tmp_path / "chart.csv", "\n".join(rows)) + "#plain - seed 0")
    assert run.steps["timing/generation"].to_dict() == {1: 1, 2: 2}


@pytest.mark.parametrize(
    "name, text, message",
    [
        (
            "a.csv",
            chart(axis="Relative Time (Wall)"),
            "'Relative Time .Wall.' for its x axis.*choose train/global_step",
        ),
        ("a.csv", chart(axis="Step"), "'Step' for its x axis, which is no number of steps"),
        ("a.csv", chart(spread=0.5), "its values are means of several steps: export the run's history"),
        (
            "a.csv",
            "Name,State,Created,Runtime,logger\nx,finished,,1,\"key='0000'\"\n",
            "is a table of runs, with one value",
        ),
        ("a.json", '{"_step": 3, "_wandb": {"runtime": 1}, "train/reward": 0.5}', "has one value a run"),
        ("a.csv", "Wall time,Step,Value\n1.0,1,0.5\n", "a chart of TensorBoard, which does not say its tag"),
        ("a.json", "[[1.0, 1, 0.5], [2.0, 2, 0.6]]", "a chart of TensorBoard, which does not say its tag"),
        ("a.json", '{"train/reward": 0.5}\n{"cut\n{"train/reward": 0.5}', "line 2 is no JSON"),
        ("a.csv", "prompt_id,sample_id,tokens\np,0,5\n", "is a trace: give the run's log as NAME=FOLDER"),
        ("a.csv", "a,b\n1,2\n", "is no export that is known: export the run's history"),
        ("a.csv", "", "has no rows"),
        ("a.json", "nothing", "line 1 is no JSON"),
        ("a.json", "[1, 2]", "is no history"),
        ("a.json", "[" * 100_000, "line 1 is no JSON"),
        ("a.json", '[{"train/reward": 0.5}]', "has no column train/global_step"),
    ],
)
def test_other_exports_are_refused_in_a_line_that_shows_none_of_them(tmp_path, name, text, message):
    with pytest.raises(ValueError, match=message) as error:
        read(written(tmp_path / name, text))
    assert "\n" not in str(error.value) and "0000" not in str(error.value)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(["a.csv", "a.json", "a.jsonl", "chart.csv"]), st.floats(0, 1), st.integers(0, 60), st.data())
def test_a_damaged_export_is_read_or_refused_in_a_line(tmp_path, name, place, lost, data):
    whole = {"a.csv": as_csv(history()), "a.json": json.dumps(history()), "chart.csv": chart()}
    text = whole.get(name, "\n".join(map(json.dumps, history()))).encode()
    at = int(place * len(text))
    pieces = st.one_of(
        st.binary(max_size=6), st.sampled_from([b'"', b"\r", b"\n", b"{", b"[", b"\x00", b"1e999", text])
    )
    (tmp_path / name).write_bytes(text[:at] + data.draw(pieces) + text[at + lost :])
    try:
        for run in read_all(str(tmp_path / name)):
            read(f"{tmp_path / name}#{run}" if run else str(tmp_path / name))
    except ValueError as error:
        assert "\n" not in str(error)

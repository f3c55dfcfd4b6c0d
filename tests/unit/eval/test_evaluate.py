"""The command evaluate.py."""

import itertools
import json
import math
import os
import re
import subprocess
import sys

import evaluate
import pandas as pd
import pytest
from cpu_stack import ROOT
from files import write_jsonl
from lib.evaluation import generation, problem_sets


def stored(answers, label="1", **fields):
    return {"prompt": "p", "label": label, "responses": [rf"\boxed{{{x}}}" if x else "?" for x in answers], **fields}


def run(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["evaluate.py", *map(str, words)])
    evaluate.main()


def test_stored_responses_of_two_models(monkeypatch, tmp_path, capsys):
    before = [stored([1, 2, 3, 4], tokens=[5, 6, 7, 8], truncated=[0, 0, 0, 1]) for _ in range(6)]
    after = [stored([1, 1, 1, 4], tokens=[5, 6, 7, 9], truncated=[0, 0, 0, 1]) for _ in range(6)]
    files = write_jsonl(tmp_path / "before.jsonl", before), write_jsonl(tmp_path / "after.jsonl", after)
    outputs = {flag: tmp_path / f"out.{flag}" for flag in ("json", "responses")}
    traces = tmp_path / "before.csv", tmp_path / "after.csv"
    words = itertools.chain.from_iterable((f"--{flag}", path) for flag, path in outputs.items())
    run(monkeypatch, "--from_responses", *files, *words, "--trace", *traces)
    shown = capsys.readouterr().out
    assert "6 problems, 4 samples each, graded by math" in shown and "after − before" in shown and "6/0/0" in shown
    result = json.loads(outputs["json"].read_text())
    assert [model["model"] for model in result["models"]] == ["before", "after"]
    first, second = (model["figures"] for model in result["models"])
    assert first["pass@1"]["value"] == 0.25 and first["pass@2"]["value"] == 0.5 and first["pass@4"]["value"] == 1
    assert first["maj@4"]["value"] == 0.25 and second["maj@4"]["value"] == 1 and second["solved by most"]["value"] == 1
    (comparison,) = result["comparisons"]
    assert (comparison["first"], comparison["second"]) == ("before", "after")
    entry = comparison["figures"]["pass@1"]
    assert entry["difference"] == 0.5 and entry["p_value"] == 2 / 2**6 and entry["wins"] == 6
    assert "wins" not in comparison["figures"]["tokens mean"]
    trace = pd.read_csv(traces[0])
    assert trace.columns.tolist() == ["prompt_id", "sample_id", "tokens", "correct", "truncated"]
    assert trace.head(4).to_numpy().tolist() == [[0, 0, 5, 1, 0], [0, 1, 6, 0, 0], [0, 2, 7, 0, 0], [0, 3, 8, 0, 1]]
    run(monkeypatch, "--from_responses", outputs["responses"], "--json", tmp_path / "again.json")
    assert json.loads((tmp_path / "again.json").read_text()) == result


def test_two_models_on_one_problem(monkeypatch, tmp_path, capsys):
    files = [write_jsonl(tmp_path / f"{name}.jsonl", [stored([name])]) for name in (1, 2)]
    run(monkeypatch, "--from_responses", *files, "--json", tmp_path / "out.json")
    (comparison,) = json.loads((tmp_path / "out.json").read_text())["comparisons"]
    assert comparison["figures"]["pass@1"]["p_value"] is None
    assert re.search(r"-1\.000 │ +– │ +0/0/1", capsys.readouterr().out)


def test_files_of_one_name_are_not_taken_for_one_model(monkeypatch, tmp_path):
    files = [tmp_path / name / "r.jsonl" for name in ("before", "after")]
    for file in files:
        file.parent.mkdir()
        write_jsonl(file, [stored([1])])
    with pytest.raises(
        SystemExit, match="after/r.jsonl, line 1: no field 'model', and .*before/r.jsonl has a model 'r'"
    ):
        run(monkeypatch, "--from_responses", *files)
    with pytest.raises(SystemExit, match="no field 'model'"):
        run(monkeypatch, "--from_responses", files[0], files[0])
    for i, file in enumerate(files):
        write_jsonl(file, [stored([1], model="m", prompt_id=i)])
    assert [row["prompt_id"] for row in problem_sets.load_responses(files, "prompt", "label", True)["m"]] == [0, 1]


def test_tokens_and_truncated_are_whole_numbers_and_verdicts(tmp_path):
    path = write_jsonl(tmp_path / "r.jsonl", [stored([1, 2], tokens=[3.0, 4], truncated=[0, True])])
    (row,) = problem_sets.load_responses([path], "prompt", "label", True)["r"]
    assert row["tokens"] == [3, 4] and all(type(x) is int for x in row["tokens"]) and row["truncated"] == [False, True]


def test_models_are_sampled_and_their_responses_kept_when_the_grader_fails(monkeypatch, tmp_path):
    problems = write_jsonl(tmp_path / "set.jsonl", [{"prompt": f"p{i}", "label": "1"} for i in range(3)])
    (tmp_path / "reward.py").write_text("def reward_func(queries, prompts, labels): return {'rewards': 1 / 0}")
    calls = []

    def generate(models, problems, settings):
        for model in models:
            calls.append((model, settings))
            yield [
                {**problem, "responses": ["1", "2"], "tokens": [1, 1], "truncated": [False] * 2}
                for problem in problems
            ]

    monkeypatch.setattr(generation, "generate", generate)
    words = ["--dataset", problems, "--samples", 2, "--seed", 3, "--responses", tmp_path / "r.jsonl"]
    with pytest.raises(SystemExit, match="reward_func failed at prompt_id 0, response 0: ZeroDivisionError"):
        run(monkeypatch, "--models", "a", "b", *words, "--grader", tmp_path / "reward.py")
    rows = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()]
    assert [row["model"] for row in rows] == 3 * ["a"] + 3 * ["b"] and rows[0]["responses"] == ["1", "2"]
    (_, settings), _ = calls
    assert settings["sampling"] == {"n": 2, "temperature": 1.0, "top_p": 1.0, "max_tokens": 4096}
    assert settings["engine"]["seed"] == 3


GOOD = json.dumps(stored([1, 2]))
BAD_FILES = [
    (GOOD + "\n{", [], "line 2: not JSON (Expecting property name"),
    (GOOD + "\n\n[1]", [], "line 3: a JSON object is needed, not '[1]'"),
    ("\n", [], "no problems: the file is empty"),
    ('{"prompt": "p", "responses": ["1"]}', [], "line 1: no field 'label', found 'prompt', 'responses'"),
    ('{"label": "1", "responses": ["1"]}', [], "line 1: no field 'prompt'"),
    ('{"prompt": "p", "label": "1"}', [], "line 1: no field 'responses'"),
    (json.dumps(stored([1], label=" ")), [], "line 1: 'label' is empty: grading needs a gold answer"),
    (json.dumps(stored([1], responses="1")), [], "'responses' must be a list of texts, got '1'"),
    (json.dumps(stored([1, 2], tokens=[1])), [], "'tokens' must be a list of 2 whole numbers from 0 to 999999999"),
    (json.dumps(stored([1, 2], tokens=[1, -1])), [], "one for each response, got '[1, -1]'"),
    (json.dumps(stored([1], tokens=[math.nan])), [], "'tokens' must be a list of 1 whole numbers"),
    (json.dumps(stored([1], tokens=[math.inf])), [], "one for each response, got '[inf]'"),
    (json.dumps(stored([1], tokens=[2.5])), [], "one for each response, got '[2.5]'"),
    (json.dumps(stored([1], tokens=[True])), [], "one for each response, got '[True]'"),
    (json.dumps(stored([1], tokens=7)), [], "one for each response, got '7'"),
    (json.dumps(stored([1], truncated=[2])), [], "'truncated' must be a list of 1 whole numbers from 0 to 1"),
    (GOOD + "\n" + json.dumps(stored([1])), [], "line 2: 1 responses, problems before have 2"),
    (2 * (json.dumps(stored([1], prompt_id=4)) + "\n"), [], "line 2: prompt_id 4 is there twice"),
    (GOOD, ["--k", "4"], "--k 4: with 2 responses a problem, k must be from 1 to 2"),
    (GOOD, ["--k", "0"], "--k 0: with 2 responses"),
    (GOOD, ["--trace", "t.csv"], "--trace: the stored responses have no field 'tokens'"),
    (GOOD, ["--trace", "t.csv", "u.csv"], "--trace: 2 files for 1 models"),
    (
        GOOD,
        ["--label_key", "gold"],
        "no field 'gold', found 'prompt', 'label', 'responses': choose one with --label_key",
    ),
    (GOOD, ["--grader", "absent.py"], "--grader absent.py: give math or an existing Python file"),
    (GOOD, ["--json", "absent/x.json"], "--json absent/x.json: there is no folder absent"),
    (GOOD, ["--json", "."], "--json .: it is a folder: give a file"),
    (GOOD, ["--responses", "."], "--responses .: it is a folder: give a file"),
    (GOOD, ["--trace", "t.csv", "."], "--trace .: it is a folder: give a file"),
    (GOOD, ["--dataset", "math500"], "--dataset is for --models"),
]


@pytest.mark.parametrize(("text", "words", "message"), BAD_FILES, ids=[case[2] for case in BAD_FILES])
def test_bad_responses_give_one_line(text, words, message, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "r.jsonl").write_text(text)
    with pytest.raises(SystemExit) as error:
        run(monkeypatch, "--from_responses", "r.jsonl", *words)
    assert message in str(error.value) and str(error.value).startswith("eval/evaluate.py: ")
    assert "\n" not in str(error.value)


def test_models_on_different_problems_are_not_compared(monkeypatch, tmp_path):
    files = [write_jsonl(tmp_path / f"{i}.jsonl", [stored([1], label=str(i))]) for i in range(2)]
    with pytest.raises(SystemExit, match="0 and 1 differ in prompt_id or label: they need the same problems"):
        run(monkeypatch, "--from_responses", *files)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--models", "/absent"], "--models /absent: no such folder"),
        (["--models", "a", "a", "--dataset", "math500"], "--models a a: a model is named twice"),
        (["--models", "a"], "--models needs --dataset"),
        (["--models", "a", "--dataset", "nonsense"], "give a JSONL file, a hub name .* or one of math500, aime2024"),
        (["--models", "a", "--dataset", "absent.jsonl"], "--dataset absent.jsonl: No such file or directory"),
        (["--models", "a", "--dataset", "o/n", "--file", "x"], "--file x: it is for the presets"),
        (
            ["--models", "a", "--dataset", "set.jsonl", "--input_key", "q"],
            "line 1: no field 'q', found 'prompt', 'label'",
        ),
        (
            ["--models", "a", "--dataset", "set.jsonl", "--input_template", "q"],
            "it needs one {}, where the problem goes",
        ),
        (
            ["--models", "a", "--dataset", "set.jsonl", "--input_template", "{} in \\boxed{}"],
            "double all other braces",
        ),
        (["--models", "a", "--dataset", "set.jsonl", "--k", "16"], "--k 16: with 8 responses a problem"),
        (["--models", "a", "--dataset", "set.jsonl", "--samples", "0"], "--samples must be from 1 to 1024, got 0"),
        (
            ["--models", "a", "--dataset", "set.jsonl", "--input_key", "chat"],
            "prompt_id 0 is not a text: give --apply_chat",
        ),
        (["--models", "a", "--dataset", "set.jsonl", "--top_p", "0"], "--top_p must be from 1e-09 to 1, got 0.0"),
        (["--models", "a", "--dataset", "set.jsonl", "--temperature", "0"], "--samples 8 at --temperature 0"),
    ],
)
def test_bad_arguments_give_one_line_before_anything_runs(words, message, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    chat = [{"role": "user", "content": "p"}]
    write_jsonl(tmp_path / "set.jsonl", [{"prompt": "p", "label": "1", "chat": chat}])
    with pytest.raises(SystemExit, match=f"^eval/evaluate.py: .*{message}"):
        run(monkeypatch, *words)


def test_the_command_starts_without_vllm_and_openrlhf(tmp_path):
    write_jsonl(tmp_path / "r.jsonl", [stored([1, 2])])
    code = "import sys; sys.modules.update(vllm=None, openrlhf=None, datasets=None); import evaluate; evaluate.main()"
    command = [sys.executable, "-c", code, "--from_responses", "r.jsonl"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "eval")}
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr
    assert "pass@2" in result.stdout


@pytest.mark.parametrize(
    "text, message",
    [
        ("[" * 100_000, "line 1: JSON that is nested too deeply"),
        ('{"a":' * 100_000, "line 1: JSON that is nested too deeply"),
        ("1" * 5000, "line 1: (not JSON|a JSON object is needed)"),
        ("[" * 500 + "]" * 500, "line 1: a JSON object is needed"),
    ],
)
def test_deep_or_endless_json_is_one_line(monkeypatch, tmp_path, text, message):
    path = tmp_path / "responses.jsonl"
    path.write_text(text)
    with pytest.raises(SystemExit, match=f"^eval/evaluate.py: --from_responses {path}, {message}"):
        run(monkeypatch, "--from_responses", path)


@pytest.mark.parametrize("name", ["r.jsonl", "link.jsonl", "folder/../r.jsonl"])
@pytest.mark.parametrize("flag", ["--json", "--responses", "--trace"])
def test_no_output_takes_the_place_of_an_input(monkeypatch, tmp_path, flag, name):
    path = write_jsonl(tmp_path / "r.jsonl", [stored([1], tokens=[5])])
    (tmp_path / "link.jsonl").symlink_to("r.jsonl")
    (tmp_path / "folder").mkdir()
    before = path.read_bytes()
    line = f"^eval/evaluate.py: {flag} {tmp_path}/{name}: it is the file of --from_responses too: give another one$"
    with pytest.raises(SystemExit, match=line):
        run(monkeypatch, "--from_responses", path, flag, tmp_path / name)
    assert path.read_bytes() == before
    with pytest.raises(SystemExit, match="--responses .*out: it is the file of --json too"):
        run(monkeypatch, "--from_responses", path, "--responses", tmp_path / "out", "--json", tmp_path / "out")


def test_what_an_earlier_evaluation_or_run_wrote_is_moved_aside(monkeypatch, tmp_path, capsys):
    path = write_jsonl(tmp_path / "r.jsonl", [stored([1, 2], tokens=[5, 6])])
    outputs = {"--json": "out.json", "--responses": "out.jsonl", "--trace": "run.csv"}
    words = [word for flag, name in outputs.items() for word in (flag, tmp_path / name)]
    (tmp_path / "run.csv").write_text("the trace of a run")
    for _ in range(2):
        run(monkeypatch, "--from_responses", path, *words)
    assert (tmp_path / "run.earlier-1.csv").read_text() == "the trace of a run"
    assert (tmp_path / "run.earlier-2.csv").read_text() == (tmp_path / "run.csv").read_text()
    assert (tmp_path / "out.earlier-1.json").read_text() == (tmp_path / "out.json").read_text()
    assert f"--json {tmp_path}/out.json: what was there is in {tmp_path}/out.earlier-1.json" in capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} == {
        *("r.jsonl", "run.csv", "run.earlier-1.csv", "run.earlier-2.csv"),
        *("out.json", "out.earlier-1.json", "out.jsonl", "out.earlier-1.jsonl"),
    }


def test_outputs_may_be_devices(monkeypatch, tmp_path):
    path = write_jsonl(tmp_path / "r.jsonl", [stored([1])])
    run(monkeypatch, "--from_responses", path, "--json", "/dev/null", "--responses", "/dev/null")

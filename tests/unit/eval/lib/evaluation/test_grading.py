import pytest
from cpu_stack import ROOT
from lib.evaluation import grading

COUNTDOWN = ROOT / "train_scripts/countdown/reward.py"


def answered(answers, label):
    return {"label": label, "responses": [rf"\boxed{{{x}}}" if x else "?" for x in answers]}


def test_comparisons_that_hang_are_stopped():
    rows = [answered(["9^{9^{9^{9}}}", r"\frac{2}{2}", "2-1", "2"], "1")]
    assert grading.grade_math(rows) == 1
    assert rows[0]["correct"] == [False, True, True, False] and rows[0]["votes"][1:3] == [0, 0]


def test_equal_wrong_answers_vote_together():
    rows = [answered(["0.5", r"\frac{1}{2}", "2", "", "1/2", "7"], label="#### 7")]
    assert grading.grade_math(rows) == 0
    votes = rows[0]["votes"]
    assert votes[0] == votes[1] == votes[4] != votes[2] and votes[3] is None and votes[5] == 0
    assert rows[0]["answers"][3] is None and rows[0]["correct"] == [False] * 5 + [True]


def test_reward_file_of_the_quickstart():
    prompt = "use 4 15 6 to make 13 :"
    texts = [" 13 -4 = 9 -15 = -6 +6 = 0 ! <eos>", " 13 -4 = 9 stuck <eos>"]
    rows = [{"prompt_id": 0, "prompt": prompt, "label": "13", "responses": texts}]
    grading.grade_with_file(rows, COUNTDOWN)
    assert rows[0]["rewards"] == [1.0, 0.0] and rows[0]["correct"] == [True, False] and "votes" not in rows[0]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("x = 1", "no reward_func could be loaded: AttributeError"),
        ("def reward_func(queries, prompts, labels): raise KeyError('gold')", "prompt_id 7, response 0: KeyError"),
        (
            "def reward_func(queries, prompts, labels): return {'rewards': [float('nan')]}",
            "response 0: ValueError.*nan",
        ),
        (
            "import os\ndef reward_func(queries, prompts, labels): os._exit(3)",
            "prompt_id 7, response 0: ProcessExpired",
        ),
        ("import time\ndef reward_func(queries, prompts, labels): time.sleep(60)", "prompt_id 7, response 0: Timeout"),
    ],
)
def test_reward_files_that_fail(code, message, tmp_path, monkeypatch):
    monkeypatch.setattr(grading, "REWARD_SECONDS", 1 if "Timeout" in message else 30)
    (tmp_path / "reward.py").write_text(code)
    with pytest.raises(SystemExit, match=message):
        grading.grade_with_file(
            [{"prompt_id": 7, "prompt": "", "label": "", "responses": ["1"]}], tmp_path / "reward.py"
        )

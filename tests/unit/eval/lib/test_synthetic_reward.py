"""The reward that logs every sample."""

import json
import time

import lib.comparison.logs
import lib.runs
import lib.synthetic_reward


def test_the_reward_logs_every_sample(tmp_path, monkeypatch):
    monkeypatch.setenv("REWARD_LOG", str(tmp_path / "rewards.log"))
    prompt = "use 4 15 6 to make 13 :"
    right, wrong = "13 -4 = 9 -15 = -6 +6 = 0 !", "13 -6 = 7 stuck"
    queries = [f"{prompt} {answer} <eos>" for answer in (right, wrong)]
    made = lib.synthetic_reward.reward_func(queries, [prompt] * 2, ["13", "13"])
    assert made["rewards"].tolist() == [1.0, 0.0]
    (tmp_path / "evaluated.jsonl").write_text(json.dumps({"prompt": prompt}) + "\n")
    samples = lib.comparison.logs.read_samples(tmp_path, tmp_path / "evaluated.jsonl")
    assert samples["score"].tolist() == [1.0, 0.0] and samples["tokens"].tolist() == [12, 6]
    assert samples["heldout"].all() and (samples["time"] - time.time()).abs().max() < 60

"""What a run kept beside its log."""

import json

from comparison_runs import write_run
from lib.run_logs.kept import kept_of
from lib.run_logs.read import read

START = {"command": "python -m openrlhf_sagc", "flags": {"rollout.batch_size": 8}, "versions": {"torch": "2.13.0"}}
START |= {"launch": {"SAGC": "off", "NODES": "2"}}


def test_the_last_start_counts(tmp_path):
    lines = [{**START, "flags": {"rollout.batch_size": 4}}, START]
    (tmp_path / "run.jsonl").write_text("\n".join(map(json.dumps, lines)) + '\n{"cut')
    write_run(tmp_path, [], [(1.0, {"reward": 0.5})])
    for folder in (tmp_path, tmp_path / "tensorboard/run"):  # OUTPUT, and the log below it
        assert read(str(folder)).kept == START


def test_what_anyone_may_have_written_is_no_flag(tmp_path):
    assert kept_of(tmp_path) == {}
    (tmp_path / "run.jsonl").write_text('[1]\n"text"\n')
    assert kept_of(tmp_path) == {}
    flags = {"logger.wandb.key": "0000", "<script>": 1, "A B": 2, "train.seed": 0}
    (tmp_path / "run.jsonl").write_text(json.dumps({"flags": flags, "versions": [1]}) + "\n")
    assert kept_of(tmp_path) == {"flags": {"train.seed": 0}, "versions": {}, "launch": {}, "command": ""}

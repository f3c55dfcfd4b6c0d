"""One run with every fault that a sample can have: it trains to its end, and reports each."""

import json

import pytest
from real_runs import AGENTS

pytestmark = pytest.mark.stack
REASONS = {  # label -> what the run says
    "refused by vLLM": "VLLMValidationError: ",
    "raises": "KeyError: 'state' (faulty_agent.py:",
    "exits": "SystemExit: 2 (faulty_agent.py:",
    "tool exits": "RuntimeError: a task of the agent raised SystemExit: 4",
    "cancels": "CancelledError: by a client",
    "reward raises": "ValueError: no verdict (faulty_agent.py:",
    "reward exits": "SystemExit: no judge (faulty_agent.py:",
    "list": "the agent returned a list of 1 instead of a dict of one sample",
    "no fields": "the agent returned a dict without observation_tokens",
    "None among tokens": "the agent returned observation_tokens [",
    "unknown token": "the agent returned the token 1000000000, and the model has ",
    "reversed range": "the agent returned action_ranges [(6, 3)]: a range is two whole numbers",
    "no trained token": "none of the response's 1 tokens lies within --data.max_len 128",
    "truncated text": "the agent returned truncated 'length' instead of True or False",
    "reward nan": "the agent returned reward nan",
}


def test_every_fault_of_a_sample_costs_its_group(train, task, tmp_path):
    lines = [json.loads(line) for line in (task / "prompts.jsonl").read_text().splitlines()]
    rows = [{"prompt": line["prompt"], "label": "ok"} for line in lines]
    faults = [*REASONS, "many logs"]
    rows += [{"prompt": line["prompt"], "label": label} for line, label in zip(lines, faults)]
    rows.append({"prompt": "", "label": "empty prompt"})
    data = tmp_path / "faults.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = train(
        "cpu-patched",
        reward__remote_url=None,
        train__agent_func_path=AGENTS / "faulty_agent.py",
        data__prompt_dataset=data,
        rollout__n_samples_per_prompt=4,
        train__batch_size=32,
        reward__retries=0,
        reward__max_failure_share=1.0,
    )
    lost = run.scalars["rollout/reward_failures"].sum()
    assert lost >= 4 * (len(REASONS) + 1) and lost % 4 == 0  # the other groups are whole
    assert (run.scalars["rollout/num_samples"] == 32).all() and len(run.scalars) >= len(rows) * 4 // 32 - 2
    for reason in REASONS.values():
        assert reason in run.output, reason
    assert "samples lack a reward after at most 1 attempts, first: " in run.output
    assert run.output.count("of extra_logs only finite numbers under names are logged; no reward is lost") == 1
    scalars = run.scalars.dropna(axis=1, how="all")
    assert (scalars["solved"].dropna() == 1).all() and (scalars["extra_logs/reward"].dropna() == 7).all()
    assert scalars["reward"].max() <= 1 and scalars["timing/step_total"].max() < 1e5
    assert sum(name.startswith("log ") for name in scalars.columns) <= 500
    assert scalars["rollout/response_length_max"].max() > 1 and scalars["rollout/response_length_max"].max() <= 64

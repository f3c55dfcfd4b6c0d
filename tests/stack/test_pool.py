"""Prompts that stay in flight over weight syncs: each is trained once, and none too late, though the run is killed between."""

import re
from collections import Counter

import pandas as pd
import pytest
from real_runs import AGENTS

pytestmark = pytest.mark.stack
PROMPTS, SIZE, EPISODES, MAX_AGE = 48, 4, 2, 2
POOL = {
    "train__async_enable": True,
    "train__partial_rollout_enable": True,
    "rollout__vllm_generate_batch_size": 16,
    "rollout__max_age": MAX_AGE,
    "rollout__n_samples_per_prompt": SIZE,
    "train__batch_size": 8 * SIZE,
    "train__num_episodes": EPISODES,
    "algo__advantage__is_correction_level": None,
    "data__max_len": 800,  # the untrained model ends a response at random: a few are many times as long as the others
    "rollout__max_new_tokens": 700,
}


def test_a_pool_trains_every_prompt_once_and_none_too_late(train, task, tmp_path):
    flags = {
        **POOL,
        "rollout__trace": tmp_path / "run.csv",
        "ckpt__path": tmp_path / "checkpoints",
        "ckpt__save_steps": 1,
        "eval__dataset": task / "prompts.jsonl",
        "eval__steps": 2,
        "eval__n_samples_per_prompt": 1,
    }
    killed = train("cpu-patched", kill_at="Global step 3:", **flags)
    assert "16 prompts stay in flight" in killed.output and "importance correction is on" in killed.output
    again = train("cpu-patched", ckpt__load_enable=True, **flags)
    resumed, saved = again.scalars, again.scalars.index[0] - 1
    steps = pd.concat([killed.scalars.loc[:saved], resumed])
    assert steps.index.tolist() == list(range(1, PROMPTS * EPISODES // 8 + 1))
    assert (steps["rollout/num_samples"].astype(int) == 8 * SIZE).all()
    assert 0 < steps["rollout/age_max"].astype(float).max() <= MAX_AGE
    shares = resumed[[f"rollout/age_share_{age}" for age in range(MAX_AGE + 1)]].sum(axis=1)
    assert shares.tolist() == pytest.approx([1] * len(resumed)) and resumed["is_effective_share"].between(0, 1).all()
    for waits in ("rollout/engines_wait_share", "rollout/actors_wait_share"):
        assert resumed[waits].between(0, 1).all()
    assert re.search(r"Eval at step 12: \{'eval_default_pass1': ", again.output)
    # What ran when the run was killed went on, so that all is in the trace once an episode.
    going_on, tokens = map(int, re.search(r"(\d+) rollouts that ran go on, with (\d+) tokens", again.output).groups())
    assert 0 < going_on <= 16 * SIZE and tokens > 0
    rows = pd.read_csv(tmp_path / "run.csv")
    assert Counter(rows["prompt_id"]) == dict.fromkeys(rows["prompt_id"], SIZE * EPISODES)
    assert rows["prompt_id"].nunique() == PROMPTS


@pytest.mark.in_turns
def test_an_agent_without_log_probs_is_trained_without_correction(train, tmp_path):
    agent = tmp_path / "agent.py"
    agent.write_text(f"""import sys
sys.path.insert(0, {str(AGENTS)!r})
from hash_reward import reward_func
from openrlhf.utils.agent import SingleTurnAgentExecutor


class AgentExecutor(SingleTurnAgentExecutor):
    async def execute(self, prompt, label, **kwargs):
        response = await super().execute(prompt, label, **kwargs)
        reward = reward_func([str(response["observation_tokens"])], [prompt], [label])["rewards"].item()
        return {{**response, "rollout_log_probs": None, "reward": reward, "scores": reward}}
""")
    trained = train(
        "cpu-patched",
        **POOL | {"train__num_episodes": 1},
        reward__remote_url=None,
        train__agent_func_path=agent,
    )
    assert len(trained.scalars) == PROMPTS // 8 and (trained.scalars["rollout/reward_failures"] == 0).all()
    assert trained.output.count("the agent returns no rollout_log_probs") == 1
    assert (trained.scalars["is_effective_share"] == 1).all() and (trained.scalars["vllm_kl"] == 0).all()

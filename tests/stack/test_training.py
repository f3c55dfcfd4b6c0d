import hashlib
import json

import numpy as np
import pandas as pd
import pytest
from lib.simulation.lengths import Trace
from real_runs import AGENTS
from safetensors.torch import load_file

pytestmark = pytest.mark.stack
PROMPTS, SAMPLES, SIZES = 48, 64, [4, 8, 16]
BLOCK = 32  # tokens that vLLM's cache of prompts keeps together
# A policy that moves away from the first one, which the reference model keeps.
MOVING = {"actor__adam__lr": 5e-3, "algo__kl__init_coef": 1e-8, "ref__num_gpus_per_node": 1}


@pytest.fixture
def cached(task, tmp_path):
    """A deep model and flags with which engines keep what prompts begin with: all with the same block of the cache, in every step.

    A block that is kept over a weight sync holds what the old weights have computed, and vLLM's log-probs are not the actor's.
    """
    rows = [json.loads(line) for line in (task / "prompts.jsonl").read_text().splitlines()]
    start = " ".join([rows[0]["prompt"]] * -(-BLOCK // len(rows[0]["prompt"].split())))
    prompts = tmp_path / "cached.jsonl"
    prompts.write_text("".join(json.dumps({**row, "prompt": f"{start} {row['prompt']}"}) + "\n" for row in rows))
    engine_args = json.dumps({"block_size": BLOCK})
    cache = {"vllm__enable_prefix_caching": True, "vllm__engine_args": engine_args}
    return {"actor__model_name_or_path": task / "deep", "data__prompt_dataset": prompts, **cache}


def assert_vllm_serves_the_trained_weights(run, dtype):
    """On the same sampled tokens, vLLM's log-probs are the actor's, and both have left the first policy's."""
    trained = load_file(run.model / "model.safetensors")
    assert {str(weight.dtype) for weight in trained.values()} == {dtype}
    assert run.scalars["vllm_kl"].abs().max() < 1e-3
    assert run.scalars["kl"].tail(3).min() > 0.03


def assert_the_trace_has_every_rollout(file, run):
    """A row a rollout, step by step; the simulator reads it."""
    rows, steps = pd.read_csv(file), run.scalars
    assert rows["step"].value_counts().sort_index().tolist() == steps["rollout/num_samples"].tolist()
    sizes = rows.groupby("step")["group_size"].agg(["min", "max"])
    assert (sizes["min"] == sizes["max"]).all() and sizes["min"].tolist() == steps["sagc/group_size"].tolist()
    longest = rows.groupby("step")["tokens"].max()
    assert longest.tolist() == steps["rollout/response_length_max"].tolist()
    assert (rows["seconds"] >= 0).all() and rows["seconds"].max() > 0 and not rows["stopped"].any()
    trace = Trace(file)
    assert trace.has_correct and sum(trace.samples_per_prompt) == len(rows)
    assert len(trace.samples_per_prompt) == PROMPTS


def test_a_gpu_runs_shape_trains_on_the_cpu_stack(train, cached, tmp_path, monkeypatch):
    """With the flags of the launch scripts on GPUs: colocated engines that sleep, packed and dynamic batches, ZeRO 3.

    Engines are compiled, as they are there.
    """
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))
    run = train(
        "cpu-patched",
        **MOVING,
        **cached,
        vllm__enforce_eager=None,
        ds__param_dtype="fp32",
        train__colocate_all=True,
        vllm__enable_sleep=True,
        ds__enable_sleep=True,
        ds__packing_samples=True,
        train__dynamic_batch_enable=True,
        train__max_tokens_per_gpu=1024,
        ds__zero_stage=3,
        actor__gradient_checkpointing_enable=True,
        train__batch_size=32,
    )
    assert "sleep mode is not supported on CPU, ignore it" in run.output
    assert len(run.scalars) == PROMPTS // 8 and (run.scalars["actor_grad_norm"] > 0).all()
    (processor,) = (tmp_path / "compiled").iterdir()
    assert (processor / "fxgraph").is_dir()
    assert_vllm_serves_the_trained_weights(run, "torch.float32")


def test_group_control_trains_on_whole_groups_of_the_chosen_size(train, task, tmp_path):
    run = train(
        "cpu-patched",
        **MOVING,
        actor__model_name_or_path=task / "deep",
        ds__param_dtype="bf16",
        rollout__sagc__enable=True,
        rollout__sagc__group_sizes=SIZES,
        rollout__sagc__objective="size",
        rollout__sagc__straggler_ratio=1.1,  # low, as is the limit, so that the virtual queue fills
        rollout__sagc__max_straggler_rate=0.02,
        actor__num_gpus_per_node=2,
        eval__dataset=task / "prompts.jsonl",
        eval__steps=2,
        eval__n_samples_per_prompt=2,
        ckpt__save_steps=4,
        ckpt__path=tmp_path / "checkpoints",
        rollout__trace=tmp_path / "run.csv",
    )
    assert_the_trace_has_every_rollout(tmp_path / "run.csv", run)
    steps = run.scalars
    assert set(steps["sagc/group_size"]) <= set(map(float, SIZES))
    assert (steps["rollout/num_samples"] == SAMPLES).all()
    assert (steps["sagc/group_size"].to_numpy()[1:] == steps["sagc/next_group_size"].to_numpy()[:-1]).all()
    assert steps["sagc/group_size"].iloc[0] == 8  # n_samples_per_prompt
    assert steps["sagc/group_size"].nunique() > 1

    # The logged queue is the one that the logged rates give: no evaluation or other step was observed in between.
    queue = 0.0
    for rate, logged in zip(steps["sagc/straggler_rate"], steps["sagc/virtual_queue"]):
        queue = max(queue + rate - 0.02, 0.0)
        assert logged == pytest.approx(queue, abs=1e-5)
    assert steps["sagc/virtual_queue"].max() > 0.01, steps["sagc/straggler_rate"]
    assert (steps["rollout/response_length_max"] <= 64).all()
    assert steps["rollout/idle_fraction"].between(0, 1, inclusive="left").all()

    assert (tmp_path / "checkpoints" / "_actor" / "global_step4").is_dir()
    assert "eval_default_pass2" in run.output
    used = (SAMPLES / steps["sagc/group_size"]).sum()  # every prompt, and the last step is filled up rather than cut
    assert PROMPTS <= used < PROMPTS + SAMPLES / min(SIZES)
    assert (steps["actor_grad_norm"] > 0).any()
    assert_vllm_serves_the_trained_weights(run, "torch.bfloat16")


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync, 2 actors", "async, partial rollouts"])
def test_a_constant_number_of_prompts_has_one_optimizer_step_of_all_its_samples(train, cached, asynchronous, tmp_path):
    """`--rollout.sagc.hold prompts`: sizes that micro-batches and actors do not divide, a schedule over the prompts."""
    modes = {"train__async_enable": True, "train__partial_rollout_enable": True}
    run = train(
        "cpu-patched",
        **MOVING,
        **cached,
        ds__param_dtype="fp32",
        rollout__sagc__enable=True,
        rollout__sagc__hold="prompts",
        rollout__sagc__group_sizes=[4, 6, 10],
        rollout__sagc__objective="throughput" if asynchronous else "size",
        rollout__n_samples_per_prompt=6,
        train__batch_size=48,
        train__micro_batch_size=8,
        actor__lr_scheduler="linear",
        actor__lr_warmup_ratio=0,
        rollout__trace=tmp_path / "run.csv",
        **(modes if asynchronous else {"actor__num_nodes": 2}),
    )
    assert_the_trace_has_every_rollout(tmp_path / "run.csv", run)
    steps = run.scalars
    assert len(steps) == PROMPTS / 8
    assert (steps["rollout/num_samples"] == 8 * steps["sagc/group_size"]).all()
    assert steps["sagc/group_size"].nunique() > 1 or asynchronous  # throughput may stay at the size of the first step
    shares_left = [1 - step / len(steps) for step in range(1, len(steps) + 1)]  # logged after the step's update
    assert (steps["actor_lr"] / MOVING["actor__adam__lr"]).tolist() == pytest.approx(shares_left)
    assert (steps["rollout/queue_seconds"] > 0).all()
    if not asynchronous:  # where rollouts are of the policy that is trained
        assert_vllm_serves_the_trained_weights(run, "torch.float32")


def test_switched_off_is_bit_identical_to_unpatched(train, task, tmp_path_factory):
    """A live run of three steps with fixed seeds and the KL in the reward: every logged scalar and the saved weights.

    All prompts are the same, since unpatched OpenRLHF shuffles them without a seed (patch 16). With the scheduler at
    the same size, the actors work out the same advantages from the rewards and the KL in the first step.
    """
    prompts = tmp_path_factory.mktemp("same") / "prompts.jsonl"
    prompts.write_text(((task / "prompts.jsonl").read_text().splitlines()[0] + "\n") * 12)
    seeded = {
        "data__prompt_dataset": prompts,
        "reward__remote_url": None,
        "train__agent_func_path": AGENTS / "seeded_agent.py",
        "train__full_determinism_enable": True,
        "rollout__batch_size": 4,
        "rollout__n_samples_per_prompt": 4,
        "rollout__micro_batch_size": 4,
        "train__batch_size": 16,
        "train__micro_batch_size": 4,
        "rollout__max_new_tokens": 32,
        "algo__kl__init_coef": 1,
        "ref__num_gpus_per_node": 1,
        "vllm__engine_args": None,  # which unpatched OpenRLHF has not
    }
    base, patched = train("cpu-base", **seeded), train("cpu-patched", off=True, **seeded)
    assert len(base.scalars) == 3
    assert set(base.scalars.columns) == set(patched.scalars.columns)
    for name in base.scalars.columns:
        if name != "wall_time" and not name.startswith("timing/"):
            np.testing.assert_array_equal(base.scalars[name], patched.scalars[name], err_msg=name)
    trained = [digest(run.model) for run in (base, patched)]
    assert trained[0] == trained[1] != digest(task / "model")

    control = train("cpu-patched", **seeded).scalars
    # Groups come back in another order, so that micro-batches are padded otherwise: the bits differ, and Adam makes whole
    # learning rates of that where a gradient is about 0. From the second step on other tokens may be drawn.
    for name, rel in {"reward": 0, "group_reward_std": 1e-6, "return": 0.01, "actor_grad_norm": 0.01}.items():
        assert control[name].iloc[0] == pytest.approx(base.scalars[name].iloc[0], rel=rel, abs=1e-6), name
    assert (control["advantage_kernel"] == 0).all() and base.scalars["return"].abs().max() > 0.1


def digest(model) -> str:
    return hashlib.sha256((model / "model.safetensors").read_bytes()).hexdigest()

"""Without the package, patched OpenRLHF computes what unpatched does, but where a patch names a defect.

Every configuration is trained on both trees by `ppo_loop.py`: each step's scalars, the learning rate, its schedule's
length, the weights and, where one is saved, the model's files are compared bit by bit. What needs a GPU is not covered:
fp16, sleeping engines, flash attention, and the optimizer's offload but for what of it runs on a CPU. Dynamic batches are packed. The order in which a
resumed run meets its prompts is the subject of patch 0016 and of its test.
"""

import itertools
import json
import subprocess
from typing import Callable, NamedTuple

import pytest
from cpu_stack import ROOT, deepspeed_environment

pytestmark = pytest.mark.xdist_group("switched off")  # one worker makes the results
TREES = ("cpu-base", "cpu-patched")
DYNAMIC = {"train.dynamic_batch_enable": True, "train.max_tokens_per_gpu": 4000}
MANY = {**DYNAMIC, "train.max_tokens_per_gpu": 64}  # several micro-batches to a step
FROZEN = {"algo.advantage.estimator": "gae", "critic.freezing_steps": 1}
FILTER = {"algo.dynamic_filtering_enable": True, "algo.kl.init_coef": 0}

SAME = {
    "one step a rollout": {},
    "two steps": {"train.batch_size": 8},
    "two epochs of two steps": {"train.batch_size": 8, "train.max_epochs": 2},
    "training batch of two rollouts": {"train.batch_size": 32},
    "training batch of two rollouts, two epochs": {"train.batch_size": 32, "train.max_epochs": 2},
    "training batch of 1.5 rollouts": {"train.batch_size": 24},
    "rollout of 1.5 training batches": {"rollout.batch_size": 6},
    "frozen actor": FROZEN,
    "frozen actor, two steps": {**FROZEN, "train.batch_size": 8},
    "KL in the reward": {"algo.kl.init_coef": 0.1, "train.batch_size": 8},
    "KL loss": {"algo.kl.init_coef": 0.1, "algo.kl.use_loss": True, "algo.kl.estimator": "k3"},
    "EMA": {"train.enable_ema": True, "train.batch_size": 8},
    "EMA, training batch of two rollouts": {"train.enable_ema": True, "train.batch_size": 32},
    "entropy, loss of sequences": {"actor.entropy_coef": 0.01, "actor.loss_agg_mode": "seq-mean-token-mean"},
    "GSPO": {"actor.policy_loss_type": "gspo", "train.batch_size": 8},
    "bfloat16": {"ds.param_dtype": "bf16", "train.batch_size": 8},
    "asynchronous, three epochs": {"train.async_enable": True, "train.async_queue_size": 2, "train.max_epochs": 3},
    "ZeRO 1": {"ds.zero_stage": 1, "train.batch_size": 8},
    "ZeRO 3": {"ds.zero_stage": 3, "train.batch_size": 8},
    "packed": {"ds.packing_samples": True, "train.batch_size": 8},
    "packed, critic, checkpointing": {
        "ds.packing_samples": True,
        "algo.advantage.estimator": "gae",
        "actor.gradient_checkpointing_enable": True,
    },
    "dynamic batch": DYNAMIC,
    "dynamic batch, critic": {**DYNAMIC, "algo.advantage.estimator": "gae"},
    "dynamic batches, ZeRO 3": {**MANY, "ds.zero_stage": 3},
    "dynamic batches, ZeRO 3, checkpointing, sdpa": {
        **MANY,
        "ds.zero_stage": 3,
        "ds.attn_implementation": "sdpa",
        "actor.gradient_checkpointing_enable": True,
    },
    "dynamic filtering, KL in the reward": {**FILTER, "algo.kl.init_coef": 0.1},
    "dynamic filtering, REINFORCE": {**FILTER, "algo.advantage.estimator": "reinforce"},
    "dynamic filtering, REINFORCE with a baseline": {**FILTER, "algo.advantage.estimator": "reinforce_baseline"},
    "optimizer offload": {"ds.adam_offload": True, "train.batch_size": 8},
    "resumed": {"algo.advantage.estimator": "gae", "train.batch_size": 8},
}
for estimator in ("gae", "reinforce", "rloo", "reinforce_baseline", "group_norm", "dr_grpo", "flash_reinforce"):
    SAME[estimator] = {"algo.advantage.estimator": estimator, "train.batch_size": 8, "algo.kl.init_coef": 0.05}
    SAME[estimator + ", length penalties"] = {
        "algo.advantage.estimator": estimator,
        "reward.overlong_buffer_len": 8,
        "reward.stop_properly_penalty_coef": 0.5,
    }
CASES = {  # what else than flags is not as in the other configurations
    "dynamic filtering, REINFORCE with a baseline": {
        "rewards": [0.5, 0.5, 0.5, 1.0]
    },  # whitened, 0.5 has an advantage
    "resumed": {"stop_at": 1},
}
ON_TWO_RANKS = [name for name in SAME if "penalties" not in name]


class Outcome:
    """Of a run: optimizer steps, those that its schedule is for, the first step's gradient, a step's other scalars."""

    def __init__(self, result):
        self.scalars = result["steps"]
        self.optimizer_steps = result["actor"]["optimizer_steps"]
        self.max_steps = result["max_steps"]
        self.gradient = self.scalars[0].get("actor_grad_norm")


class Defect(NamedTuple):
    patch: str
    flags: dict
    differs: Callable[[Outcome, Outcome], bool]  # unpatched and patched as the patch says
    case: dict = {}  # what else is not as in the other configurations


def steps(before: int, after: int):
    return lambda unpatched, patched: (unpatched.optimizer_steps, patched.optimizer_steps) == (before, after)


def scheduled_steps(before: int, after: int):
    """Unpatched, the run takes `before` steps and its schedule is for as many; patched, `after`."""
    return lambda unpatched, patched: (
        steps(before, after)(unpatched, patched) and (unpatched.max_steps, patched.max_steps) == (before, after)
    )


def other_samples(before: int, after: int):
    """As many optimizer steps on the rollout's samples, but each on other ones of them."""
    return lambda unpatched, patched: (
        steps(before, after)(unpatched, patched)
        and unpatched.gradient != patched.gradient
        and all(unpatched.scalars[0][name] == patched.scalars[0][name] for name in ("reward", "response_length"))
    )


DEFECTS = {
    "groups of equal rewards": Defect(
        "0015",
        {"rollout.n_samples_per_prompt": 8},
        lambda unpatched, patched: unpatched.gradient > 1 and patched.gradient == 0,
        {"rewards": [0.9]},
    ),
    "dynamic micro-batches, ZeRO 2": Defect(
        "0008",
        MANY,
        lambda unpatched, patched: steps(3, 3)(unpatched, patched) and unpatched.gradient != patched.gradient,
    ),
    "short last rollout": Defect("0012", {"train.batch_size": 8}, scheduled_steps(5, 6), {"prompts": 11}),
    "last rollout that micro-batches do not divide": Defect(
        "0012",
        {"rollout.n_samples_per_prompt": 3, "rollout.batch_size": 8, "train.batch_size": 8},
        scheduled_steps(1, 2),
        {"prompts": 5},
    ),
    "dynamic batches, short last rollout": Defect(
        "0013", {**DYNAMIC, "train.batch_size": 8}, scheduled_steps(5, 6), {"prompts": 11}
    ),
    "dynamic batches, training batch of two rollouts": Defect(
        "0013", {**DYNAMIC, "train.batch_size": 32}, steps(0, 3)
    ),
    "dynamic batches, frozen actor": Defect("0013", {**DYNAMIC, **FROZEN}, steps(1, 3)),
    "dynamic batches, two steps, critic": Defect(
        "0014", {**DYNAMIC, "train.batch_size": 8, "algo.advantage.estimator": "gae"}, other_samples(6, 6)
    ),
    "dynamic batches, two steps, ZeRO 3": Defect(
        "0014", {**MANY, "ds.zero_stage": 3, "train.batch_size": 8}, other_samples(6, 6)
    ),
}


@pytest.fixture(scope="module")
def results(tmp_path_factory, python):
    """{tree: {(world size, name): result}}; both trees at a time."""
    cases = {name: {"flags": flags, **CASES.get(name, {})} for name, flags in SAME.items()}
    cases |= {name: {"flags": defect.flags, **defect.case} for name, defect in DEFECTS.items()}
    processes = {}
    for tree in TREES:
        folder = tmp_path_factory.mktemp(tree)
        two_ranks = ON_TWO_RANKS + (["short last rollout"] if tree == "cpu-patched" else [])  # it hangs unpatched
        request = {"folder": str(folder), "1": cases, "2": {name: cases[name] for name in two_ranks}}
        (folder / "request.json").write_text(json.dumps(request))
        processes[tree] = folder, subprocess.Popen(
            [python, ROOT / "tests/helpers/ppo_loop.py"],
            env=deepspeed_environment(ROOT / "build" / tree),
            stdin=(folder / "request.json").open(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    results = {}
    for tree, (folder, process) in processes.items():
        process.wait(timeout=3600)
        logs = "\n".join(f"{log}: {log.read_text()[-2000:]}" for log in folder.glob("*.log"))
        assert process.returncode == 0, logs
        read = {size: json.loads((folder / f"results-{size}.json").read_text()) for size in (1, 2)}
        results[tree] = {(size, name): result for size in read for name, result in read[size].items()}
    return results


CASES_OF = [(1, name) for name in SAME] + [(2, name) for name in ON_TWO_RANKS]
# Patch 0005 gives the forward passes of dynamic batches other samples, so that their log-probabilities are rounded otherwise, and
# samples of one length change places: the logged averages over micro-batches are of others, and the gradients the same.
ROUNDED = [(size, name) for size, name in CASES_OF if name.startswith("dynamic batch")]


@pytest.mark.parametrize("size, name", ROUNDED)
def test_dynamic_batches_are_those_of_unpatched_but_for_rounding(results, size, name):
    unpatched, patched = (results[tree][size, name] for tree in TREES)
    assert unpatched["actor"]["optimizer_steps"] == patched["actor"]["optimizer_steps"] >= 1
    for before, after in zip(unpatched["steps"], patched["steps"], strict=True):
        for average in ("policy_loss", "values"):
            before.pop(average, None), after.pop(average, None)
        assert after == pytest.approx(before, rel=1e-4, abs=1e-6, nan_ok=True)


@pytest.mark.parametrize("size, name", [case for case in CASES_OF if case not in ROUNDED])
def test_bits_are_those_of_unpatched(results, size, name):
    unpatched, patched = (results[tree][size, name] for tree in TREES)
    assert len(unpatched["steps"]) >= 2 and unpatched["actor"]["optimizer_steps"] >= 1
    for step, (before, after) in enumerate(zip(unpatched["steps"], patched["steps"], strict=True)):
        if "dynamic_filtering_pass_rate" in before:  # patch 21: four samples of a prompt are one group that passes
            assert before.pop("dynamic_filtering_pass_rate") == 4 * after.pop("dynamic_filtering_pass_rate")
        assert json.dumps(before, sort_keys=True) == json.dumps(after, sort_keys=True), step  # which has NaN be itself
    assert {**unpatched, "steps": None} == {**patched, "steps": None}


def test_configurations_differ_from_each_other(results):
    """Each flag has an effect on what is compared. On one rank of a CPU ZeRO 1 and an offload add up as ZeRO 2 does."""
    outcomes = {name: {**results["cpu-base"][1, name], "steps": None} for name in SAME}
    alike = [(name, other) for name, other in itertools.combinations(SAME, 2) if outcomes[name] == outcomes[other]]
    assert alike == [("two steps", "ZeRO 1"), ("two steps", "optimizer offload"), ("ZeRO 1", "optimizer offload")]


@pytest.mark.parametrize("name", DEFECTS, ids=lambda name: f"{DEFECTS[name].patch}: {name}")
def test_what_a_patch_names_differs_as_it_says(results, name):
    unpatched, patched = (results[tree][1, name] for tree in TREES)
    assert DEFECTS[name].differs(Outcome(unpatched), Outcome(patched))


def test_a_short_rollout_trains_on_two_ranks_what_it_trains_on_one(results):
    """Patches 9 to 12; unpatched, two ranks hang there. The gradients are those of the same samples."""
    name = "short last rollout"
    one, two = (results["cpu-patched"][size, name] for size in (1, 2))
    assert one["actor"]["optimizer_steps"] == two["actor"]["optimizer_steps"] == 6
    for scalar in ("reward", "response_length", "rollout/num_samples"):
        assert [step[scalar] for step in one["steps"]] == pytest.approx([step[scalar] for step in two["steps"]])

"""What the flags of train_scripts/dapo.sh make of OpenRLHF, against the formulas of DAPO (arXiv 2503.14476)."""

import copy
import json
import os
import subprocess
import sys
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
from cpu_stack import ROOT
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from openrlhf.trainer.ppo_utils.kl_controller import FixedKLController
from openrlhf.trainer.ppo_utils.length_penalty import apply_length_penalties
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
from openrlhf.trainer.ray import ppo_actor
from openrlhf.trainer.ray.launcher import ReferenceModelActor

from openrlhf_sagc.driver.experience import GroupExperienceMaker

FORMS = ["cpu", "gpu"]
EPS_LOW, EPS_HIGH, G = 0.2, 0.28, 16
SHOW_COMMAND = f"""#!{sys.executable}
import json, os, sys
if sys.argv[1].endswith(("countdown/train.sh", "dapo_qwen2.5_7b.sh", "launch.sh")):
    os.execv("/bin/bash", ["bash", *sys.argv[1:]])
if not sys.argv[1].endswith("engine_flags.py"):
    print(json.dumps(sys.argv))
"""


@pytest.fixture(scope="module")
def launch(tmp_path_factory, start_trainer):
    """Runs dapo.sh up to its command, and the package with that command's flags up to the trainer's constructor."""
    folder = tmp_path_factory.mktemp("dapo")
    prompts = folder / "prompts.jsonl"
    prompts.write_text('{"prompt": "1 2 3", "label": "6"}\n' * 600)
    for name in ("bash", "python3"):
        (folder / name).write_text(SHOW_COMMAND)
        (folder / name).chmod(0o755)

    def run(form, *more):
        environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "REWARD": "r.py", "OUTPUT": str(folder)}
        command = ["/bin/bash", ROOT / "train_scripts/dapo.sh", *["cpu"] * (form == "cpu")]
        command += ["--data.prompt_dataset", prompts, *more]
        shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        argv = json.loads(shown.splitlines()[-1])
        return start_trainer(argv[argv.index("openrlhf_sagc") + 1 :])

    return run


@pytest.fixture(scope="module", params=FORMS)
def args(request, launch):
    return launch(request.param).args


def policy_loss(args):
    """The loss that the policy's trainer makes of the flags."""
    with mock.patch.object(ppo_actor, "torch_dist_barrier_and_cuda_sync"):
        return ppo_actor.ActorPPOTrainer(SimpleNamespace(args=args), None, None, None, None).actor_loss_fn


def overlong(length, longest, cache):
    """Eq. 13."""
    if length <= longest - cache:
        return 0.0
    return ((longest - cache) - length) / cache if length <= longest else -1.0


@pytest.mark.parametrize("advantage", [2.0, -2.0])
def test_clip_higher(args, advantage):
    """Eq. 8 for one token and its derivative: clipped at 1.28 and 0.8, no dual clip, no importance weight."""
    ratios = np.array([0.1, 0.79, 0.81, 1.0, 1.19, 1.21, 1.27, 1.29, 30.0])
    log_probs, ones = torch.tensor(np.log(ratios)[:, None], requires_grad=True), torch.ones(9, 1)
    loss = policy_loss(args)(log_probs, 0 * ones, advantage * ones, ones)[0]
    loss.backward()
    objective = np.minimum(ratios * advantage, np.clip(ratios, 1 - EPS_LOW, 1 + EPS_HIGH) * advantage)
    clipped = ratios > 1 + EPS_HIGH if advantage > 0 else ratios < 1 - EPS_LOW
    assert loss.item() == pytest.approx(-objective.mean())
    assert log_probs.grad[:, 0].tolist() == pytest.approx(np.where(clipped, 0, -ratios * advantage / 9))
    # A rollout's first optimizer step has ratios of 1.
    assert args.rollout.batch_size * args.rollout.n_samples_per_prompt >= 4 * args.train.batch_size


def test_token_level_loss(args):
    """A sample of 1 token and one of 4; whole steps and ZeRO's ranks: tests/deepspeed/test_dapo_ranks.py."""
    advantages, mask = torch.tensor([[1.0], [3.0]]).expand(2, 4), torch.tensor([[1, 0, 0, 0], [1, 1, 1, 1]])
    loss = policy_loss(args)(torch.zeros(2, 4), torch.zeros(2, 4), advantages, mask)[0]
    assert loss.item() == pytest.approx(-(1 + 4 * 3) / 5)
    assert args.ds.zero_stage == 3 or not args.train.dynamic_batch_enable


@pytest.mark.parametrize("form", FORMS)
def test_no_kl(launch, form):
    """No reference model is made, no KL enters the reward or the loss; a coefficient above 0 makes one."""
    run = launch(form)
    assert run.ref is None and len(run.models) == 1
    assert not run.args.algo.kl.use_loss and run.args.actor.entropy_coef is None
    ranks = str(run.args.actor.num_gpus_per_node)
    run = launch(form, "--algo.kl.init_coef", "0.01", "--ref.num_gpus_per_node", ranks)
    assert run.ref is not None and ReferenceModelActor in run.models


def experience(rewards, lengths):
    size = len(rewards)
    outcome = dict(rewards=torch.tensor(rewards), response_length=torch.tensor(lengths))
    tokens = dict(action_mask=torch.ones(size, 3), kl=torch.full((size, 3), 7.0))
    return Experience(index=list(range(size)), info={}, **outcome, **tokens)


def test_overlong_penalty(args):
    """Half of eq. 13, as correct and wrong are 1 apart instead of 2."""
    longest, cache = args.rollout.max_new_tokens, args.rollout.max_new_tokens // 5
    start = longest - cache
    lengths = [1, start, start + 1, start + cache // 2, longest - 1, longest, longest + 1, 2 * longest]
    samples = experience([1.0] * len(lengths), lengths)
    apply_length_penalties([samples], args)
    assert samples.rewards.tolist() == pytest.approx([1 + 0.5 * overlong(n, longest, cache) for n in lengths])
    assert samples.rewards[[1, 3, 5, 7]].tolist() == pytest.approx([1.0, 0.75, 0.5, 0.5])
    assert (longest, cache) in ((200, 40), (20480, 4096)) and args.data.max_len > longest


def test_overlong_penalty_without_max_new_tokens(args):
    """L_max is then data.max_len, prompt included: a response that was cut off gets less than the full penalty."""
    args = copy.deepcopy(args)
    args.rollout.max_new_tokens, args.data.max_len, args.reward.overlong_buffer_len = None, 200, 40
    samples = experience([1.0], [170])  # all that a prompt of 30 leaves
    apply_length_penalties([samples], args)
    assert samples.rewards.item() == pytest.approx(1 - 0.5 * 10 / 40)


def experience_maker(args, cls):
    maker = cls.__new__(cls)
    maker.args, maker.strategy = args, SimpleNamespace(args=args)
    maker.advantage_estimator = args.algo.advantage.estimator
    maker.kl_ctl, maker._group_sizes = FixedKLController(args.algo.kl.init_coef), [G, G]
    maker.initial_model_group = None
    return maker


@pytest.mark.parametrize("upstream", [False, True], ids=["recipe", "OpenRLHF's own"])
def test_advantages(args, upstream, train_batches):
    """Those of rewards -1 and 1 plus eq. 13, (r - mean) / std, on every token; std has Bessel's correction."""
    maker = experience_maker(args, RemoteExperienceMaker if upstream else GroupExperienceMaker)
    rng = np.random.default_rng(0)
    longest = args.rollout.max_new_tokens
    lengths = rng.integers(longest // 2, longest + 1, 2 * G)
    correct = np.arange(2 * G) % np.repeat([2, G], G) == 0  # 8 of 16, and 1 of 16
    rewards = np.where(correct, 1.0, -1.0) + [overlong(n, longest, longest // 5) for n in lengths]
    groups = rewards.reshape(2, G)
    expected = (groups - groups.mean(1, keepdims=True)) / groups.std(1, keepdims=True) * np.sqrt((G - 1) / G)
    experiences = [experience(correct.astype("float32").tolist(), lengths.tolist())]
    if upstream:
        (made,) = maker.compute_advantages_and_returns(experiences)
    else:
        (made,) = train_batches(maker, experiences, micro_batch=2 * G)
        made.advantages = made.advantages[np.argsort(made.index)]
    np.testing.assert_allclose(made.advantages.flatten(), expected.flatten().repeat(3), rtol=1e-4, atol=1e-5)


def test_binary_advantages(args, train_batches):
    """k of G correct: sqrt((G - k) / k) and -sqrt(k / (G - k)), times sqrt((G - 1) / G)."""
    for k in (1, 12):
        maker = experience_maker(args, GroupExperienceMaker)
        experiences = [experience(([1.0] * k + [0.0] * (G - k)) * 2, [1] * 2 * G)]
        (made,) = train_batches(maker, experiences, micro_batch=2 * G)
        shaped = made.advantages[np.argsort(made.index), 0]
        expected = np.array([np.sqrt((G - k) / k), -np.sqrt(k / (G - k))]) * np.sqrt((G - 1) / G)
        assert shaped[[0, -1]].tolist() == pytest.approx(expected)


@pytest.mark.parametrize("solved, kept", [(0, 0), (1, G), (G - 1, G), (G, 0)])
def test_dynamic_sampling_sees_scores_before_the_penalty(args, monkeypatch, solved, kept):
    """0 < number correct < G; the scores stay as they are, even if the reward function returns one tensor as both."""
    longest = args.rollout.max_new_tokens
    rollout = dict(observation_tokens=[0] * longest, action_ranges=[(1, longest)], rollout_log_probs=None)
    rewards = [torch.tensor([float(i < solved)]) for i in range(G)]
    responses = [dict(rollout, reward=reward, scores=reward, prompt="", label="") for reward in rewards]
    generator = SamplesGenerator.__new__(SamplesGenerator)
    generator.args, generator._dispatch_prompts_to_vllm = args, lambda *_, **__: [responses]
    fake_ray = SimpleNamespace(wait=lambda refs, **_: (refs, []), get=lambda ref: ref)
    monkeypatch.setattr("openrlhf.trainer.ppo_utils.samples_generator.ray", fake_ray)
    prompts = iter([([None], ["1 2 3"], ["6"], [None])])
    samples, *_ = generator._generate_vllm(prompts, 1, args.algo.dynamic_filtering_enable, max_len=2 * longest)
    assert len(samples) == kept
    apply_length_penalties(samples, args)
    for i, sample in enumerate(samples):
        assert sample.scores.item() == (i < solved) and sample.rewards.item() < sample.scores.item()

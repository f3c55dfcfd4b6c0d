"""Groups that failed rewards have made smaller are trained at their size: the weights are those that the formulas give."""

import pytest
import torch
from made_up_prompts import PROMPT_TOKENS, is_lost, roll_out
from tolerances import BETA_2, EPSILON, allowed_errors
from trained_weights import run_package_loop
from transformers import Qwen3ForCausalLM

pytestmark = pytest.mark.xdist_group("failed rewards")  # one worker trains
PROMPTS, SIZE, RATE = 4, 4, 1e-2
LOST = {
    "train.lost": True,
    "train.old_log_probs": "auto",
    "train.micro_batches": "length",
    "train.stream": "off",
    "actor.lr_scheduler": "constant",
    "actor.max_norm": 0,
}
TWO_STEPS = {"train.batch_size": 8}
DAPO = {
    "actor.eps_clip_low_high": [0.2, 0.28],
    "reward.overlong_buffer_len": 10,  # of 24 tokens that a response may have
    "reward.overlong_penalty_factor": 0.5,
}
CASES = {
    "GRPO": {"actor.loss_agg_mode": "seq-mean-token-mean"},
    "DAPO": {**DAPO, **TWO_STEPS},
    "GRPO, ZeRO 3": {"actor.loss_agg_mode": "seq-mean-token-mean", "ds.zero_stage": 3},
    "DAPO, dynamic batches": {**DAPO, "train.dynamic_batch_enable": True, "train.max_tokens_per_gpu": 64},
    "DAPO, streamed": {**DAPO, "train.stream": "first"},
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory, python):
    """(results by ranks and case, the model before)."""
    folder = tmp_path_factory.mktemp("lost")
    cases = {name: {"flags": {**LOST, **flags}, "prompts": PROMPTS} for name, flags in CASES.items()}
    return run_package_loop(python, folder, {1: cases, 2: cases}), folder / "model"


def drawn(overlong):
    """(tokens, advantage) of every sample that has a reward, group by group; no group is whole or has the same size."""
    samples = []
    for prompt in map(str, range(PROMPTS)):
        made = [roll_out(prompt, number, (0.0, 0.5, 1.0)) for number in range(SIZE) if not is_lost(prompt, number)]
        rewards = torch.tensor([response["reward"] for response in made])
        if overlong:
            lengths = torch.tensor([len(response["observation_tokens"]) - PROMPT_TOKENS for response in made])
            rewards -= 0.5 * ((lengths - 14) / 10).clamp(0, 1)
        advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-9)
        samples += [(response["observation_tokens"], float(x)) for response, x in zip(made, advantages)]
    return samples


def log_probs(model, tokens):
    logits = model(torch.tensor([tokens])).logits[0, PROMPT_TOKENS - 1 : -1]
    return logits.log_softmax(-1)[torch.arange(len(logits)), torch.tensor(tokens[PROMPT_TOKENS:])]


def expected_weights(folder, steps, overlong, by_sequence):
    """Adam's after these optimizer steps, each of which trains the samples of these places."""
    model, samples = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32), drawn(overlong)
    with torch.no_grad():
        old = [log_probs(model, tokens) for tokens, _ in samples]
    optimizer = torch.optim.AdamW(model.parameters(), RATE, (0.9, BETA_2), EPSILON, weight_decay=0.0)
    for places in steps:
        terms = []
        for place in places:
            tokens, advantage = samples[place]
            ratio = (log_probs(model, tokens) - old[place]).exp()
            terms.append(-torch.min(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage))
        optimizer.zero_grad()
        (torch.stack([x.mean() for x in terms]).mean() if by_sequence else torch.cat(terms).mean()).backward()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).double()


def test_the_samples_are_those_of_groups_of_several_sizes():
    sizes = [sum(not is_lost(str(prompt), number) for number in range(SIZE)) for prompt in range(PROMPTS)]
    assert len(set(sizes)) > 1 and sum(sizes) == len(drawn(True)) < PROMPTS * SIZE
    assert drawn(True) != drawn(False)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("case", CASES)
def test_weights_are_those_of_the_samples_that_have_a_reward(trained, case, ranks):
    results, model = trained
    actor, count = results[ranks][case]["actor"], len(drawn(False))
    dapo, steps = "DAPO" in case, [range(count)]
    if "train.batch_size" in CASES[case]:
        steps = [[place for place in range(count) if place % SIZE * 2 // SIZE == half] for half in (0, 1)]
    assert actor["optimizer_steps"] == len(steps)
    assert results[ranks][case]["steps"][0]["rollout/num_samples"] == count
    expected = expected_weights(model, steps, dapo, not dapo)
    found = torch.tensor(actor["weights"], dtype=torch.float64)
    allowed = allowed_errors(actor, len(steps), RATE)["weights"]
    assert ((found - expected).abs() <= allowed).all(), ((found - expected).abs() / allowed).max()

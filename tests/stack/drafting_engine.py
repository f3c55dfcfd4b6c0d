"""Samples with and without drafts: drafting_engine.py MODEL OUTPUT CASE...; OUTPUT/CASE.npz has the responses of each case.

off: no drafts; on: drafts; unrepaired: vLLM's CPU kernel as released; greedy: a sampler that takes every draft.
"""

import json
import sys
from pathlib import Path

import numpy as np
import vllm.v1.sample.rejection_sampler as sampler
from transformers import AutoTokenizer
from vllm import LLM, SamplingParams
from vllm.utils import cpu_triton_utils

from openrlhf_sagc.config.settings import SIBLINGS
from openrlhf_sagc.decisions.draft_budget import DraftBudget

GROUPS, SIZE, ROUNDS, MOST_TOKENS = 16, 8, 8, 100
SHIPPED, UNIFORM = cpu_triton_utils.expand_kernel.func, sampler.generate_uniform_probs


def main(model: str, output: str, *cases: str) -> None:
    drafts = {} if "off" in cases else {"speculative_config": SIBLINGS}
    extension = "openrlhf.trainer.ray.vllm_worker_wrap.WorkerWrap"  # as OpenRLHF's engines have it
    DraftBudget.choose = lambda budget, running: running * budget.longest  # on this engine few drafts pay
    llm = LLM(
        model,
        dtype="float32",
        enforce_eager=True,
        max_model_len=256,
        worker_extension_cls=extension,
        **drafts,
        distributed_executor_backend="uni",
    )
    tokenizer = AutoTokenizer.from_pretrained(model)
    lines = [json.loads(line) for line in (Path(model).parent / "prompts.jsonl").read_text().splitlines()]
    prompts = [tokenizer(line["prompt"], add_special_tokens=False)["input_ids"] for line in lines[:GROUPS]]
    repaired = cpu_triton_utils.expand_kernel.func
    for case in cases:
        cpu_triton_utils.expand_kernel.func = SHIPPED if case == "unrepaired" else repaired
        sampler.generate_uniform_probs = no_chance if case == "greedy" else UNIFORM
        before = counts(llm) if drafts else {}
        texts = [text for seed in range(ROUNDS) for text in responses(llm, prompts)]
        after = {name: counts(llm)[name] - value for name, value in before.items()}
        texts_NT = np.full((len(texts), MOST_TOKENS), -1)
        for row, text in zip(texts_NT, texts):
            row[: len(text)] = text
        np.savez(Path(output) / f"{case}.npz", texts=texts_NT, prompts=np.arange(len(texts)) // SIZE % GROUPS, **after)


def responses(llm: LLM, prompts: list[list[int]]) -> list[list[int]]:
    """SIZE for each prompt, in order, which all begin together; each round draws on those before."""
    sampling = SamplingParams(temperature=1.0, top_p=1.0, min_tokens=1, max_tokens=MOST_TOKENS)
    inputs = [{"prompt_token_ids": prompt} for prompt in prompts for _ in range(SIZE)]
    return [list(output.outputs[0].token_ids) for output in llm.generate(inputs, sampling, use_tqdm=False)]


def counts(llm: LLM) -> dict[str, float]:
    return llm.collective_rpc("draft_counts")[0]


def no_chance(num_tokens, *args, **kwargs):
    return UNIFORM(num_tokens, *args, **kwargs) * 0


if __name__ == "__main__":
    main(*sys.argv[1:])

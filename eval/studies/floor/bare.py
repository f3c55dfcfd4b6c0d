"""A step's work in one process and no more: vLLM alone generates, and PyTorch alone trains, without any padding.

Started by run.py. Prints a line at the end of every step, as OpenRLHF does, and appends a line of JSON to --output.
"""

import argparse
import json
import random
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM
from vllm import LLM, SamplingParams
from vllm.sampling_params import RequestOutputKind

ROWS = 16  # of a backward pass


def rows_of(samples: list[list[int]]) -> list[torch.Tensor]:
    """The samples' tokens as [ROWS, T] each, without padding: as many rows as a micro-batch by length, of its mean length.

    A row has parts of several samples, so that this is the work of a step and not the step.
    """
    samples = sorted(samples, key=len, reverse=True)
    batches = [sum(samples[first : first + ROWS], []) for first in range(0, len(samples), ROWS)]
    return [torch.tensor(tokens[: len(tokens) // ROWS * ROWS]).view(ROWS, -1) for tokens in batches]


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, batches: list[torch.Tensor]) -> None:
    """A policy gradient step, with advantages of 1 and -1 in turns."""
    tokens = sum(batch.numel() for batch in batches)
    advantages_R = torch.ones(ROWS).index_fill_(0, torch.arange(0, ROWS, 2), -1.0)
    for batch in batches:
        logits = model(batch[:, :-1]).logits.float()
        log_probs_RT = torch.log_softmax(logits, -1).gather(2, batch[:, 1:, None]).squeeze(2)
        (-(log_probs_RT * advantages_R[:, None]).sum() / tokens).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


def sync(model: torch.nn.Module, llm: LLM) -> None:
    """One buffer with all weights, which the engine loads."""
    names, parameters = zip(*model.named_parameters())
    buffer = torch.cat([parameter.detach().flatten() for parameter in parameters])
    parts = buffer.split([parameter.numel() for parameter in parameters])
    weights = [(name, part.view_as(p)) for name, part, p in zip(names, parts, parameters)]
    llm.collective_rpc(lambda worker: worker.model_runner.reload_weights(weights_iterator=iter(weights)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, kind in {"model": Path, "prompts": Path, "output": Path, "dtype": str}.items():
        parser.add_argument(f"--{name}", type=kind, required=True)
    for name in ("steps", "seed", "groups", "size", "max_new_tokens", "max_len"):
        parser.add_argument(f"--{name}", type=int, required=True)
    arguments = parser.parse_args()
    prompts = [json.loads(line)["prompt"] for line in arguments.prompts.read_text().splitlines()]
    random.Random(arguments.seed).shuffle(prompts)
    llm = LLM(
        str(arguments.model), dtype=arguments.dtype, max_model_len=arguments.max_len, seed=arguments.seed,
        enable_prefix_caching=False, disable_log_stats=True,
    )  # fmt: skip
    sampling = SamplingParams(
        n=arguments.size, temperature=1.0, max_tokens=arguments.max_new_tokens, detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=getattr(torch, arguments.dtype))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
    for step in range(arguments.steps):
        times = [time.perf_counter()]
        drawn = prompts[step * arguments.groups : (step + 1) * arguments.groups]
        answers = llm.generate(drawn, sampling, use_tqdm=False)
        samples = [[*answer.prompt_token_ids, *one.token_ids] for answer in answers for one in answer.outputs]
        times.append(time.perf_counter())
        train(model, optimizer, rows_of(samples))
        times.append(time.perf_counter())
        sync(model, llm)
        times.append(time.perf_counter())
        parts = dict(zip(("generation", "training", "sync"), (end - start for start, end in zip(times, times[1:]))))
        row = {"step": step, "wall_time": time.time(), **parts, "tokens": sum(map(len, samples))}
        with arguments.output.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(f"bare.py:1] Global step {step + 1}: {row}", flush=True)


if __name__ == "__main__":
    main()

"""A step's work in one process and no more: vLLM alone generates, and PyTorch alone trains, without any padding.

Started by run.py.
"""

import torch
from studies.floor.step_log import StepLog, draw_prompts, load_grader, parse_arguments
from transformers import AutoModelForCausalLM, AutoTokenizer
from vllm import LLM, SamplingParams


def batches_of(samples: list[list[int]], rows: int) -> list[torch.Tensor]:
    """The samples' tokens as [rows, T] each, without padding: as wide as the mean of as many samples, sorted by length.

    A row has parts of several samples, so that this is the work of a step and not the step.
    """
    samples = sorted(samples, key=len, reverse=True)
    batches = [sum(samples[first : first + rows], []) for first in range(0, len(samples), rows)]
    return [torch.tensor(tokens[: len(tokens) // rows * rows]).view(rows, -1) for tokens in batches]


def log_probs_of(model: torch.nn.Module, batch_BT: torch.Tensor) -> torch.Tensor:
    """Log-probabilities of each token but the first, [B, T - 1]."""
    logits = model(batch_BT[:, :-1]).logits.float()
    return torch.log_softmax(logits, -1).gather(2, batch_BT[:, 1:, None]).squeeze(2)


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: list[list[torch.Tensor]]) -> None:
    """Policy gradient steps, each on its own batches, with advantages of -1 and 1 in turns.

    From the second on they need the log-probabilities of the policy that sampled; the first one makes them as it trains.
    """
    with torch.no_grad():
        old = [[log_probs_of(model, batch) for batch in batches] for batches in steps[1:]]
    for number, batches in enumerate(steps):
        tokens = sum(batch.numel() for batch in batches)
        for index, batch in enumerate(batches):
            advantages_B1 = torch.arange(len(batch))[:, None] % 2 * 2 - 1
            log_probs = log_probs_of(model, batch)
            before = old[number - 1][index] if number else log_probs.detach()
            (-((log_probs - before).exp() * advantages_B1).sum() / tokens).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def sync(model: torch.nn.Module, llm: LLM) -> None:
    """The engine loads the weights, which are in its process."""
    weights = [(name, parameter.detach()) for name, parameter in model.named_parameters()]
    llm.collective_rpc(lambda worker: worker.model_runner.reload_weights(weights_iterator=iter(weights)))


def main() -> None:
    arguments = parse_arguments(__doc__)
    prompts = draw_prompts(arguments.prompts, arguments.steps * arguments.groups, arguments.seed)
    llm = LLM(
        str(arguments.model), dtype=arguments.dtype, max_model_len=arguments.max_len, seed=arguments.seed,
        enable_prefix_caching=False, disable_log_stats=True,
    )  # fmt: skip
    sampling = SamplingParams(
        n=arguments.size, temperature=1.0, max_tokens=arguments.max_new_tokens, detokenize=False
    )  # fmt: skip
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=arguments.dtype, attn_implementation="eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
    tokenizer, grade = AutoTokenizer.from_pretrained(arguments.model), load_grader(arguments.grader)
    log = StepLog(arguments.output)
    for first in range(0, len(prompts), arguments.groups):
        answers = llm.generate(prompts[first : first + arguments.groups], sampling, use_tqdm=False)
        log.mark("generation")
        responses = [one.token_ids for answer in answers for one in answer.outputs]
        texts = tokenizer.batch_decode(responses, skip_special_tokens=True)
        rewards = grade([answer.prompt for answer in answers for _ in answer.outputs], texts)
        log.note(samples=len(rewards), reward=sum(rewards) / len(rewards), tokens=sum(map(len, responses)))
        log.mark("experience")
        samples = [[*answer.prompt_token_ids, *one.token_ids] for answer in answers for one in answer.outputs]
        parts = [samples[first :: arguments.optimizer_steps] for first in range(arguments.optimizer_steps)]
        train(model, optimizer, [batches_of(part, arguments.micro_batch_size) for part in parts])
        log.mark("training")
        sync(model, llm)
        log.mark("sync")
        log.end()


if __name__ == "__main__":
    main()

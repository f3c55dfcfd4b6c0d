"""Responses of a model to prompts, sampled by vLLM in a process of its own, which gives the GPU's memory back."""

from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context


def sample(model: str, problems: list[dict], settings: dict) -> list[dict]:
    """See generate."""
    from vllm import LLM, SamplingParams

    try:
        engine = LLM(model, **settings["engine"])
    except Exception as error:
        reason = str(error).strip().partition("\n")[0] or repr(error)
        raise SystemExit(f"eval/evaluate.py: --models {model}: vLLM did not start, see its output: {reason}") from None
    tokenizer = engine.get_tokenizer()
    rows, prompts = [], []
    for problem in problems:
        text = problem["prompt"]
        if settings["apply_chat_template"]:
            chat = [{"role": "user", "content": text}] if isinstance(text, str) else text
            try:
                text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
            except ValueError as error:
                raise SystemExit(f"eval/evaluate.py: --apply_chat_template: {model}: {error}") from None
        ids = tokenizer(text=text, add_special_tokens=False)["input_ids"]
        if not 0 < len(ids) < engine.model_config.max_model_len:
            raise SystemExit(
                f"eval/evaluate.py: prompt_id {problem['prompt_id']} has {len(ids)} tokens, the model takes 1 to "
                f"{engine.model_config.max_model_len - 1}: raise --max_model_len, or leave the problem out"
            )
        rows.append({**problem, "prompt": text})
        prompts.append({"prompt_token_ids": ids})
    for row, output in zip(rows, engine.generate(prompts, SamplingParams(**settings["sampling"]))):
        # Special tokens stay, as in training: the reward function there sees prompt and response decoded together.
        start = len(tokenizer.decode(output.prompt_token_ids, skip_special_tokens=False))
        ids = [list(answer.token_ids) for answer in output.outputs]
        texts = [tokenizer.decode([*output.prompt_token_ids, *x], skip_special_tokens=False) for x in ids]
        row["responses"] = [text[start:] for text in texts]
        row["tokens"] = [len(x) for x in ids]
        row["truncated"] = [answer.finish_reason == "length" for answer in output.outputs]
    return rows


def generate(model: str, problems: list[dict], settings: dict) -> list[dict]:
    """Problems as eval/problem_sets.py loads them, each with N `responses`, their `tokens` and `truncated`.

    Args:
        settings: `engine` and `sampling`, arguments of vllm.LLM and vllm.SamplingParams, and `apply_chat_template`.
            The `prompt` of a result is the text that the model was given; as in OpenRLHF, no special tokens are added.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        try:
            return pool.submit(sample, model, problems, settings).result()
        except BrokenProcessPool:
            raise SystemExit(
                f"eval/evaluate.py: --models {model}: vLLM's process died, see its output above"
            ) from None

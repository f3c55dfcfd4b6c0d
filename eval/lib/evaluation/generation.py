"""Responses of models to prompts, sampled by vLLM in a process of its own, so that the GPU's memory is free afterwards."""

import itertools
import json
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path

engine = None  # of the process that samples


def sample(model: str, problems: list[dict], settings: dict) -> list[dict]:
    """What `generate` gives for one model, in this process, whose engine stays for the next one."""
    from vllm import LLM, SamplingParams

    global engine
    try:
        if engine is None:
            engine = LLM(model, **settings["engine"])
        else:
            engine.collective_rpc("reload_weights", kwargs={"weights_path": model})
            engine.reset_prefix_cache()
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
    # A seed for each prompt: what is sampled depends neither on the model before nor on what runs beside it.
    n, first = settings["sampling"]["n"], settings["engine"]["seed"] * len(rows)
    sampling = [SamplingParams(**settings["sampling"], seed=(first + i) * n) for i in range(len(rows))]
    for row, output in zip(rows, engine.generate(prompts, sampling)):
        # Special tokens stay, as in training: the reward function there sees prompt and response decoded together.
        start = len(tokenizer.decode(output.prompt_token_ids, skip_special_tokens=False))
        ids = [list(answer.token_ids) for answer in output.outputs]
        texts = [tokenizer.decode([*output.prompt_token_ids, *x], skip_special_tokens=False) for x in ids]
        row["responses"] = [text[start:] for text in texts]
        row["tokens"] = [len(x) for x in ids]
        row["truncated"] = [answer.finish_reason == "length" for answer in output.outputs]
    return rows


def architecture(model: str) -> list | None:
    """What models share that one engine can serve in turn; None for models of the hub, which have no folder yet."""
    folder = Path(model)
    if not (folder / "config.json").is_file():
        return None
    config = json.loads((folder / "config.json").read_text())
    used = {key: value for key, value in config.items() if key not in ("use_cache", "transformers_version")}
    files = {
        path.name: path.read_bytes()
        for path in folder.glob("*")
        if path.suffix in (".json", ".jinja", ".model", ".txt")
    }
    tokenizer = json.loads(files.pop("tokenizer_config.json", "{}"))
    same = {key: value for key, value in tokenizer.items() if key not in ("is_local", "local_files_only")}
    del files["config.json"]
    files.pop("model.safetensors.index.json", None)
    return [used, same, files]


def generate(models: list[str], problems: list[dict], settings: dict) -> Iterator[list[dict]]:
    """For each model the problems as lib/evaluation/problem_sets.py loads them, with N `responses`, their `tokens` and `truncated`.

    Models of one architecture in folders share an engine, which reloads its weights.

    Args:
        settings: `engine` and `sampling`, arguments of vllm.LLM and vllm.SamplingParams, and `apply_chat_template`.
            The `prompt` of a result is the text that the model was given; as in OpenRLHF, no special tokens are added.
    """
    for served, group in itertools.groupby(models, architecture):
        batches = [[model] for model in group] if served is None else [list(group)]
        for batch in batches:
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                for model in batch:
                    try:
                        yield pool.submit(sample, model, problems, settings).result()
                    except BrokenProcessPool:
                        raise SystemExit(
                            f"eval/evaluate.py: --models {model}: vLLM's process died, see its output above"
                        ) from None

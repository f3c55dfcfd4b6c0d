"""Everything that a run reads, looked at before Ray starts: the models, the reward's or agent's file, the data."""

import os
from contextlib import nullcontext
from typing import Any

from openrlhf_sagc.config.causes import short
from openrlhf_sagc.config.data import check_columns, check_rows
from openrlhf_sagc.config.datasets import Source, count, evaluation_source, load_sets, training_source
from openrlhf_sagc.config.plug_ins import looked_at, plug_in_of
from openrlhf_sagc.config.prompts import check_chat_template, check_prompts, check_template, load_tokenizer
from openrlhf_sagc.config.refusal import refuse
from openrlhf_sagc.config.settings import Settings

MODELS = ("actor", "ref", "critic", "reward")
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
LOCAL = ("/", "./", "../", "~")  # how a path begins that is no name on the hub


def check_inputs(args: Settings) -> int:
    """Look at what the run reads; the file of the reward or agent is imported meanwhile, in a process of its own.

    Args:
        args: OpenRLHF's, after its own checks.

    Returns:
        The number of training prompts.

    Raises:
        SystemExit: the run could not use something; the message is one line.
    """
    _check_models(args)
    plug_in = plug_in_of(args)
    with looked_at(*plug_in) if plug_in else nullcontext():
        check_template(args)
        tokenizer = None
        if args.data.max_images_per_prompt == 0 and args.actor.model_name_or_path:
            tokenizer = load_tokenizer(args)
        if tokenizer is not None:
            check_chat_template(args, tokenizer)
        prompts = count(args, training_source(args), _check_source(args, training_source(args), tokenizer))
        if args.eval.dataset:
            names: set[str] = set()
            source = evaluation_source(args)
            count(args, source, _check_source(args, source, tokenizer, names))
            _check_metric(args, names)
    return prompts


def _check_models(args: Settings) -> None:
    """Each model that the run loads can be had."""
    sections = ["actor", "ref", "critic"] if args.reward.remote_url or args.train.agent_func_path else [*MODELS]
    for section in sections:
        if model := getattr(getattr(args, section), "model_name_or_path", None):
            check_model(f"--{section}.model_name_or_path", model)


def check_model(flag: str, model: str) -> None:
    """The model is a folder that has one, or can be had from the hub or its cache.

    Raises:
        SystemExit: it is not; the message is one line.
    """
    is_path = model.startswith(LOCAL) or os.path.isdir(model)
    refuse(
        not is_path and "," in model,
        f"{flag} {model} names several models, and OpenRLHF 0.11.2 loads one: give {model.split(',')[0]}, or a .py file that adds "
        "the rewards of several as --reward.remote_url",
    )
    refuse(
        is_path and not os.path.isdir(model),
        f"{flag} {model} is not there (seen from {os.getcwd()}): give the model's folder",
    )
    refuse(
        is_path and not os.path.exists(os.path.join(model, "config.json")),
        f"{flag} {model} has no config.json: give the folder of a model that was saved with save_pretrained",
    )
    problem = "" if is_path else missing_on_hub(model)
    refuse(
        problem,
        f"{flag} {model} is no folder here, and the hub's model cannot be had: {problem}: give a model's folder, or a name that the "
        "hub or its cache has",
    )


def missing_on_hub(model: str) -> str:
    """Why a model of the hub can be loaded neither from there nor from the cache; empty if it can."""
    from huggingface_hub import try_to_load_from_cache
    from transformers import utils

    def is_cached(name: str) -> bool:
        return isinstance(try_to_load_from_cache(model, name), str)

    try:
        if is_cached("config.json") and any(map(is_cached, WEIGHTS)):
            return ""  # without asking the hub, which takes half a minute where it does not answer
        utils.cached_file(model, "config.json")
        return "" if any(utils.hub.has_file(model, name) for name in WEIGHTS) else "it has no weights"
    except Exception as error:  # of the name, the network, or the hub
        return short((str(error).splitlines() or [type(error).__name__])[0]).rstrip(".")


def _check_source(args: Settings, source: Source, tokenizer: Any, names: set[str] | None = None) -> list[int]:
    """The number of rows of each set; `names` gets what the rows say of the set that they come from."""
    sizes = []
    for name, rows in load_sets(args, source):
        check_columns(args, source, name, rows.column_names)
        check_rows(args, source, name, rows)
        if tokenizer is not None:
            check_prompts(args, source, name, rows, tokenizer)
        sizes.append(len(rows))
        if names is not None:
            names |= _names_of(rows, name)
    return sizes


def _names_of(rows: Any, name: str) -> set[str]:
    """The sets that an evaluation's metrics are named after."""
    if "datasource" not in rows.column_names:
        return {"default"}
    kind = getattr(rows.features["datasource"], "dtype", "")
    refuse(
        kind in ("", "list", "dict", "struct"),
        f"--eval.dataset {name}: its column datasource has no texts, and metrics are named after them: give a text a row",
    )
    return {str(word) for word in rows.unique("datasource")}


def _check_metric(args: Settings, names: set[str]) -> None:
    """--ckpt.best_metric_key is a metric of the evaluation."""
    key, samples = args.ckpt.best_metric_key, args.eval.n_samples_per_prompt
    of_set = (f"pass{samples}", "pass1", "response_length_mean", "truncated_rate")
    metrics = [f"eval_{name}_{metric}" for name in sorted(names) for metric in dict.fromkeys(of_set)]
    metrics += ["eval_response_length_mean", "eval_truncated_rate", "eval_num_samples"]
    refuse(
        key not in ("none", "") and key not in metrics,
        f"--ckpt.best_metric_key {key}: no such metric of --eval.dataset (there are {', '.join(metrics[:12])})",
    )

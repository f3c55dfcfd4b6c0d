"""Everything that a run reads, looked at before Ray starts: the model's folder, the reward's or agent's file, the data."""

import os
from contextlib import nullcontext
from typing import Any

from openrlhf_sagc.config.data import check_columns, check_rows
from openrlhf_sagc.config.datasets import Source, count, evaluation_source, load_sets, training_source
from openrlhf_sagc.config.plug_ins import looked_at, plug_in_of
from openrlhf_sagc.config.prompts import check_chat_template, check_prompts, check_template, load_tokenizer
from openrlhf_sagc.config.refusal import refuse
from openrlhf_sagc.config.settings import Settings

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
    for section in ("actor", "ref", "critic", "reward"):
        _check_model(args, section)
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


def _check_model(args: Settings, section: str) -> None:
    models = getattr(getattr(args, section), "model_name_or_path", None) or ""
    for model in models.split(",") if section == "reward" else [models]:
        is_path = model.startswith(LOCAL) or os.path.isdir(model)
        flag = f"--{section}.model_name_or_path {model}"
        refuse(
            is_path and not os.path.isdir(model),
            f"{flag} is not there (seen from {os.getcwd()}): give the model's folder",
        )
        refuse(
            is_path and not os.path.exists(os.path.join(model, "config.json")),
            f"{flag} has no config.json: give the folder of a model that was saved with save_pretrained",
        )


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

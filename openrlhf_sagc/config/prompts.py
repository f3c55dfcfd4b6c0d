"""What the templates and the tokenizer make of prompts: drawn rows, or all of them, become prompts as in OpenRLHF."""

import argparse
import os
import random
from typing import Any

from openrlhf_sagc.config.causes import cause
from openrlhf_sagc.config.datasets import Source
from openrlhf_sagc.config.refusal import refusal, refuse
from openrlhf_sagc.config.settings import Settings

ALL = "all"
DRAWN = 2000  # rows of a set that are looked at, without --data.check_rows
BATCH = 1000  # prompts that are tokenized together
MARK = "\N{OBJECT REPLACEMENT CHARACTER}"  # stands for a prompt


def rows_to_check(text: str) -> int | str:
    """The value of --data.check_rows.

    Raises:
        ArgumentTypeError: it is none.
    """
    if text == ALL:
        return ALL
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number of rows: use 1 or more, or {ALL}")
    return int(text)


def check_template(args: Settings) -> None:
    """--data.input_template takes a prompt, in one place.

    Raises:
        SystemExit: it does not; the message is one line.
    """
    data = args.data
    if data.apply_chat_template:
        if data.input_template or data.dropped_template:
            print(
                "openrlhf_sagc: --data.input_template has no effect with --data.apply_chat_template: drop one of them"
            )
        return
    template = data.input_template or data.dropped_template
    if template is None:
        return
    try:
        places = template.format(MARK).count(MARK)
    except (ValueError, IndexError, KeyError, AttributeError):
        places = 0
    refuse(
        places != 1 or data.input_template is None,
        f"--data.input_template {template!r} does not take the prompt in one place: write {{}} once, where the prompt goes, and "
        "each other brace twice, {{ and }}",
    )


def load_tokenizer(args: Settings) -> Any:
    """The model's tokenizer as OpenRLHF loads it; None, and a line, where it is not had without running code of the model.

    Only a chat template is worth a download here: the run makes it anyway.

    Raises:
        SystemExit: the model is a folder that has no tokenizer; the message is one line.
    """
    from transformers import AutoConfig, AutoTokenizer

    model = args.actor.model_name_or_path
    here = {"trust_remote_code": False, "local_files_only": not args.data.apply_chat_template}
    try:
        if hasattr(AutoConfig.from_pretrained(model, **here), "vision_config"):
            raise ValueError("a vision model has a processor instead")
        return AutoTokenizer.from_pretrained(model, use_fast=not args.data.disable_fast_tokenizer, **here)
    except Exception as error:
        has_code = "trust_remote_code" in str(error)
        if os.path.isdir(model) and not has_code and not isinstance(error, ValueError):
            raise refusal(
                f"--actor.model_name_or_path {model} has no tokenizer that can be loaded: {cause(error)}"
            ) from error
        print(f"openrlhf_sagc: templates and lengths of the prompts are not checked, without the tokenizer of {model}")
        return None


def check_chat_template(args: Settings, tokenizer: Any) -> None:
    """The tokenizer has a template, if the flags ask for it.

    Raises:
        SystemExit: it has none; the message is one line.
    """
    refuse(
        args.data.apply_chat_template and not tokenizer.chat_template,
        f"--data.apply_chat_template: the tokenizer of --actor.model_name_or_path {args.actor.model_name_or_path} has no chat "
        "template: use the model's instruct variant, or --data.input_template instead",
    )


def check_prompts(args: Settings, source: Source, name: str, rows, tokenizer: Any) -> None:
    """Make prompts of drawn rows, and count those that are cut.

    Args:
        rows: of one set, with the columns that the flags name.

    Raises:
        SystemExit: a template fails, a prompt has no token, or all are longer than what is left to them.
    """
    from openrlhf.datasets.prompts_dataset import preprocess_data
    from tqdm import tqdm

    data, asked = args.data, getattr(args.data, "check_rows", DRAWN)  # OpenRLHF's own command has no such flag
    everything = asked == ALL or asked >= len(rows)
    drawn = range(len(rows)) if everything else sorted(random.Random(args.train.seed).sample(range(len(rows)), asked))
    template = tokenizer.apply_chat_template if data.apply_chat_template else None
    limit, longest, cut = _limit(args), 0, 0
    texts = rows.select_columns([data.input_key])
    progress = tqdm(total=len(drawn), desc="openrlhf_sagc: checking the prompts", disable=asked != ALL)
    for start in range(0, len(drawn), BATCH):
        numbers = drawn[start : start + BATCH]
        prompts = []
        for number, row in zip(numbers, texts.select(numbers)):
            try:
                prompts.append(preprocess_data(row, data.input_template, data.input_key, None, template)[0])
            except Exception as error:
                raise refusal(
                    f"{source.flag} {name}: row {number + 1} (counted from 1): the chat template of "
                    f"{args.actor.model_name_or_path} does not take the prompt: {cause(error)}"
                ) from error
        lengths = [len(tokens) for tokens in tokenizer(prompts, add_special_tokens=False)["input_ids"]]
        refuse(
            not any(lengths) and not args.train.agent_func_path,
            f"--actor.model_name_or_path {args.actor.model_name_or_path}: its tokenizer makes no token of the prompts of "
            f"{source.flag} {name}: save the tokenizer's files beside the model",
        )
        for number, length in zip(numbers, lengths):
            refuse(
                length == 0 and not args.train.agent_func_path,
                f"{source.flag} {name}: row {number + 1} (counted from 1): the tokenizer makes no token of the prompt: drop it",
            )
        longest, cut = max(longest, *lengths), cut + sum(length > limit for length in lengths)
        progress.update(len(numbers))
    progress.close()
    if cut:
        _say_cut(args, f"{source.flag} {name}", cut, len(drawn), everything, longest)


def _limit(args: Settings) -> int:
    """Tokens of a prompt that OpenRLHF leaves."""
    return args.data.max_len - (args.rollout.max_new_tokens or 1)


def _say_cut(args: Settings, what: str, cut: int, drawn: int, everything: bool, longest: int) -> None:
    new = args.rollout.max_new_tokens
    left = f"--data.max_len {args.data.max_len}" + (f" less --rollout.max_new_tokens {new}" if new else " less one")
    of = f"{drawn}" if everything else f"{drawn} drawn"
    line = (
        f"{what}: {cut} of {of} prompts ({100 * cut / drawn:.3g} %) are longer than the {_limit(args)} tokens that {left} leaves "
        f"(the longest has {longest}), and lose their beginning: use --data.max_len {longest + (new or 1)}, or drop them"
    )
    refuse(cut == drawn and not args.train.agent_func_path, line)
    print(f"openrlhf_sagc: {line}")

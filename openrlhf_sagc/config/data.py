"""What a run's data hold, over all rows: the columns, prompts and labels that are missing, empty, or of the wrong kind.

What would end the run or train nonsense ends it here, with the row; what costs its group alone is a warning with a count.
Rows are counted from 1, as the lines of a .jsonl file.
"""

import re
from collections.abc import Iterator
from typing import Any

from openrlhf_sagc.config.causes import short
from openrlhf_sagc.config.datasets import Source
from openrlhf_sagc.config.refusal import refuse
from openrlhf_sagc.config.settings import Settings

BATCH = 10_000  # rows that are looked at together
TAG = "<image>"
PROMPTS = ("prompt", "question", "problem", "query", "instruction", "input", "messages", "conversations", "text")
LABELS = ("label", "answer", "ground_truth", "solution", "target", "reference")
MISSING, EMPTY = "the prompt is missing", "the prompt is empty"
IMAGE = f"the prompt has {TAG}, and there is no image"
CONVERSATION = "the prompt is the JSON text of a conversation, which the chat template takes for one user message"
JSON_CHAT = r"""^\s*\[\s*\{\s*["'](?:role|content|from|value)["']\s*:"""
ADVICE = {
    CONVERSATION: "store a list of messages instead",
    MISSING: "drop these rows, or give them a prompt",
    EMPTY: "drop these rows, or give them a prompt",
    IMAGE: "remove the tag, or give a vision model's run --data.max_images_per_prompt and --data.image_key",
}


def check_columns(args: Settings, source: Source, name: str, columns: list[str]) -> None:
    """The columns that the flags name are there.

    Raises:
        SystemExit: one is not; the message is one line.
    """
    keys = (("--data.input_key", args.data.input_key, PROMPTS), ("--data.label_key", args.data.label_key, LABELS))
    for flag, key, usual in keys:
        there = next((column for word in usual for column in columns if column.lower() == word), None)
        refuse(
            key is not None and key not in columns,
            f"{flag} {key}: no such column in {source.flag} {name} (there are {', '.join(map(short, columns))})"
            + (f": use {flag} {there}" if there else ""),
        )
    there = next((column for word in LABELS for column in columns if column.lower() == word), None)
    if args.data.label_key is None and there and there != args.data.input_key:
        print(f"openrlhf_sagc: no --data.label_key is given, so the reward gets no label: {name} has a column {there}")


def check_rows(args: Settings, source: Source, name: str, rows) -> None:
    """Look at all prompts and labels of a set.

    Args:
        rows: of the `datasets` library, with the columns that the flags name.

    Raises:
        SystemExit: a prompt cannot be trained on, or no row has a label; the message is one line.
    """
    found: dict[str, list[int]] = {}  # problem -> the first row, how many
    start = 0
    for prompts, images in _batches(args, rows):
        _refuse_other_bytes(prompts, start, f"{source.flag} {name}", "prompt")
        for problem, first, count in prompts_problems(args, prompts, images):
            place = found.setdefault(problem, [start + first, 0])
            place[1] += count
        start += len(prompts)
    for problem, (first, count) in sorted(found.items(), key=lambda item: item[1]):
        line = f"{source.flag} {name}: row {first + 1}: {problem}"
        line += (
            f" ({count} such rows of {len(rows)}, counted from 1)"
            if count > 1
            else f" (one row of {len(rows)}, counted from 1)"
        )
        advice = ADVICE.get(problem)
        if problem == CONVERSATION:  # trained on as it is, by unpatched OpenRLHF too
            print(f"openrlhf_sagc: {line}: {advice}")
            continue
        refuse(not _left_to_the_agent(args, problem), f"{line}: {advice}" if advice else line)
        print(f"openrlhf_sagc: {line}: the agent gets it as it is")
    _check_labels(args, source, name, rows)


def _left_to_the_agent(args: Settings, problem: str) -> bool:
    """An agent may make a prompt of its own; with a chat template OpenRLHF reads the prompts before it does."""
    return bool(args.train.agent_func_path) and (problem in (MISSING, EMPTY) or not args.data.apply_chat_template)


def _refuse_other_bytes(values, start: int, what: str, kind: str) -> None:
    """End the run on an Arrow array with a text that is not UTF-8: it loads, and Python cannot read it."""
    import pyarrow as pa

    if isinstance(values, list):
        return
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        for index, value in enumerate(values):
            try:
                value.as_py()
            except UnicodeDecodeError:
                refuse(
                    True,
                    f"{what}: row {start + index + 1} (counted from 1): the {kind} is not UTF-8: save the file as UTF-8",
                )


def _batches(args: Settings, rows) -> Iterator[tuple[Any, list]]:
    """(prompts, the images of each) of all rows: texts and plain chats as an Arrow array, others as a list."""
    key, image_key = args.data.input_key, args.data.image_key
    has_images = args.data.max_images_per_prompt > 0 and image_key in rows.column_names
    feature = rows.features[key]
    if not has_images and (_is_text(feature) or _is_chat(feature)):
        for table in rows.select_columns([key]).with_format("arrow").iter(BATCH):
            yield table.column(key).combine_chunks(), []
        return
    columns = [key, image_key] if has_images else [key]
    for batch in _undecoded(rows.select_columns(columns), image_key).iter(BATCH):
        yield batch[key], batch.get(image_key, [])


def _undecoded(rows, image_key: str):
    """The rows with images as they are stored."""
    from datasets import Image

    feature = rows.features.get(image_key)
    return rows.cast_column(image_key, Image(decode=False)) if isinstance(feature, Image) else rows


def _is_text(feature: Any) -> bool:
    return getattr(feature, "dtype", None) in ("string", "large_string")


def _is_chat(feature: Any) -> bool:
    """Whether each row is a list of messages whose role and content are texts."""
    messages = getattr(feature, "feature", None)
    return isinstance(messages, dict) and all(_is_text(messages.get(key)) for key in ("role", "content"))


def prompts_problems(args: Settings, prompts, images: list) -> Iterator[tuple[str, int, int]]:
    """(problem, index of the first prompt that has it, how many have it)."""
    if not isinstance(prompts, list):
        if not hasattr(prompts.type, "value_type"):
            yield from _texts_problems(args, prompts)
            return
        if args.data.apply_chat_template and _are_good_chats(prompts):
            return
        prompts = prompts.to_pylist()
    found: dict[str, list[int]] = {}
    for index, prompt in enumerate(prompts):
        if problem := _prompt_problem(args, prompt, bool(images) and bool(images[index])):
            found.setdefault(problem, []).append(index)
    for problem, indices in found.items():
        yield problem, indices[0], len(indices)


def _are_good_chats(chats) -> bool:
    """Whether nothing about these lists of messages needs a look at each; in Arrow, a hundred times as fast."""
    import pyarrow.compute as pc

    messages = chats.flatten()
    roles, contents = pc.struct_field(messages, "role"), pc.struct_field(messages, "content")
    if chats.null_count or messages.null_count or roles.null_count or contents.null_count:
        return False
    suspect = pc.or_(pc.match_substring(contents, TAG), pc.equal(pc.utf8_trim_whitespace(contents), ""))
    return pc.min(pc.list_value_length(chats)).as_py() > 0 and not pc.any(suspect).as_py()


def _texts_problems(args: Settings, texts) -> Iterator[tuple[str, int, int]]:
    """Of texts in an Arrow array."""
    import pyarrow.compute as pc

    masks = {
        MISSING: pc.is_null(texts),
        EMPTY: pc.fill_null(pc.equal(pc.utf8_trim_whitespace(texts), ""), False),
    }
    if args.data.apply_chat_template:  # which makes parts of the text that stand for images
        masks[IMAGE] = pc.fill_null(pc.match_substring(texts, TAG), False)
        masks[CONVERSATION] = pc.fill_null(pc.match_substring_regex(texts, JSON_CHAT), False)
    for problem, mask in masks.items():
        if count := pc.sum(mask).as_py():
            yield problem, pc.index(mask, True).as_py(), count


def _prompt_problem(args: Settings, prompt: Any, has_images: bool) -> str:
    """Why OpenRLHF makes no prompt of it; empty if it does."""
    chat = args.data.apply_chat_template
    if prompt is None:
        return MISSING
    if isinstance(prompt, str):
        if not prompt.strip():
            return EMPTY
        if chat and TAG in prompt and not has_images:
            return IMAGE
        return CONVERSATION if chat and re.match(JSON_CHAT, prompt) else ""
    if chat and isinstance(prompt, list):
        return _chat_problem(prompt, has_images)
    if chat:
        return f"the prompt is {_kind(prompt)}: with --data.apply_chat_template use a text or a list of messages"
    if isinstance(prompt, list) and prompt and all(isinstance(message, dict) for message in prompt):
        return "the prompt is a list of messages: add --data.apply_chat_template"
    if args.data.input_template and not isinstance(prompt, list | dict):
        return ""  # the template makes a text of a number
    return f"the prompt is {_kind(prompt)}: use a text"


def _chat_problem(messages: list, has_images: bool) -> str:
    if not messages:
        return EMPTY
    for message in messages:
        if not isinstance(message, dict):
            return f"the prompt is a list with {_kind(message)}: use a text, or messages with role and content"
        given = [key for key, value in message.items() if value is not None]
        if not isinstance(message.get("role"), str):
            return f"a message has no role (it has {', '.join(map(short, given))}): name the keys role and content"
        content = message.get("content")
        if content is None and "content" in message and not message.get("tool_calls"):
            return "a message's content is null: give it a text, or drop the row"
        if content is None and not message.get("tool_calls"):
            return f"a message has no content (it has {', '.join(map(short, given))}): name the keys role and content"
        if not isinstance(content, str | list | None):
            return f"a message's content is {_kind(content)}: use a text"
        if isinstance(content, str) and TAG in content and not has_images:
            return IMAGE
    contents = [message.get("content") for message in messages]
    return "" if any(content.strip() if isinstance(content, str) else content for content in contents) else EMPTY


def _kind(value: Any) -> str:
    kinds = {bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "a dict", str: "a text"}
    return "nothing" if value is None else kinds.get(type(value), f"a {type(value).__name__}")


def _check_labels(args: Settings, source: Source, name: str, rows) -> None:
    key = args.data.label_key
    if key is None:
        return
    of_server = (
        args.reward.remote_url and not args.train.agent_func_path and not args.reward.remote_url[0].endswith(".py")
    )
    kind = _no_json(rows.features[key]) if of_server else ""
    refuse(
        kind,
        f"--data.label_key {key}: labels of {source.flag} {name} are {kind}, which JSON cannot hold, so that no request for a reward "
        "can be sent: store texts instead, or give a .py file as --reward.remote_url",
    )
    first, count = _missing_labels(rows, key, f"{source.flag} {name}")
    refuse(
        count == len(rows),
        f"--data.label_key {key}: no row of {source.flag} {name} has a label: drop it if the reward needs no labels, or give another",
    )
    if args.reward.remote_url and args.reward.remote_url[0].endswith("/math_reward.py"):
        empty = _label_without_answer(rows, key)
        refuse(
            empty is not None,
            f"--data.label_key {key}: row {(empty or 0) + 1} of {source.flag} {name} has a label without an answer (nothing behind #### or "
            "in \\boxed{}), for which openrlhf_sagc/math_reward.py has no verdict: give it one, or remove the row",
        )
    if count:
        print(
            f"openrlhf_sagc: {source.flag} {name}: row {first + 1} has no label ({count} such rows of {len(rows)}, counted from "
            "1): if the reward needs one, their groups are lost"
        )


def _label_without_answer(rows, key: str) -> int | None:
    r"""Index of the first label that ends with `####` or `\boxed{}`, with nothing in it."""
    import pyarrow.compute as pc

    start = 0
    if "string" not in str(getattr(rows.features[key], "dtype", "")):
        return None
    for batch in rows.select_columns([key]).with_format("arrow").iter(BATCH):
        ends = pc.match_substring_regex(
            batch.column(key).combine_chunks(), r"(?:####\W*|\\boxed\s*\{\s*\}[\s.$\])]*)$"
        )
        found = pc.index(ends, True).as_py()
        if found >= 0:
            return start + found
        start += len(ends)
    return None


def _no_json(feature: Any) -> str:
    """What JSON cannot hold in values of a column, which is of the `datasets` library; empty if it can hold them."""
    inner = list(feature.values()) if isinstance(feature, dict) else feature if isinstance(feature, list) else []
    inner += [feature.feature] if hasattr(feature, "feature") else []
    if found := next(filter(None, map(_no_json, inner)), ""):
        return found
    kind = str(getattr(feature, "dtype", ""))
    is_value = type(feature).__name__ == "Value"
    return kind if is_value and re.match("timestamp|date|time|duration|decimal|.*binary", kind) else ""


def _missing_labels(rows, key: str, what: str) -> tuple[int, int]:
    """(index of the first row without a label, how many have none)."""
    import pyarrow.compute as pc

    labels, first, count, start = rows.select_columns([key]), 0, 0, 0
    plain = "json" not in type(rows.features[key]).__name__.lower()  # of which Arrow has the text
    for batch in (labels.with_format("arrow") if plain else labels).iter(BATCH):
        column = batch.column(key).combine_chunks() if plain else batch[key]
        _refuse_other_bytes(column, start, what, "label")
        missing = column.null_count if plain else sum(label is None for label in column)
        if missing and not count:
            first = start + (pc.index(pc.is_null(column), True).as_py() if plain else column.index(None))
        count, start = count + missing, start + len(column)
    return first, count

"""Problem sets and stored responses for eval/evaluate.py, from files and the Hugging Face hub."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from lib.given import text_lines

from openrlhf_sagc.redaction import visible

LETTERS = "ABCD"
LONGEST_ROW = 1 << 26  # characters: a problem with all its responses
MAX_TOKENS = 999_999_999  # of a response, as in traces
SHUFFLE_SEED = 0  # of the options of multiple choice, the same in every run
BOXED = "{}\nPlease reason step by step, and put your final answer within \\boxed{{}}."
BOXED_LETTER = "{}\nPlease reason step by step, and put the letter of the right option within \\boxed{{}}."


class Preset(NamedTuple):
    """A set on the hub. If it has `wrong_keys` it is multiple choice, and `label_key` holds the right option."""

    hub_name: str
    config: str | None
    split: str
    input_key: str
    label_key: str
    wrong_keys: tuple[str, ...] = ()


PRESETS = {
    "math500": Preset("HuggingFaceH4/MATH-500", None, "test", "problem", "answer"),
    "aime2024": Preset("HuggingFaceH4/aime_2024", None, "train", "problem", "answer"),
    "aime2025": Preset("math-ai/aime25", None, "test", "problem", "answer"),
    "gpqa_diamond": Preset(
        "Idavidrein/gpqa",
        "gpqa_diamond",
        "train",
        "Question",
        "Correct Answer",
        tuple(f"Incorrect Answer {i}" for i in (1, 2, 3)),
    ),
    "gsm8k": Preset("openai/gsm8k", "main", "test", "question", "answer"),
}


def fail(message: str):
    """End the command with this line."""
    raise SystemExit(visible(f"eval/evaluate.py: {message}"))


def read_jsonl(path: Path, flag: str) -> list[tuple[str, dict]]:
    """(where, object) for each line that is not blank; `where` names file and line for messages.

    Raises:
        SystemExit: the file cannot be read, a line is no JSON object, or there is none.
    """
    rows = []
    for i, line in enumerate(_lines(path, flag), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            fail(f"{flag} {path}, line {i}: not JSON ({error.msg} at column {error.colno}): one object a line")
        except RecursionError:
            fail(f"{flag} {path}, line {i}: JSON that is nested too deeply: one object a line")
        except ValueError as error:  # an endless number
            fail(f"{flag} {path}, line {i}: not JSON ({error}): one object a line")
        if not isinstance(row, dict):
            fail(f"{flag} {path}, line {i}: a JSON object is needed, not {line.strip()[:40]!r}")
        rows.append((f"{flag} {path}, line {i}", row))
    return rows or fail(f"{flag} {path}: no problems: the file is empty")


def _lines(path: Path, flag: str) -> Iterator[str]:
    try:
        yield from text_lines(path, longest=LONGEST_ROW)
    except UnicodeDecodeError:
        fail(f"{flag} {path}: not UTF-8 text: give a JSONL file")
    except ValueError as error:
        fail(f"{flag} {error}: give a JSONL file")


def read_hub(name: str, config: str | None, split: str) -> list[tuple[str, dict]]:
    """As read_jsonl, from the hub."""
    from datasets import load_dataset

    try:
        rows = load_dataset(name, config, split=split)
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        fail(f"--dataset {name}: not loaded from the hub ({reason}): give a JSONL file, presets also with --file")
    return [(f"--dataset {name}, row {i}", row) for i, row in enumerate(rows)] or fail(
        f"--dataset {name}: no problems"
    )


def field(where: str, row: dict, key: str, flag: str):
    """row[key]; if there is none, the command ends with a line that says what there is instead."""
    if row.get(key) is None:
        fail(f"{where}: no field {key!r}, found {', '.join(map(repr, row)) or 'none'}: choose one with {flag}")
    return row[key]


def options_of(question: str, right: str, wrong: list[str], rng: random.Random) -> tuple[str, str]:
    """Multiple choice: the question with its options in random order, and the letter of the right one."""
    options = rng.sample([right, *wrong], len(wrong) + 1)
    listed = "\n".join(f"{letter}) {option.strip()}" for letter, option in zip(LETTERS, options))
    return f"{question.strip()}\n\n{listed}", LETTERS[options.index(right)]


def load_problems(
    dataset: str,
    file: Path | None = None,
    split: str | None = None,
    input_key: str | None = None,
    label_key: str | None = None,
    template: str | None = None,
    label_needed: bool = True,
) -> list[dict]:
    """Problems of a preset (from the hub or `file`), a JSONL file or a hub name, each {prompt_id, prompt, label}.

    Columns default to the preset's, else to `prompt` and `label`; a prompt is a text or a list of chat messages, whose
    last one the template is applied to. Labels are strings, "" where there is none and none is needed.

    Raises:
        SystemExit: there is no such set, file or column.
    """
    preset = PRESETS.get(dataset)
    if file and not preset:
        fail(f"--file {file}: it is for the presets ({', '.join(PRESETS)}), --dataset is {dataset!r}")
    if file or (not preset and (Path(dataset).exists() or dataset.endswith((".jsonl", ".json")))):
        rows = read_jsonl(file or Path(dataset), "--file" if file else "--dataset")
    elif preset:
        rows = read_hub(preset.hub_name, preset.config, split or preset.split)
    elif dataset.count("/") == 1:
        rows = read_hub(dataset, None, split or "test")
    else:
        fail(f"--dataset {dataset}: give a JSONL file, a hub name (owner/name), or one of {', '.join(PRESETS)}")
    wrong_keys = preset.wrong_keys if preset else ()
    template = template or ((BOXED_LETTER if wrong_keys else BOXED) if preset else "{}")
    try:
        fits = "problem" in template.format("problem")
    except (IndexError, KeyError, ValueError):
        fits = False
    if not fits:
        fail(f"--input_template {template!r}: it needs one {{}}, where the problem goes; double all other braces")
    optional_label = not label_needed and not label_key
    input_key = input_key or (preset.input_key if preset else "prompt")
    label_key = label_key or (preset.label_key if preset else "label")
    rng, problems = random.Random(SHUFFLE_SEED), []
    for i, (where, row) in enumerate(rows):
        prompt = field(where, row, input_key, "--input_key")
        label = str(row.get(label_key, "") if optional_label else field(where, row, label_key, "--label_key"))
        if label_needed and not label.strip():
            fail(f"{where}: {label_key!r} is empty: grading needs a gold answer")
        if wrong_keys:
            wrong = [str(field(where, row, key, "--dataset")) for key in wrong_keys]
            prompt, label = options_of(prompt, label, wrong, rng)
        if isinstance(prompt, list):
            prompt = [*prompt[:-1], {**prompt[-1], "content": template.format(prompt[-1]["content"])}]
        else:
            prompt = template.format(prompt)
        problems.append({"prompt_id": i, "prompt": prompt, "label": label})
    return problems


def load_responses(files: list[Path], input_key: str, label_key: str, label_needed: bool) -> dict[str, list[dict]]:
    """Stored responses by model, in the order of the files: rows as --responses writes them, their verdicts dropped.

    A row needs a prompt, a label and `responses`, a list of texts; `model` defaults to the file's name, `prompt_id` to
    the row's number within its model, `tokens` and `truncated` (a value a response) may be missing.

    Raises:
        SystemExit: a field is missing or does not fit, two files would be one model by their name, or the models were
            not given the same problems.
    """
    models: dict[str, list[dict]] = {}
    first_files: dict[str, int] = {}
    for i, file in enumerate(files):
        for where, row in read_jsonl(file, "--from_responses"):
            model = file.stem if row.get("model") is None else str(row["model"])
            if first_files.setdefault(model, i) != i and row.get("model") is None:
                fail(
                    f"{where}: no field 'model', and {files[first_files[model]]} has a model {model!r} already: "
                    "rename one of the files, or give the rows the field"
                )
            rows = models.setdefault(model, [])
            label = row.get(label_key, "") if not label_needed else field(where, row, label_key, "--label_key")
            kept = {"prompt_id": row.get("prompt_id", len(rows)), "label": str(label)}
            kept["prompt"] = field(where, row, input_key, "--input_key")
            kept["responses"] = field(where, row, "responses", "the field's name")
            if not isinstance(kept["prompt"], str) or not isinstance(kept["prompt_id"], (int, str)):
                fail(f"{where}: the prompt must be a text, and prompt_id a number or a text")
            if label_needed and not kept["label"].strip():
                fail(f"{where}: {label_key!r} is empty: grading needs a gold answer")
            texts = kept["responses"]
            if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
                fail(f"{where}: 'responses' must be a list of texts, got {str(texts)[:40]!r}")
            for name, kind, high in (("tokens", int, MAX_TOKENS), ("truncated", bool, 1)):
                if row.get(name) is not None:
                    values = row[name] if isinstance(row[name], list) else []
                    if len(values) != len(texts) or not all(
                        type(x) in (int, float, kind) and 0 <= x <= high and x == int(x) for x in values
                    ):
                        form = f"whole numbers from 0 to {high}, one for each response"
                        fail(f"{where}: {name!r} must be a list of {len(texts)} {form}, got {str(row[name])[:40]!r}")
                    kept[name] = [kind(x) for x in values]
            if kept["prompt_id"] in (other["prompt_id"] for other in rows):
                fail(f"{where}: prompt_id {kept['prompt_id']!r} is there twice for one model")
            if rows and len(texts) != len(rows[0]["responses"]):
                fail(
                    f"{where}: {len(texts)} responses, problems before have {len(rows[0]['responses'])}: give as many"
                )
            rows.append(kept)
    first, *others = models
    labels = {row["prompt_id"]: row["label"] for row in models[first]}
    for other in others:
        if {row["prompt_id"]: row["label"] for row in models[other]} != labels:
            fail(f"--from_responses: {first} and {other} differ in prompt_id or label: they need the same problems")
        if len(models[other][0]["responses"]) != len(models[first][0]["responses"]):
            fail(f"--from_responses: {first} and {other} have different numbers of responses a problem")
        order = list(labels)
        models[other].sort(key=lambda row: order.index(row["prompt_id"]))
    return models

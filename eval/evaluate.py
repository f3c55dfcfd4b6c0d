"""Quality of models on a problem set: pass@1, pass@k, majority@k, response lengths, truncation; models side by side.

It samples N responses a problem with vLLM, grades them, and reports means over problems with 95 % bootstrap intervals.
If there are several models, each is compared with the first by problem: paired bootstrap and paired permutation test.

    python eval/evaluate.py --models before after --dataset math500 --apply_chat_template --json quality.json
    python eval/evaluate.py --from_responses responses.jsonl

--grader math takes the last \\boxed{} for the answer (if there is none, what follows ####; thoughts in <think> are left
out), and the label for the gold answer. --grader FILE.py calls OpenRLHF's reward_func(queries, prompts, labels); a score
above 0.5 is right, and there is no majority@k, since there are no answers to count.
"""

import argparse
import json
import math
import os
import sys
from pathlib import Path

import pandas as pd
import rich
from lib.evaluation.grading import grade_math, grade_with_file
from lib.evaluation.problem_sets import PRESETS, fail, load_problems, load_responses
from lib.evaluation.quality import compare, figures_of_problems, powers_of_two, summary
from lib.paths import check_output_file, is_no_plain_file, set_aside, write_whole
from rich.console import Console
from rich.table import Table

from openrlhf_sagc.run.output import redact_output

MAX_SAMPLES = 1024  # binomials beyond it leave the range of floats
console = Console(soft_wrap=True, color_system=None, width=None if sys.stdout.isatty() else 120)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--models", nargs="+", help="HF model folders or hub names; the first is the one compared with"
    )
    source.add_argument("--from_responses", nargs="+", type=Path, help="grade stored responses (JSONL), without vLLM")
    problems = parser.add_argument_group("problems")
    problems.add_argument("--dataset", help=f"JSONL file, hub name (owner/name), or preset: {', '.join(PRESETS)}")
    problems.add_argument("--file", type=Path, help="JSONL file with a preset's problems, instead of the hub")
    problems.add_argument("--split", help="of a hub name; default: test, or the preset's")
    problems.add_argument("--input_key", help="field of the problem; default: prompt, or the preset's")
    problems.add_argument("--label_key", help="field of the gold answer; default: label, or the preset's")
    problems.add_argument("--input_template", help="text with {} for the problem; presets ask for a boxed answer")
    problems.add_argument("--apply_chat_template", action="store_true", help="as a user's message; default: as it is")
    sampling = parser.add_argument_group("sampling")
    sampling.add_argument("--samples", type=int, default=8, help="responses a problem")
    sampling.add_argument("--temperature", type=float, default=1.0)
    sampling.add_argument("--top_p", type=float, default=1.0)
    sampling.add_argument("--max_new_tokens", type=int, default=4096, help="longer responses are truncated")
    sampling.add_argument("--seed", type=int, default=0)
    engine = parser.add_argument_group("vLLM")
    engine.add_argument("--max_model_len", type=int, help="tokens of prompt and response; default: the model's")
    engine.add_argument("--tensor_parallel_size", type=int, default=1)
    engine.add_argument("--dtype", default="bfloat16")
    engine.add_argument("--enforce_eager", action="store_true")
    grading = parser.add_argument_group("grading and results")
    grading.add_argument("--grader", default="math", help="math, or an OpenRLHF reward file")
    grading.add_argument("--k", type=int, nargs="+", help="of pass@k, majority@k; default: powers of two, and N")
    grading.add_argument("--json", type=Path, help="the figures")
    grading.add_argument("--responses", type=Path, help="JSONL: prompts, responses, answers, verdicts")
    grading.add_argument("--trace", type=Path, nargs="+", help="CSV for each model: lengths, for eval/simulate.py")
    return parser.parse_args()


def check(arguments: argparse.Namespace) -> None:
    """End with a line that names the flag, for every fault that can be known before anything runs."""
    if arguments.models:
        for model in arguments.models:
            if not Path(model).is_dir() and (model.count("/") > 1 or model.startswith((".", "/"))):
                fail(f"--models {model}: no such folder, and not a hub name")
        if len(set(arguments.models)) < len(arguments.models):
            fail(f"--models {' '.join(arguments.models)}: a model is named twice")
        if not arguments.dataset:
            fail("--models needs --dataset")
        if arguments.samples > 1 and arguments.temperature == 0:
            fail(f"--samples {arguments.samples} at --temperature 0 are all the same: use --samples 1")
    else:
        for flag in ("dataset", "file", "split", "input_template", "apply_chat_template"):
            if getattr(arguments, flag):
                fail(f"--{flag} is for --models: --from_responses brings its problems along")
    ranges = {"samples": (1, MAX_SAMPLES), "max_new_tokens": (1, math.inf), "temperature": (0, math.inf)}
    ranges |= {"top_p": (1e-9, 1), "tensor_parallel_size": (1, math.inf)}
    for flag, (low, high) in ranges.items():
        if not low <= getattr(arguments, flag) <= high:
            fail(f"--{flag} must be from {low} to {high}, got {getattr(arguments, flag)}")
    if arguments.grader != "math" and not (arguments.grader.endswith(".py") and Path(arguments.grader).is_file()):
        fail(f"--grader {arguments.grader}: give math or an existing Python file with reward_func")
    outputs = {"json": [arguments.json], "responses": [arguments.responses], "trace": arguments.trace or []}
    for flag, path in ((flag, path) for flag, paths in outputs.items() for path in paths):
        try:
            check_output_file(flag, path)
        except ValueError as error:
            fail(str(error))
    check_overwritten(arguments)


def outputs_of(arguments: argparse.Namespace) -> list[tuple[str, Path]]:
    """(flag, file) for everything that is written."""
    files = [("--json", arguments.json), ("--responses", arguments.responses)]
    files += [("--trace", path) for path in arguments.trace or []]
    return [(flag, path) for flag, path in files if path]


def check_overwritten(arguments: argparse.Namespace) -> None:
    """No output takes the place of an input or of another output, by whatever name."""
    inputs = [("--from_responses", path) for path in arguments.from_responses or []]
    inputs += [("--file", arguments.file), ("--dataset", arguments.dataset), ("--grader", arguments.grader)]
    taken = {}
    for flag, path in [*inputs, *outputs_of(arguments)]:
        if path is None or is_no_plain_file(Path(path)):
            continue
        place = os.path.realpath(path)
        if place in taken and (flag, path) not in inputs:
            fail(f"{flag} {path}: it is the file of {taken[place]} too: give another one")
        taken.setdefault(place, flag)


def make_room(arguments: argparse.Namespace) -> None:
    """Move what an earlier evaluation has written aside."""
    for flag, path in outputs_of(arguments):
        try:
            aside = set_aside(path)
        except OSError as error:
            fail(f"{flag} {path}: it is there and cannot be moved aside ({error.strerror}): give another file")
        if aside:
            console.print(f"{flag} {path}: what was there is in {aside}")


def check_responses(arguments: argparse.Namespace, models: dict[str, list[dict]], n: int) -> list[int]:
    """The k to report; ends with a line if --k or --trace do not fit n responses a problem."""
    if n > MAX_SAMPLES:
        fail(f"{n} responses a problem are too many: at most {MAX_SAMPLES}")
    too_large = [k for k in arguments.k or [] if not 1 <= k <= n]
    if too_large:
        fail(f"--k {too_large[0]}: with {n} responses a problem, k must be from 1 to {n}")
    if arguments.trace and len(arguments.trace) != len(models):
        fail(
            f"--trace: {len(arguments.trace)} files for {len(models)} models ({', '.join(models)}): give one for each"
        )
    if arguments.trace and not all("tokens" in row for rows in models.values() for row in rows):
        fail("--trace: the stored responses have no field 'tokens'")
    return sorted(set(arguments.k)) if arguments.k else powers_of_two(n)


def sampled(arguments: argparse.Namespace) -> dict[str, list[dict]]:
    """Responses of every model to the problems."""
    from lib.evaluation.generation import generate

    needed = arguments.grader == "math"
    keys = arguments.split, arguments.input_key, arguments.label_key, arguments.input_template
    problems = load_problems(arguments.dataset, arguments.file, *keys, label_needed=needed)
    chat = next((x["prompt_id"] for x in problems if not isinstance(x["prompt"], str)), None)
    if chat is not None and not arguments.apply_chat_template:
        fail(
            f"--dataset {arguments.dataset}: prompt_id {chat} is not a text: give --apply_chat_template for chat messages"
        )
    check_responses(arguments, dict.fromkeys(arguments.models, []), arguments.samples)
    engine = {name: getattr(arguments, name) for name in ("dtype", "enforce_eager", "tensor_parallel_size", "seed")}
    engine["max_model_len"] = arguments.max_model_len
    sampling = {"n": arguments.samples, "temperature": arguments.temperature, "top_p": arguments.top_p}
    sampling["max_tokens"] = arguments.max_new_tokens
    settings = {"engine": engine, "sampling": sampling, "apply_chat_template": arguments.apply_chat_template}
    models = {}
    console.print(f"{len(problems)} problems, {arguments.samples} samples each")
    make_room(arguments)
    for model, rows in zip(arguments.models, generate(arguments.models, problems, settings)):
        console.print(f"sampled: {model}")
        models[model] = rows
        write_responses(arguments.responses, models)  # kept if the grader fails
    return models


def write_responses(path: Path | None, models: dict[str, list[dict]]) -> None:
    """A line a problem and model, if there is a path."""
    if path:
        rows = ({"model": model, **row} for model, rows in models.items() for row in rows)
        write_whole(path, "".join(json.dumps(row) + "\n" for row in rows))


def write_trace(path: Path, rows: list[dict]) -> None:
    """The project's trace CSV, a row a response; truncated is empty where it is not known."""
    records = [
        (row["prompt_id"], i, tokens, int(correct), "" if truncated is None else int(truncated))
        for row in rows
        for i, (tokens, correct, truncated) in enumerate(
            zip(row["tokens"], row["correct"], row.get("truncated", [None] * len(row["tokens"])))
        )
    ]
    columns = ["prompt_id", "sample_id", "tokens", "correct", "truncated"]
    write_whole(path, pd.DataFrame(records, columns=columns).to_csv(index=False))


def cell(name: str, entry: dict | None, key: str = "value") -> str:
    """A figure's number with its interval below it; empty if there is none."""
    if entry is None:
        return ""
    digits, sign = (0 if name.startswith("tokens") else 3), "+" if key == "difference" else ""
    ends = [f"{entry[end]:{sign}.{digits}f}" for end in ("low", "high") if entry.get(end) is not None]
    return f"{entry[key]:{sign}.{digits}f}" + (f"\n[{', '.join(ends)}]" if ends else "")


def show(result: dict) -> None:
    """The table on the terminal."""
    names = [Path(model["model"]).name for model in result["models"]]
    if len(set(names)) < len(names):
        names = [model["model"] for model in result["models"]]
    table = Table(
        title=f"{result['problems']} problems, {result['samples']} samples each, graded by {result['grader']}"
    )
    table.add_column("mean [95 %]", no_wrap=True)
    for name in names:
        table.add_column(name, justify="right")
    for name in names[1:]:
        table.add_column(f"{name} − {names[0]}", justify="right")
        table.add_column("p", justify="right")
        table.add_column("wins/ties/\nlosses", justify="right")
    for figure in result["models"][0]["figures"]:
        cells = [cell(figure, model["figures"].get(figure)) for model in result["models"]]
        for entry in (comparison["figures"].get(figure) for comparison in result["comparisons"]):
            counts = (
                "/".join(str(entry[key]) for key in ("wins", "ties", "losses")) if entry and "wins" in entry else ""
            )
            p_value = "" if entry is None else "–" if entry["p_value"] is None else f"{entry['p_value']:.4f}"
            cells += [cell(figure, entry, "difference"), p_value, counts]
        table.add_row(figure, *cells)
    console.print(table)


def evaluate(models: dict[str, list[dict]], ks: list[int], grader: str) -> dict:
    """Grade the models' rows in place; the figures as --json writes them."""
    every_row = [row for rows in models.values() for row in rows]
    if grader == "math":
        stopped = grade_math(every_row)
        if stopped:
            console.print(f"{stopped} comparisons of answers took too long; they count as different")
    else:
        grade_with_file(every_row, Path(grader))
    by_problem = {model: figures_of_problems(rows, ks) for model, rows in models.items()}
    first, *others = models
    size = {"problems": len(models[first]), "samples": len(models[first][0]["responses"]), "grader": grader}
    figures = [{"model": model, "figures": summary(rows, by_problem[model])} for model, rows in models.items()]
    pairs = [{"first": first, "second": x, "figures": compare(by_problem[first], by_problem[x])} for x in others]
    return {**size, "models": figures, "comparisons": pairs}


def main() -> None:
    arguments = parse_arguments()
    check(arguments)
    if arguments.models:
        models = sampled(arguments)
    else:
        keys = arguments.input_key or "prompt", arguments.label_key or "label"
        models = load_responses(arguments.from_responses, *keys, arguments.grader == "math")
    n = len(next(iter(models.values()))[0]["responses"])
    ks = check_responses(arguments, models, n)
    if not arguments.models:
        make_room(arguments)
    result = evaluate(models, ks, arguments.grader)
    show(result)
    if arguments.json:
        write_whole(arguments.json, json.dumps(result, indent=2) + "\n")
    write_responses(arguments.responses, models)
    for path, rows in zip(arguments.trace or [], models.values()):
        write_trace(path, rows)


if __name__ == "__main__":
    redact_output()
    rich.reconfigure(file=sys.__stdout__)  # for progress bars, which a terminal shows by control characters
    try:
        main()
    except RecursionError:
        fail("a file holds JSON that is nested too deeply: give one without")

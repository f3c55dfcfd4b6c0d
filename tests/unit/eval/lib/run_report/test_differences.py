"""What arms differ in besides their results."""

from lib.run_report.differences import section
from report_runs import arm_of, run_of


def kept(**flags):
    return {
        "flags": {name.replace("__", "."): value for name, value in flags.items()},
        "versions": {"torch": "2.13.0"},
    }


def found_of(off, ours):
    return section([arm_of("off", run_of([1.0], kept=off)), arm_of("ours", run_of([1.0], kept=ours))]).blocks


def test_flags_of_the_scheduler_are_no_warning():
    (table,) = found_of(
        kept(rollout__batch_size=8, ckpt__path="a"),
        kept(rollout__batch_size=8, ckpt__path="b", rollout__tail_batching__enable=True),
    )
    assert table.rows == [["--rollout.tail_batching.enable", "–", "True"]]


def test_other_flags_and_versions_are():
    other = kept(rollout__batch_size=16)
    other["versions"]["torch"] = "2.14.0"
    one = kept(rollout__batch_size=8) | {"launch": {"NODES": "2", "SAGC": "off"}}
    warning, table = found_of(one, other | {"launch": {"NODES": "2", "SAGC": "all"}})
    assert warning == "Warning: the arms differ in more than the scheduler: --rollout.batch_size."
    assert table.rows == [["--rollout.batch_size", "8", "16"], ["torch", "2.13.0", "2.14.0"], ["SAGC", "off", "all"]]


def test_flags_that_only_one_command_has_are_shown_if_they_are_on():
    ours = kept(rollout__batch_size=16, data__check_rows=2000, rollout__agent_timeout=None, train__x=False)
    warning, table = found_of(kept(rollout__batch_size=8), ours)
    assert warning == "Warning: the arms differ in more than the scheduler: --rollout.batch_size."
    assert table.rows == [["--rollout.batch_size", "8", "16"], ["--data.check_rows", "–", "2000"]]


def test_what_was_not_kept_is_said():
    assert "Flags and versions of off are not known" in found_of({}, kept(rollout__batch_size=8))[0]
    assert found_of(kept(train__seed=1), kept(train__seed=1)) == ["The arms have the same flags and versions."]

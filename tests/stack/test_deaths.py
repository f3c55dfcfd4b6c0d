"""A part of a run dies while others wait for it: the run ends soon, in one line that names the part.

One of the deaths is drawn, or all are with DEATHS=all.
"""

import os
import random
import re
import time

import pytest
from real_runs import AGENTS

pytestmark = pytest.mark.stack
SOON = 150  # seconds, on the slowest machine; a minute is what users are told
DEATHS = {
    f"{who} {when}": name
    for who, name in (("engine", "RolloutRayActor"), ("core", "RolloutRayActor"), ("policy", "PolicyModelActor"))
    for when in ("rendezvous", "sync")
} | {"error rendezvous": "RolloutRayActor"}
ANY = "one of them"  # drawn in the test: workers of pytest-xdist have to agree on the names of the tests
CHOSEN = sorted(DEATHS) if os.environ.get("DEATHS") == "all" else [ANY]
FLAGS = {
    "reward__remote_url": AGENTS / "dying_reward.py",
}


@pytest.mark.parametrize("death", CHOSEN)
def test_a_death_that_others_wait_through_ends_the_run(train, tmp_path, monkeypatch, death):
    death = random.SystemRandom().choice(sorted(DEATHS)) if death == ANY else death
    print(f"death: {death}")
    killed = tmp_path / "killed"
    monkeypatch.setenv("DIES", death)
    monkeypatch.setenv("KILLED", str(killed))
    run = train("cpu-patched", fails=True, **FLAGS)
    assert time.time() - float(killed.read_text()) < SOON
    (line,) = re.findall(r"^openrlhf_sagc: .* has died: .*", run.output, re.MULTILINE)
    assert re.match(
        rf"openrlhf_sagc: {DEATHS[death]} \(process \d+ on [\d.]+\) has died: .*; its log says why, start ", line
    )
    assert "--ckpt.load_enable" not in line  # nothing was saved


def test_an_engine_that_cannot_start_ends_the_run_with_its_error(train, monkeypatch):
    monkeypatch.setenv("DIES", "engine creation")
    run = train("cpu-patched", fails=True, **FLAGS)
    assert re.search(
        r"^openrlhf_sagc: RolloutRayActor \(process \d+ on [\d.]+\) could not start: --reward.remote_url \S+/dying_reward.py: line \d+: "
        "OSError: libnowhere.so.1: cannot open shared object file; mend that and start again$",
        run.output,
        re.MULTILINE,
    )

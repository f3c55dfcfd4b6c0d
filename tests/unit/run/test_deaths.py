"""A run whose processes die, with Ray's table of actors made up."""

import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from cpu_stack import ROOT
from ray.core.generated.common_pb2 import ActorDeathCause
from ray.exceptions import RayActorError, RayTaskError

from openrlhf_sagc.run import deaths

KILLED = "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR"
TRACEBACK = """ray::RolloutRayActor.__init__() (pid=12)
Traceback (most recent call last):
  File "vllm_engine.py", line 52, in __init__
    self.executor = Agent()
  File "agent.py", line 3
    boxed(
         ^
SyntaxError: '(' was never closed
"""


def dead(name="RolloutRayActor", end=1, **context):
    """A row of Ray's table."""
    cause = ActorDeathCause(**context)
    return {
        "ActorClassName": name,
        "EndTime": end,
        "DeathCause": cause,
        "Pid": 7,
        "Address": {"IPAddress": "10.0.0.2"},
    }


def killed(name="RolloutRayActor", end=1, reason="WORKER_DIED", message=KILLED, **more):
    context = {"reason": reason, "error_message": message, "pid": 12, "node_ip_address": "10.0.0.3", **more}
    return dead(name, end, actor_died_error_context=context)


def raised(text=TRACEBACK, **more):
    return dead(creation_task_failure_context={"formatted_exception_string": text}, **more)


@pytest.fixture
def table(monkeypatch):
    """What Ray has of dead actors; the pauses of the package are short."""
    rows = {}
    monkeypatch.setattr(deaths.ray, "is_initialized", lambda: True)
    monkeypatch.setattr(deaths, "get_runtime_context", lambda: SimpleNamespace(get_job_id=lambda: "01000000"))
    monkeypatch.setattr(deaths.state, "actors", lambda job_id, actor_state_name: dict(rows))
    for name in ("PAUSE", "HEARD_OF", "NODE_LOST"):
        monkeypatch.setattr(deaths, name, 0.05)
    return rows


@pytest.fixture
def args(tmp_path):
    reward = SimpleNamespace(remote_url=["/my/reward.py"])
    train = SimpleNamespace(agent_func_path=None)
    return SimpleNamespace(ckpt=SimpleNamespace(path=str(tmp_path)), reward=reward, train=train)


def end_of(args, error: Exception | None = None) -> str:
    """The line with which a run ends that raises this, or waits for ever."""
    with pytest.raises(SystemExit) as ended, pytest.MonkeyPatch.context() as patch:
        if not error:  # or the interrupt could come when the error has ended the run
            patch.setattr(deaths, "GRACE", 0.05)
        with deaths.ended_by_deaths(args):
            if error:
                raise error
            time.sleep(60)
    beginning, line = str(ended.value).split("\n")
    assert not beginning  # a progress bar may stand there
    return line


def test_a_run_that_waits_for_a_dead_process_ends(table, args):
    table["a"] = killed()
    assert end_of(args) == (
        f"openrlhf_sagc: RolloutRayActor (process 12 on 10.0.0.3) has died: {KILLED}; its log says why, start again (there is "
        "no checkpoint to go on from)"
    )


@pytest.mark.parametrize(
    "error",
    [
        RayActorError(error_msg="The actor died."),
        RayTaskError("GroupTrainer.fit", "Connection closed by peer", RuntimeError("gloo")).as_instanceof_cause(),
    ],
)
def test_what_others_met_is_put_down_to_the_process_that_died(table, args, error):
    table["a"] = killed("PolicyModelActor")
    assert end_of(args, error).startswith(
        "openrlhf_sagc: PolicyModelActor (process 12 on 10.0.0.3) has died: The actor is"
    )


def test_a_checkpoint_is_advised_where_there_is_one(table, args, tmp_path):
    table["a"] = killed()
    checkpoint = tmp_path / "_actor" / "global_step3"
    checkpoint.mkdir(parents=True)
    assert "no checkpoint" in end_of(args)  # it was not saved to its end
    (checkpoint / "metric.json").write_text("{}")
    assert end_of(args).endswith("its log says why, start again with --ckpt.load_enable")


@pytest.mark.parametrize(
    "text, inner",
    [
        (TRACEBACK, "SyntaxError: '(' was never closed"),
        ("Traceback:\n  File 'a'\nKeyError: 'one\ntwo'\n\n", "KeyError: 'one two'"),
        ("OSError: no lib", "OSError: no lib"),
        (
            'Traceback:\n  File "/my/reward.py", line 3, in <module>\n    load()\n  File "/x.py", line 9, in load\nOSError: none',
            "--reward.remote_url /my/reward.py: line 3: OSError: none",
        ),
        ("", "Ray says no more"),
        (f"  at x\nValueError: {'w' * 500}", f"ValueError: {'w' * 388}..."),
    ],
)
def test_the_inner_error_of_a_creation_is_named(table, args, text, inner):
    table["a"] = raised(text)
    assert end_of(args, RayActorError()) == (
        f"openrlhf_sagc: RolloutRayActor (process 7 on 10.0.0.2) could not start: {inner}; mend that and start again"
    )


def test_secrets_of_an_error_are_not_shown(table, args):
    table["a"] = raised("Traceback:\n  at x\nOSError: http://user:open-sesame@host/path?token=open-sesame")
    assert "open-sesame" not in end_of(args) and "OSError: ***" in end_of(args)


def test_the_first_death_is_named_and_not_those_that_followed_from_it(table, args):
    table["a"] = killed("RolloutRayActor", end=5, reason="OWNER_DIED")
    assert "RolloutRayActor" in end_of(args)
    table["b"] = killed("PolicyModelActor", end=9)
    table["c"] = killed("GroupTrainer", end=8, reason="NODE_DIED")
    assert "GroupTrainer" in end_of(args)


def test_out_of_memory_is_named(table, args):
    table["a"] = dead(oom_context={"error_message": "Task was killed due to the node running low on memory."})
    assert "(process 7 on 10.0.0.2) has died: Task was killed due to the node running low on memory.;" in end_of(args)


@pytest.mark.parametrize(
    "row",
    [
        killed(reason="RAY_KILL"),
        killed(reason="OUT_OF_SCOPE"),
        killed(reason="REF_DELETED"),
        killed(message="Worker exit type: INTENDED_USER_EXIT Worker exit detail: exit_actor() is called."),
        killed("ToolOfAnAgent"),
        dead(),
    ],
)
def test_an_end_on_purpose_or_of_an_agents_own_actor_is_no_death(table, args, row):
    table["a"] = row
    with deaths.ended_by_deaths(args):
        time.sleep(0.3)
    with pytest.raises(RayActorError, match="something else"):
        with deaths.ended_by_deaths(args):
            raise RayActorError(error_msg="something else")


def test_a_run_that_ends_by_itself_after_a_death_raises_its_own_error(table, args):
    table["a"] = killed()
    with pytest.raises(ValueError, match="of the run"):
        with deaths.ended_by_deaths(args):
            time.sleep(0.2)
            raise ValueError("of the run")


def test_nothing_is_asked_of_ray_before_it_runs_and_its_failure_is_not_ours(monkeypatch, args, table):
    monkeypatch.setattr(deaths.state, "actors", lambda **_: 1 / 0)
    assert deaths.first_death() is None
    monkeypatch.setattr(deaths.ray, "is_initialized", lambda: False)
    table["a"] = killed()
    assert deaths.first_death() is None


def test_ray_is_not_started_where_it_ends_between_two_looks(monkeypatch):
    """Most functions of Ray's start a cluster where none runs."""
    started, runs = [], iter([True])
    monkeypatch.setattr(deaths.ray, "is_initialized", lambda: next(runs, False))
    monkeypatch.setattr(deaths.ray, "init", lambda: started.append(1))
    assert deaths.first_death() is None and not started and next(runs, None) is None


def test_a_run_that_no_interrupt_reaches_ends_all_the_same():
    """A wait in a library that swallows the interrupt, as a lock in C does."""
    program = f"""
import sys, time
sys.path[:0] = {[str(ROOT / "tests/unit/run"), str(ROOT / "tests"), str(ROOT)]!r}
from types import SimpleNamespace
import test_deaths
from openrlhf_sagc.run import deaths
deaths.PAUSE = deaths.GRACE = deaths.STUCK = 0.1
deaths.first_death = lambda: test_deaths.killed()
with deaths.ended_by_deaths(SimpleNamespace(ckpt=SimpleNamespace(path="none"))):
    while True:
        try:
            time.sleep(1000)
        except KeyboardInterrupt:
            pass
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith(
        "openrlhf_sagc: RolloutRayActor (process 12 on 10.0.0.3) has died: "
    )


def test_a_run_in_the_background_whose_shell_ignores_interrupts_ends_too():
    """As with `nohup ... &` in a script: Python then installs no handler of its own."""
    program = f"""
import signal, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
sys.path[:0] = {[str(ROOT / "tests/unit/run"), str(ROOT / "tests"), str(ROOT)]!r}
from types import SimpleNamespace
import test_deaths
from openrlhf_sagc.run import deaths
deaths.PAUSE = deaths.GRACE = 0.1
deaths.STUCK = 1000
deaths.first_death = lambda: test_deaths.killed()
try:
    with deaths.ended_by_deaths(SimpleNamespace(ckpt=SimpleNamespace(path="none"))):
        time.sleep(1000)
finally:
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert ended.stderr.startswith("\nopenrlhf_sagc: RolloutRayActor (process 12 on 10.0.0.3) has died: ")


@pytest.mark.parametrize(
    "met",
    [
        RayActorError(error_msg="RPC error: Socket closed"),
        *(
            RayTaskError(
                "PolicyModelActor.broadcast_to_vllm", f"{'x' * 3000}\n{line}", OSError()
            ).as_instanceof_cause()
            for line in (
                "OSError: Broken pipe",
                "RuntimeError: Timed out waiting 1800000ms for recv operation to complete",
                "OSError: [Errno 113] No route to host",
                "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error",
                "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above)",
            )
        ),
    ],
    ids=str.split("socket pipe timeout route nccl core"),
)
def test_a_lost_node_is_waited_for_and_the_users_own_interrupt_is_not(table, args, monkeypatch, met):
    monkeypatch.setattr(deaths, "HEARD_OF", 0.0)
    monkeypatch.setattr(deaths, "NODE_LOST", 30.0)
    looks = iter([None, None, killed(reason="NODE_DIED")])
    monkeypatch.setattr(deaths, "_interrupt_after_a_death", lambda *_: None)
    monkeypatch.setattr(deaths, "first_death", lambda: next(looks))
    assert "RolloutRayActor" in end_of(args, met)
    table["a"] = killed()
    with pytest.raises(KeyboardInterrupt), deaths.ended_by_deaths(args):
        raise KeyboardInterrupt


def test_the_users_own_interrupt_is_left_to_others(table, args):
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), deaths.ended_by_deaths(args):
        assert signal.getsignal(signal.SIGINT) is before
        signal.raise_signal(signal.SIGINT)

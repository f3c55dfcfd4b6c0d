"""The end of a run one of whose processes has died, however many others still wait for it.

OpenRLHF's command waits for the trainer, the trainer for the policy, and the policy in a rendezvous or a broadcast for the
engines. Where one of them dies the others may wait for ever: gloo and NCCL do not hear of it, Ray does.
"""

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray._private import state
from ray.exceptions import RayError
from ray.runtime_context import get_runtime_context  # ray's own of this name starts a cluster where there is none

from openrlhf_sagc.config.plug_ins import plug_in_of
from openrlhf_sagc.config.settings import Settings
from openrlhf_sagc.redaction import shown, without_secrets
from openrlhf_sagc.run.checkpoints import is_saved

PAUSE = 2.0  # seconds between two looks at Ray's actors
HEARD_OF = 5.0  # seconds in which Ray hears of a death, after others have met it
NODE_LOST = 45.0  # seconds in which it hears of a lost node, which has to miss several health checks
# In an error of who has met it: Ray's, gloo's, NCCL's, the system's, and that of vLLM's core, some seconds before its actor ends.
LOST = re.compile(
    "connection|socket|broken pipe|unavailable|unreachable|no route|timed out|raylet|nccl|remote process|died|lost|enginedead",
    re.IGNORECASE,
)
GRACE = 20.0  # seconds in which a run that has lost a process may end by itself, with an error of its own
INTERRUPT = signal.SIGUSR2  # of the main thread; a user's own are others
STUCK = 30.0  # seconds in which Python may act on an interrupt
# What the run cannot do without. Other actors of the job are an agent's own.
CLASSES = {
    *("RolloutRayActor", "PolicyModelActor", "ReferenceModelActor", "RewardModelActor", "CriticModelActor"),
    *("GroupTrainer", "GroupTrainerAsync", "GroupGenerator", "GroupTrainingActor"),
}
LONGEST = 400  # characters of what a process said
NOTHING = "Ray says no more"


@contextmanager
def ended_by_deaths(args: Settings) -> Iterator[None]:
    """Run in the command's process, around all that uses Ray: a Ray actor of the run that dies ends it within a minute.

    It ends in one line that names the actor and what it said last, also where nobody would have noticed.

    Args:
        args: OpenRLHF's, for the checkpoint from which the run can go on.

    Raises:
        SystemExit: an actor has died; anything else is raised as it is.
    """
    over, interrupted = threading.Event(), threading.Event()

    def hear(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    usual = signal.signal(INTERRUPT, hear)
    threading.Thread(
        target=_interrupt_after_a_death, args=(over, interrupted, args), name="deaths", daemon=True
    ).start()
    try:
        yield
    except (RayError, KeyboardInterrupt) as error:
        over.set()  # no interrupt comes any more
        if isinstance(error, KeyboardInterrupt) and not interrupted.is_set():
            raise  # the user's own
        if (death := _heard_of(NODE_LOST if LOST.search(str(error)[-2000:]) else HEARD_OF)) is None:
            raise
        raise SystemExit(_line(death, args)) from error
    finally:
        over.set()
        signal.signal(INTERRUPT, signal.SIG_DFL if usual is None else usual)  # None: not Python's own


def _interrupt_after_a_death(over: threading.Event, interrupted: threading.Event, args: Settings) -> None:
    """Interrupt the main thread if the run has not ended by itself a while after it has lost a process."""
    while first_death() is None:
        if over.wait(PAUSE):
            return
    if over.wait(GRACE):
        return
    main = threading.main_thread().ident
    assert main is not None
    interrupted.set()
    signal.pthread_kill(main, INTERRUPT)  # which a sleep in C hears of as well
    if over.wait(STUCK) or (death := first_death()) is None:
        return
    print(_line(death, args), file=sys.stderr, flush=True)
    os._exit(1)


def _heard_of(seconds: float) -> dict[str, Any] | None:
    """The first death, of which Ray is given so many seconds to hear."""
    deadline = time.monotonic() + seconds
    while (death := first_death()) is None and time.monotonic() < deadline:
        time.sleep(PAUSE / 4)
    return death


def first_death() -> dict[str, Any] | None:
    """The actor of this job that died first, as Ray's table has it; None if none has, or Ray does not run.

    Actors that were ended on purpose have not died. Those that died with their owner come last.
    """
    if not ray.is_initialized():
        return None
    try:
        job = ray.JobID.from_hex(get_runtime_context().get_job_id())
        dead = state.actors(job_id=job, actor_state_name="DEAD").values()
    except Exception:  # Ray itself is gone, or on its way: its own error says so
        return None
    died = [actor for actor in dead if actor["ActorClassName"] in CLASSES and _has_died(actor["DeathCause"])]
    return min(died, key=lambda actor: (_died_with_owner(actor["DeathCause"]), actor["EndTime"]), default=None)


def _has_died(cause) -> bool:
    """Whether this cause of Ray's is a death, and no end on purpose."""
    if not cause.HasField("actor_died_error_context"):
        return cause.WhichOneof("context") is not None
    died = cause.actor_died_error_context
    ended = {died.RAY_KILL, died.OUT_OF_SCOPE, died.REF_DELETED, died.UNSPECIFIED}
    return died.reason not in ended and "INTENDED" not in died.error_message


def _died_with_owner(cause) -> bool:
    died = cause.actor_died_error_context
    return died.reason == died.OWNER_DIED


def _line(actor: dict[str, Any], args: Settings) -> str:
    """What the run ends with: who has died, why, and how to go on."""
    cause, who = actor["DeathCause"], f"{actor['ActorClassName']} ({_where(actor)})"
    if cause.HasField("creation_task_failure_context"):
        text = cause.creation_task_failure_context.formatted_exception_string
        return _shown(f"{who} could not start: {_in_plug_in(text, args)}{_last_line(text)}; mend that and start again")
    context = getattr(cause, cause.WhichOneof("context"))
    reason = " ".join(getattr(context, "error_message", "").split()) or NOTHING
    return _shown(f"{who} has died: {_shortened(reason)}; its log says why, {_advice(args)}")


def _in_plug_in(traceback: str, args: Settings) -> str:
    """The reward's or agent's file and its line, if the error was raised in its import, which no check before Ray runs."""
    flag, path, _ = plug_in_of(args) or ("", "", "")
    lines = re.findall(rf'File "{re.escape(path)}", line (\d+)', traceback) if path else []
    return f"{flag} {shown(path, flag)}: line {lines[-1]}: " if lines else ""


def _where(actor: dict[str, Any]) -> str:
    """The process and its node."""
    died = actor["DeathCause"].actor_died_error_context
    node = died.node_ip_address or actor["Address"]["IPAddress"] or "an unknown node"
    return f"process {died.pid or actor['Pid']} on {node}"


def _last_line(traceback: str) -> str:
    """The error that a traceback ends with: its last lines from that which names the error on."""
    lines = [line for line in traceback.splitlines() if line.strip()]
    begin = max((place for place, line in enumerate(lines) if line.startswith((" ", "\t"))), default=-1) + 1
    return _shortened(" ".join(" ".join(lines[begin:] or lines[-1:]).split())) or NOTHING


def _shortened(text: str) -> str:
    """Without secrets, which a cut would leave half of, and not longer than a screen's few lines."""
    text = without_secrets(text)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def _shown(line: str) -> str:
    """On a line of its own: a progress bar of the run may stand on the last one, unended."""
    return f"\nopenrlhf_sagc: {line}"


def _advice(args: Settings) -> str:
    """How to go on: from a checkpoint where there is one."""
    return (
        "start again with --ckpt.load_enable"
        if is_saved(args)
        else "start again (there is no checkpoint to go on from)"
    )

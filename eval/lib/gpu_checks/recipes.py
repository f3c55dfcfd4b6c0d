"""Checks 5 to 8: launch scripts in small. Whether engines have the trained weights, and what a killed engine leaves."""

import os
import re
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from lib.gpu_checks.figures import SCRIPT
from lib.gpu_checks.outcomes import FAIL, PASS, Outcome, measured
from lib.gpu_checks.processes import ROOT
from lib.gpu_checks.runs import CORRECTED, MOVING, STEADY, STEPS, Ended, model, need_stack, train

SMOKE = ("smoke.sh", SCRIPT)
MOST = 0.1  # of what the policy has moved since the start
MOVED = 0.01  # nats a token, by which stale weights would be seen
MOVE = "of the policy's move, the engines' distance from it"
DIED = re.compile(r"^openrlhf_sagc: \w+ \(process \d+ on \S+\) has died: .*", re.MULTILINE)
FREED = re.compile(r"Sleep mode freed ([\d.]+) GiB")
MINUTE, SLOW_MINUTE = 60, 150  # seconds; the second one on a CPU that others use as well


def recipe(node) -> Outcome:
    """The 7B script with importance correction: synced weights, the kernel, and engines that free memory in their sleep."""
    need_stack(node)
    run = train(node, "recipe", *SMOKE, *CORRECTED, *MOVING, *STEADY)
    outcome = weights_of(run)
    if outcome.status == FAIL or node.dry_run:
        return outcome
    freed = [float(found) for found in FREED.findall(run.output)]
    if not freed or not max(freed) > 0:
        return Outcome(FAIL, max(freed, default=0.0), "GiB freed by a sleeping engine", "> 0")
    taken = min(metrics["advantage_kernel"] for metrics in run.steps.values())
    if taken < 1:
        return Outcome(FAIL, taken, "of a step's advantages are the kernel's", ">= 1")
    return measured(outcome.number, MOVE, most=MOST, reason=f"a sleeping engine frees {max(freed):.1f} GiB")


def weights_of(run: Ended, last_alone: bool = False) -> Outcome:
    """How far the engines' log-probabilities are from the policy's, over how far that is from the first one.

    Args:
        run: with MOVING and CORRECTED.
        last_alone: rollouts may be older than the policy, which stands still in the end.
    """
    steps = run.steps
    if run.code != 0:
        return Outcome(FAIL, reason=f"the launch script ended with code {run.code}: {run.why}")
    later = [metrics for number, metrics in sorted(steps.items()) if number > 1]  # in the first one nothing has moved
    if len(steps) < STEPS / 2 or not later:
        return Outcome(FAIL, len(steps), "steps", f">= {max(STEPS // 2, 2)}")
    later = later[-1:] if last_alone else later
    moved = [metrics for metrics in later if not metrics["kl"] < MOVED]  # NaN is not below anything
    if not moved:
        most = max(metrics["kl"] for metrics in later)
        return Outcome(FAIL, most, "nats a token, which the policy has moved at most", f">= {MOVED:g}")
    shares = [abs(metrics["vllm_kl"]) / metrics["kl"] for metrics in moved]
    worst = float("nan") if any(share != share for share in shares) else max(shares)
    furthest = max(abs(metrics["vllm_kl"]) for metrics in later)
    return measured(worst, MOVE, most=MOST, steps=len(steps), vllm_kl=furthest, kl=later[-1]["kl"])


def resume_and_kill(node) -> Outcome:
    """Check 5's run goes on from its checkpoint, loses its engine after a step, and is to end in a line and leave nothing."""
    need_stack(node)
    killed: list[float] = []

    def kill_engine(output: str, mark: str) -> bool:
        if not killed and "Global step" in output and (process := engine_process(output)):
            killed.append(time.monotonic())
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        return bool(killed) and time.monotonic() > killed[0] + 2 * SLOW_MINUTE

    on = ("--ckpt.load_enable", "--train.num_episodes", "50")
    run = train(node, "recipe", *SMOKE, *CORRECTED, *MOVING, *STEADY, *on, watch=kill_engine, keep=True)
    if not killed:
        return Outcome(FAIL, reason=f"the run ended with code {run.code} before its engine was killed: {run.why}")
    seconds = run.ended - killed[0]
    if min(run.steps, default=1) == 1:
        return Outcome(FAIL, reason="the run began anew instead of at its checkpoint")
    if len(lines := DIED.findall(run.output)) != 1:
        return Outcome(FAIL, len(lines), "lines that name the dead process", "1", run.why)
    if run.left:
        return Outcome(FAIL, len(run.left), "processes are left", "0")
    if not node.dry_run and (used := busy_gpus()):
        return Outcome(FAIL, used, "GPUs are in use afterwards", "0")
    return measured(seconds, "s until the run has ended", most=SLOW_MINUTE if node.dry_run else MINUTE)


def engine_process(output: str) -> int:
    """The process that has the engine's weights, as its lines begin: one of this user's that is younger than this process.

    0 if there is none yet.
    """
    for name in ("EngineCore", "RolloutRayActor"):  # the core is in the actor on CPUs
        for number in reversed(
            re.findall(rf"^\W*(?:\[\d+m)?\((?:RolloutRayActor pid=\d+\)\S* \()?{name}\w* pid=(\d+)", output, re.M)
        ):
            with suppress(OSError):
                folder = Path("/proc", number)
                if folder.stat().st_uid == os.getuid() and _began(folder) > _began(Path("/proc/self")):
                    return int(number)
    return 0


def _began(process: Path) -> int:
    """When a process has begun, in ticks since the machine has."""
    return int((process / "stat").read_text().rpartition(")")[2].split()[19])


def busy_gpus() -> int:
    """Of this node's GPUs those with more than a tenth of their memory in use."""
    sys.path.insert(0, str(ROOT / "train_scripts"))
    from gpus import memory_problems, visible_gpus

    return len(list(memory_problems(visible_gpus())))


def two_ranks(node) -> Outcome:
    """Tensor parallelism of 2 and two ranks; the last step has 5 prompts of 3 samples, which they cannot share evenly."""
    need_stack(node)
    heads = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2}
    folder = model(node, "two_heads", **heads)
    two = ("--actor.model_name_or_path", str(folder), "--actor.num_gpus_per_node", "2", "--ref.num_gpus_per_node", "2")
    engines = ("--vllm.num_engines", "1", "--vllm.tensor_parallel_size", "2")
    odd = ("--rollout.n_samples_per_prompt", "3", "--train.batch_size", "12", "--data.max_samples", "29")
    odd += ("--actor.adam.lr", "1e-2")  # a smaller model moves less
    odd += ("--reward.remote_url", str(Path(__file__).with_name("spread_reward.py")))  # so that no group is dropped
    # Without the scheduler, which fills up the last step. On a CPU vLLM would give each worker a core of its own.
    variables = {"SAGC": "off", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    run = train(node, "two_ranks", *SMOKE, *CORRECTED, *MOVING, *STEADY, *two, *engines, *odd, **variables)
    outcome = weights_of(run)
    if outcome.status == PASS and not any(metrics["rollout/num_samples"] % 2 for metrics in run.steps.values()):
        return Outcome(FAIL, 0, "steps gave the ranks unequal numbers of samples", ">= 1")
    return outcome


def asynchronous(node) -> Outcome:
    """One GPU trains while one generates, and pauses for new weights; the policy stands still in the end."""
    need_stack(node)
    slowing = ("--actor.lr_scheduler", "linear", "--actor.lr_warmup_ratio", "0")
    apart = ("--actor.num_gpus_per_node", "1", "--vllm.num_engines", "1")
    words = ("smoke.sh", "dapo_async_partial_rollout.sh", *MOVING, *slowing, *apart)
    return weights_of(train(node, "asynchronous", *words, STEPS=2 * STEPS), last_alone=True)


def one_call(node) -> Outcome:
    """Actor and engine on a GPU each without ZeRO 3: one call an engine announces the weights of a sync."""
    need_stack(node)
    apart = ("--ds.zero_stage", "2", "--algo.dynamic_filtering_surplus", "discard")
    run = train(node, "one_call", *SMOKE, *CORRECTED, *MOVING, *STEADY, *apart, SHAPE="async")
    return weights_of(run)

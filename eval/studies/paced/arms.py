"""What the study trains: shapes, arms and, decided before the runs, their seeds."""

from typing import NamedTuple

from lib.comparison.arms import flags_of
from lib.comparison.tasks import TASKS, Task
from lib.paths import ENGINES

EPISODES = 3
CONTROL = {"max_straggler_rate": 0.2, "straggler_ratio": 2.5}
HEADLINE, OTHERS, TUNING = range(5), range(3), range(100, 103)
ASYNCHRONOUS = {"train.async_enable": None}
DRAFTS = {"rollout.drafts": "siblings"}
PARTIAL = {**ASYNCHRONOUS, "train.partial_rollout_enable": None}
POOL = {**PARTIAL, "rollout.vllm_generate_batch_size": 32}  # twice the prompts of a step


class Shape(NamedTuple):
    """GPUs and a step: how long an iteration takes (ms, and for each request besides), how long all GPUs train a sample."""

    gpus: int
    base_ms: float
    each_ms: float
    sample_ms: float
    prompts: int  # of a step at groups of 8
    problems: int  # of an episode at groups of 8
    task: Task = TASKS["route"]


TWO = Shape(gpus=2, base_ms=30, each_ms=0.03, sample_ms=2000 / 128, prompts=16, problems=320)
SHAPES = {
    "two": TWO,
    "drafts": TWO,
    "countdown": TWO._replace(task=TASKS["countdown"]),
    "pool": TWO,
    "four": Shape(gpus=4, base_ms=20, each_ms=0.03, sample_ms=2000 / 256, prompts=32, problems=640),
}


class Arm(NamedTuple):
    """A policy as lib/policies.py has it, with further flags.

    `engines` and `trainer`: GPUs of each in an asynchronous run; None where all GPUs do both in turn.
    """

    policy: str
    flags: dict[str, object] = {}
    seeds: range = OTHERS
    off: bool = False  # patched, without this package's scheduler
    split: tuple[int, int] | None = None

    @property
    def size(self) -> int:
        digits = self.policy.partition(":")[2].partition("+")[0]
        return int(digits) if digits else 8


def of_control(objective: str) -> Arm:
    return Arm("sagc", {"rollout.sagc.objective": objective})


ARMS = {  # those beside each other take about as long, and run in pairs
    "plain": Arm("fixed:8", seeds=HEADLINE),
    "asynchronous": Arm("unpatched:8", PARTIAL, HEADLINE, split=(1, 1)),
    "auto": Arm("fixed:8+tail", seeds=HEADLINE),
    "sort": Arm("fixed:8+tail:sort", seeds=HEADLINE),
    "filter": Arm("fixed:8+filter", seeds=HEADLINE),
    "auto, filter": Arm("fixed:8+tail+filter", seeds=HEADLINE),
    "unpatched": Arm("unpatched:8"),
    "off": Arm("unpatched:8", off=True),
    "stop": Arm("fixed:8+tail:stop"),
    "sort 1.02": Arm("fixed:8+tail:sort", {"rollout.tail_batching.prompt_ratio": 1.02}),
    "asynchronous, whole rollouts": Arm("unpatched:8", ASYNCHRONOUS, split=(1, 1)),
    "asynchronous, 3 GPUs": Arm("unpatched:8", PARTIAL, split=(2, 1)),
    "asynchronous, whole rollouts, 3 GPUs": Arm("unpatched:8", ASYNCHRONOUS, split=(2, 1)),
    "4": Arm("fixed:4"),
    "16": Arm("fixed:16"),
    "32": Arm("fixed:32"),
    "control": of_control("size"),
    "control, throughput": of_control("throughput"),
    "auto, 16": Arm("fixed:16+tail"),
    "auto, 32": Arm("fixed:32+tail"),
}
PLACED = {"rollout.length_aware_dispatch": None}
SECOND = {name: ARMS[name]._replace(seeds=range(1)) for name in ("plain", "auto", "sort")} | {
    "placed": Arm("fixed:8", PLACED, range(1))
}


DRAFTED = {name: ARMS[name]._replace(seeds=OTHERS) for name in ("plain", "auto")} | {
    "drafts": Arm("fixed:8", DRAFTS),
    "auto, drafts": Arm("fixed:8+tail", DRAFTS),
}
APART = {
    "auto, drafts, apart": Arm("fixed:8+tail", {**DRAFTS, **PLACED})
}  # the rollouts of a group on several engines
POOLED = {"asynchronous": ARMS["asynchronous"]._replace(seeds=OTHERS)} | {
    f"pool, {age}": Arm("fixed:8", {**POOL, "rollout.max_age": age}, split=(1, 1)) for age in (4, 8, 2, 1)
}
POOLED["auto"] = ARMS["auto"]._replace(seeds=OTHERS)
POOLED["asynchronous, 3 GPUs"] = ARMS["asynchronous, 3 GPUs"]
POOLED["pool, 4, 3 GPUs"] = POOLED["pool, 4"]._replace(split=(2, 1))
PLANS = {"two": ARMS, "four": SECOND, "drafts": DRAFTED | APART, "countdown": DRAFTED, "pool": POOLED}


def run_of(arm: Arm, shape: Shape, seed: int) -> tuple[str, list[str], dict[str, str]]:
    """The tree of build/, the flags and the environment of a run."""
    tree, flags = flags_of(arm.policy, "grpo", seed, CONTROL, shape.task)
    engines, trainers = arm.split or (shape.gpus, shape.gpus)
    samples = shape.prompts * 8
    problems = shape.problems * 8 // arm.size  # so that all arms have the same steps in an episode
    settings = {
        "rollout.batch_size": samples // arm.size,
        "train.batch_size": samples,
        "train.num_episodes": EPISODES,
        "data.max_samples": problems,
        "eval.steps": problems * arm.size // samples,  # at the end of an episode
        "vllm.num_engines": engines,
        "ds.attn_implementation": "sdpa",  # a long step's training keeps its pace more often
        **arm.flags,
    }
    flags += [str(word) for name, value in settings.items() for word in (f"--{name}", value) if word is not None]
    environment = {
        "RAY_worker_niceness": "0",
        "PACE_PATH": str(ENGINES / "pace"),
        "PACE_BASE_MS": f"{shape.base_ms}",
        "PACE_EACH_MS": f"{shape.each_ms}",
        "PACE_SAMPLE_MS": f"{shape.sample_ms * shape.gpus / trainers}",
        **({"NO_SCHEDULER": "1"} if arm.off else {}),
    }
    return ("cpu-patched" if arm.off else tree), flags, environment

"""What the log of a run without a trace can say: where the seconds of its steps went, and so what no switch can exceed."""

from pathlib import Path
from typing import NamedTuple

from lib.advice.verdict import LEAST_GAIN
from lib.run_logs.read import read_run

LEAST_STEPS = 10
PARTS = {
    "generation": "timing/generation",
    "experience": "timing/make_experience",
    "training": "timing/ppo_train",
    "sync": "timing/broadcast",
}
IDLE_TAIL = "rollout/idle_tail_seconds"  # logged by this project alone


class Bound(NamedTuple):
    """Means over `steps` steps: `seconds`, its `parts`, and the seconds `spared` at most by any way of rolling out.

    `idle_tail` says whether these are the engines' idle tail, or, where the log has none, all of generation that training
    did not hide.
    """

    steps: int
    seconds: float
    parts: dict[str, float]
    spared: float
    idle_tail: bool

    @property
    def speedup(self) -> float:
        """At most so many times as fast."""
        return self.seconds / (self.seconds - self.spared) if self.seconds > self.spared else float("inf")


def bound_of(folder: Path) -> Bound:
    """Of the run whose TensorBoard files lie below the folder, without its first step, which warms vLLM up.

    Raises:
        ValueError: there is no such log, or too little of it; the message is one line.
    """
    try:
        steps = read_run(folder)
    except ValueError as error:
        raise ValueError(f"--log: {error}") from None
    missing = [name for name in ["timing/step_total", *PARTS.values()] if name not in steps]
    if missing:
        raise ValueError(f"--log {folder} has no {', '.join(missing)}: it is not a log of OpenRLHF's PPO trainer")
    steps = steps.iloc[1:]
    if len(steps) < LEAST_STEPS:
        raise ValueError(f"--log {folder} has {len(steps)} steps behind its first: too few, {LEAST_STEPS} would do")
    seconds = steps["timing/step_total"]
    parts = {part: float(steps[name].mean()) for part, name in PARTS.items()}
    others = steps[[name for part, name in PARTS.items() if part != "generation"]].sum(axis=1)
    generation = steps["timing/generation"].clip(
        upper=(seconds - others).clip(lower=0)
    )  # the rest ran beside training
    idle_tail = IDLE_TAIL in steps
    spared = steps[IDLE_TAIL].clip(upper=generation) if idle_tail else generation
    return Bound(len(steps), float(seconds.mean()), parts, float(spared.mean()), idle_tail)


def lines_of(folder: Path, bound: Bound) -> list[str]:
    """The answer in lines."""
    parts = ", ".join(f"{part} {seconds:.3g}" for part, seconds in bound.parts.items())
    what = "the engines' idle tail" if bound.idle_tail else "generation that training did not hide"
    head = f"{folder}: {bound.steps} steps of {bound.seconds:.3g} s on average: {parts}."
    if bound.speedup < 1 + LEAST_GAIN:
        return [
            head,
            f"Advice: none. Without {what}, {bound.spared:.3g} s, a step is {bound.speedup:.2f} times as fast.",
        ]
    return [
        head,
        f"No switch makes a step more than {bound.speedup:.2f} times as fast: that is without {what}, {bound.spared:.3g} s.",
        "Advice: none yet. A log has no lengths of single rollouts, by which the switches differ. Write them with "
        "`python -m openrlhf_sagc ... --rollout.trace FILE`, or sample the model with eval/evaluate.py --trace FILE. Then: eval/advise.py --trace FILE.",
    ]

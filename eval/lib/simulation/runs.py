"""Simulated runs of policies on numbers of GPUs; the settings are the flags of simulate.py."""

from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
from lib.policies import KINDS, Policy, parse_policy
from lib.simulation.costs import CostModel
from lib.simulation.flags import default_arguments, sizes_of, training_arguments
from lib.simulation.lengths import LogNormal, Trace
from lib.simulation.training import SimulatedTraining
from lib.simulation.work import Work, work_of
from lib.simulation.workloads import WorkloadSource
from rich.console import Console
from rich.progress import Progress

from openrlhf_sagc.own_policies import PolicyError
from openrlhf_sagc.policies import build_controller, build_planner

SUMMED = ("decoded_tokens", "wasted_tokens", "trained_tokens", "expected_tokens")  # of a step; a row has their shares


def check_policy(policy: Policy, arguments: Namespace) -> None:
    """The policy's group sizes fit the step, and one's own can be made.

    Raises:
        ValueError: it does not; the message names the flag.
    """
    sizes, initial = sizes_of(policy, arguments)
    if initial not in sizes:
        raise ValueError(
            f"--group_sizes {' '.join(map(str, sizes))} do not hold --n_samples_per_prompt {initial}, the first step's"
        )
    samples = arguments.batch_size * arguments.n_samples_per_prompt
    hold = policy.hold or arguments.hold
    wrong = [size for size in sizes if size < 2 or hold == "samples" and samples % size]
    if wrong:
        raise ValueError(
            f"--policies {policy.name}: a group size of {wrong[0]} is below 2 or does not divide the {samples} samples of "
            f"a step (--batch_size {arguments.batch_size} x --n_samples_per_prompt {arguments.n_samples_per_prompt})"
        )
    if policy.own:
        with _named():
            build_controller(training_arguments(policy, arguments))


@contextmanager
def _named() -> Iterator[None]:
    """Errors of a policy's parts, with the flags of the command."""
    try:
        yield
    except PolicyError as error:
        raise ValueError(f"--policies{str(error).removeprefix('policy')}") from None
    except ValueError as error:
        raise ValueError(f"--{error}") from None


def train(
    policy: Policy,
    gpus: int,
    source: Trace | LogNormal | WorkloadSource,
    costs: CostModel,
    arguments: Namespace,
    work: Work | None = None,
) -> SimulatedTraining:
    """The simulated run of one policy, whose actors do `work` for a step.

    Raises:
        ValueError: a flag of a policy's parts is out of its range, or there are more actors than samples; the message names
            the flag.
    """
    work = work or Work()
    sizes, _ = sizes_of(policy, arguments)
    prompts_are_held = (policy.hold or arguments.hold) == "prompts"
    fewest = arguments.batch_size * (min(sizes) if prompts_are_held else arguments.n_samples_per_prompt)
    if work.micro_batches != "packed" and fewest < (work.actor_gpus or gpus):
        raise ValueError(
            f"--micro_batches {work.micro_batches}: a step of {fewest} samples is too small for {work.actor_gpus or gpus} GPUs of "
            "actors: use packed, or fewer GPUs"
        )
    if policy.pool and not work.actor_gpus:
        raise ValueError(f"--policies {policy.name}: engines and actors need GPUs of their own: give --actor_gpus")
    if policy.pool and policy.pool > arguments.max_age + 1:
        most = f"use pool:{arguments.max_age + 1} or less, or --max_age {policy.pool - 1}"
        raise ValueError(f"--policies {policy.name}: groups would be older than --max_age {arguments.max_age}: {most}")
    num_engines = (gpus - work.actor_gpus) // costs.gpus_per_engine
    with _named():
        planner = build_planner(training_arguments(policy, arguments), num_engines=num_engines)
    return SimulatedTraining(
        planner, source, costs, gpus=gpus, prompt_tokens=arguments.prompt_tokens, seed=arguments.seed, work=work
    )


def started(
    word: str,
    gpus: int,
    source: Trace | LogNormal | WorkloadSource,
    engine: Path,
    work: Work | None = None,
    **settings,
) -> SimulatedTraining:
    """A study's run: `train` with training's defaults and 128 prompts x 8 samples, but for the settings."""
    usual = {"batch_size": 128, "n_samples_per_prompt": 8, "prompt_tokens": 256, "dynamic_sampling": False, "seed": 0}
    return train(
        parse_policy(word, (*KINDS, "pool")),
        gpus,
        source,
        CostModel.load(engine),
        default_arguments(**usual | settings),
        work,
    )


def simulate(
    policies: list[Policy], source: Trace | LogNormal, costs: CostModel, arguments: Namespace
) -> pd.DataFrame:
    """A row for each number of GPUs and policy.

    Raises:
        ValueError: a step cannot be filled, or a rollout does not fit an engine; the message names the flag.
    """
    work = work_of(arguments)
    runs = [(policy, gpus) for gpus in arguments.gpus for policy in policies]
    rows = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=len(runs) * arguments.steps)
        for policy, gpus in runs:
            name = f"{policy.name}@{policy.hold or arguments.hold}"
            progress.update(task, description=f"{name}, {gpus} GPUs")
            run = train(policy, gpus, source, costs, arguments, work)
            steps = []
            for number in range(1, arguments.steps + 1):
                steps.append(_one_step(run, f"{name}, step {number}", arguments))
                progress.advance(task)
            rows.append({"gpus": gpus, "policy": name, **summary(pd.DataFrame(steps))})
    return pd.DataFrame(rows)


def summary(steps: pd.DataFrame) -> dict[str, float]:
    """Means over the steps of a run; counts, rates and shares of tokens of the whole run; at its end the shares of its last
    100 steps."""
    hours, tokens = steps["seconds"].sum() / 3600, steps[[*SUMMED]].sum()
    totals = {"steps": len(steps), "rollouts": int(steps["rollouts"].sum())}
    rates = {f"{unit}_an_hour": steps[unit].sum() / hours for unit in ("prompts", "samples")}
    shares = steps.filter(like="_tenth_").iloc[-1].to_dict()
    shares |= {
        "wasted_share": tokens["wasted_tokens"] / max(tokens["decoded_tokens"], 1),
        "trained_length_ratio": tokens["trained_tokens"] / tokens["expected_tokens"],
    }
    means = steps.drop(columns=["rollouts", *SUMMED]).mean().to_dict()
    return {**totals, **means, **rates, **shares}


def _one_step(run: SimulatedTraining, where: str, arguments: Namespace) -> dict[str, float]:
    """`run.step()`, with its errors in terms of the flags."""
    try:
        return run.step()
    except PolicyError as error:
        raise ValueError(f"--policies{str(error).removeprefix('policy')}") from None
    except RuntimeError as error:
        cap = f"--max_gen_batches {arguments.max_gen_batches} reached, {where}"
        raise ValueError(f"{cap}: {error}: use prompts that are solved sometimes") from None
    except ValueError as error:
        raise ValueError(f"--engine {arguments.engine}: {error}") from None

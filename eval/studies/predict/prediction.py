"""Seconds of a step that the simulator expects of other arms, with the costs of one that was measured."""

import argparse
from dataclasses import replace

import pandas as pd
from lib.policies import Policy
from lib.simulation.costs import CostModel
from lib.simulation.lengths import Trace
from lib.simulation.runs import train
from lib.simulation.work import Work
from lib.tables import markdown

# Parts of a step in the measurement, and in the simulation.
PARTS = {"generation": "generation", "experience": "experience", "training": "train", "sync": "sync"}
GENERATION = ("generation_base", "decode_base", "decode_per_request", "decode_per_kv_token", "prefill_per_token")


def simulated_steps(
    costs: CostModel,
    policy: Policy,
    work: Work,
    source: Trace,
    steps: int,
    settings: argparse.Namespace,
    num_engines: int = 1,
) -> pd.DataFrame:
    """A row a simulated step of one actor and the engines: its `seconds` and those of the PARTS."""
    run = train(policy, work.actor_gpus + num_engines * costs.gpus_per_engine, source, costs, settings, work)
    names = {f"{simulated}_seconds": measured for measured, simulated in PARTS.items()}
    return pd.DataFrame([run.step() for _ in range(steps)])[["seconds", *names]].rename(columns=names)


def scaled(usual: CostModel, measured: pd.Series, simulated: pd.Series) -> CostModel:
    """Costs with which a simulated arm takes as long as it was measured to.

    Args:
        usual: costs of another machine.
        measured: seconds of the PARTS, of `rest` and of the `optimizer`, NaN if they are not known.
        simulated: seconds of the PARTS of the same arm with the usual costs.
    """
    factors = measured[[*PARTS]] / simulated[[*PARTS]]
    costs = {name: getattr(usual, name) * factors["generation"] for name in GENERATION}
    costs |= {
        name: getattr(usual, name) * factors["experience"] for name in ("experience_base", "experience_per_token")
    }
    optimizer = measured["optimizer"]
    if pd.isna(optimizer):
        optimizer = usual.train_base * factors["training"]
    tokens = (measured["training"] - optimizer) / (simulated["training"] - usual.train_base)
    costs |= {"train_base": optimizer, "train_per_token": usual.train_per_token * tokens}
    costs["sync"] = measured["sync"] + measured["rest"]
    return replace(usual, **{name: float(cost) for name, cost in costs.items()})


def measured_and_predicted(
    measured: pd.Series, predicted: pd.Series, known: pd.Series, known_predicted: pd.Series
) -> dict[str, float]:
    """The cells of an arm: seconds, error, parts, and how many times as fast it is as the arm that the costs are from.

    Args:
        measured, predicted: seconds of the arm, with the PARTS; the measured ones also with the `rest`.
        known, known_predicted: those of the arm that the costs are from.
    """
    row = {"measured": measured["seconds"], "predicted": predicted["seconds"]}
    row["error_percent"] = 100 * (row["predicted"] / row["measured"] - 1)
    row["measured_times"] = known["seconds"] / row["measured"]
    row["predicted_times"] = known_predicted["seconds"] / row["predicted"]
    for part in PARTS:
        row |= {f"measured_{part}": measured[part], f"predicted_{part}": predicted[part]}
    row["measured_sync"] += measured["rest"]
    return row


def report(table: pd.DataFrame, names: dict[str, str], costs_of: str) -> str:
    """The table as Markdown.

    Args:
        table: a row an arm, with the cells of `measured_and_predicted`.
        names: columns that name the arm, with their titles; the last holds `costs_of` where the costs are from.
    """
    titles = [*names.values(), "measured s a step", "predicted", "error"]
    titles += [f"times as fast as {costs_of}, measured", "predicted", "generation", "experience", "training"]
    titles += ["sync and rest"]
    is_known = table[[*names][-1]] == costs_of
    rows = []
    for row, known in zip(table.to_dict("records"), is_known):
        cells = [*(row[name] for name in names), f"{row['measured']:.2f}", f"{row['predicted']:.2f}"]
        cells += ["costs are from here" if known else f"{row['error_percent']:+.1f} %"]
        cells += [f"{row['measured_times']:.2f}", f"{row['predicted_times']:.2f}"]
        cells += [f"{row[f'measured_{part}']:.2f} → {row[f'predicted_{part}']:.2f}" for part in PARTS]
        rows.append(cells)
    errors = table.loc[~is_known, "error_percent"].abs()
    worst = f"\nThe largest error is {errors.max():.1f} %.\n" if len(errors) else ""
    alignment = "".join("r" if name == "size" else "l" for name in names)
    return markdown(titles, rows, alignment + "r" * (len(titles) - len(names))) + worst

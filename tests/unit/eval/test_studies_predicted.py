"""What the simulator predicts of measured runs."""

import pandas as pd
import pytest
from cpu_stack import ROOT
from lib.paths import ENGINES, STUDIES
from lib.simulation.costs import CostModel
from lib.simulation.roofline import roofline
from studies.recipes.run import CONFIGS, RECIPES, Recipe

# --- recipes ---------------------------------------------------------------------------------------------------------


def test_recipes_are_predicted_with_more_slots_and_graphs(study, small):
    recipe = Recipe("Qwen2.5-7B", 2, 1, 64, 8, 2048, 1792, 128)
    small("recipes.run", RECIPES={"small.sh": recipe}, STEPS=1, SEEDS=(0,))
    folder = study("recipes")
    rows = pd.read_csv(folder / "predicted.csv").set_index("launch ms")
    assert rows.index.tolist() == [18, 10] and (rows["slots"] == 512).all()
    for one in ("more slots", "graphs"):  # 256 rollouts an engine, of which 128 wait
        assert (rows["as shipped"] <= rows[one]).all() and (rows[one] < rows["OpenRLHF's settings"]).all()
    times = rows["OpenRLHF's settings"] / rows["as shipped"]
    assert rows["times as fast"].tolist() == pytest.approx(times.tolist(), rel=1e-3) and times[18] > times[10] > 1
    engines = pd.read_csv(folder / "tensor_parallel.csv").iloc[0]
    assert engines["TP 1"] == pytest.approx(rows["as shipped"][10], rel=1e-3)
    assert pd.isna(engines["TP 4"])  # of two GPUs
    small("recipes.run", EPISODES=1, EPISODE=1)
    batched = pd.read_csv(study("recipes", "tail_batching") / "tail_batching.csv").iloc[0]
    assert (batched.drop(["script", "tokens in vain"]).astype(float) > 0).all() and batched["tokens in vain"] >= 0


def test_the_costs_of_a_recipe_are_those_of_the_shipped_engine():
    """Of one H100 with a 7B model, within the precision of its rounded numbers; what is left for work is newer."""
    made, shipped = (
        vars(costs)
        for costs in (roofline(CONFIGS["Qwen2.5-7B"], 1, 0.6, 128), CostModel.load(ENGINES / "h100-7b.json"))
    )
    others = {"kv_limit"}
    assert {name: made[name] for name in made.keys() - others} == pytest.approx(
        {name: shipped[name] for name in shipped.keys() - others}, rel=0.005
    )


def test_scripts_and_pages_have_the_kept_prediction():
    rows = pd.read_csv(STUDIES / "recipes/predicted.csv").groupby("script", sort=False)
    assert [*rows.groups] == [*RECIPES]
    page, openrlhf = (ROOT / "docs/launch_scripts.md").read_text(), "OpenRLHF's settings"
    for script, own in rows:
        seconds = [
            f"{round(own[name].iloc[row]):,}" for name, row in (("as shipped", 0), (openrlhf, 1), (openrlhf, 0))
        ]
        head = " ".join((ROOT / "train_scripts" / script).read_text().partition("set -euo")[0].split("\n# "))
        words = [f"{seconds[0]} s a step", f"{seconds[1]} s where", f"{seconds[2]} s where"]
        assert all(word in head.replace(" # ", " ") for word in words), script
        times = " and ".join(f"{(own[openrlhf] / own['as shipped']).iloc[row]:.2f}" for row in (1, 0))
        cells = f"| {seconds[1]} | {seconds[2]} | {seconds[0]} | {times} |"
        assert cells in page, script

"""Costs of engines and training, as files hold them."""

import json

import pytest
from cpu_stack import ROOT
from engine_costs import costs_of
from lib.simulation.costs import CostModel


@pytest.mark.parametrize("path", sorted((ROOT / "eval/engines").glob("*.json")), ids=lambda path: path.stem)
def test_shipped_engines_load_and_say_where_they_are_from(path):
    assert CostModel.load(path).decode_base > 0
    assert json.loads(path.read_text())["about"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sync": None}, "sync: Field required"),
        ({"speed": 3}, "speed: Unexpected keyword argument, got 3"),
        ({"decode_base": 0}, "decode_base: Input should be greater than 0, got 0"),
        ({"train_base": -1}, "train_base: Input should be greater than or equal to 0, got -1"),
        ({"train_base": float("nan")}, "train_base: Input should be a finite number, got nan"),
        ({"max_running": 1.5}, "max_running: Input should be a valid integer, got 1.5"),
        ({"kv_limit": True}, "kv_limit: Input should be a valid integer, got True"),
        ({"sync": -1, "kv_limit": 0}, "kv_limit: .* got 0; sync: .* got -1; see eval/engines"),
    ],
)
def test_bad_engine_files_are_refused(change, message, tmp_path):
    fields = {name: value for name, value in {**vars(costs_of()), **change}.items() if value is not None}
    path = tmp_path / "engine.json"
    path.write_text(json.dumps(fields))
    with pytest.raises(ValueError, match=f"engine.json: {message}"):
        CostModel.load(path)
    path.write_text("{")
    with pytest.raises(ValueError, match="engine.json is not a JSON file"):
        CostModel.load(path)
    path.write_text("[1]")
    with pytest.raises(ValueError, match="engine.json holds no JSON object"):
        CostModel.load(path)

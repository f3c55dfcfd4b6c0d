"""What each tenth of prompts has of the tokens and of the update, and what that does to learning.

python eval/studies token_weights shares          # simulated: in plain steps and with tail batching
python eval/studies token_weights drift           # a parameter that only long prompts move, under AdamW
python eval/studies token_weights learning RUNS   # what three arms of a comparison logged: its --output
"""

import argparse
import importlib
from pathlib import Path

from lib.paths import study_flags
from studies.token_weights import learning


def main() -> None:
    parser = study_flags(__doc__, Path(__file__).parent)
    parser.add_argument("part", choices=["shares", "drift", "learning"])
    parser.add_argument("runs", type=Path, nargs="?", help="of learning")
    parser.add_argument("--arms", nargs="+", default=learning.ARMS, help="of learning")
    parser.add_argument("--seeds", type=int, nargs="+", default=learning.SEEDS, help="of learning")
    parser.add_argument("--table", default="learning", help="name of learning's two files")
    arguments: argparse.Namespace = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    if arguments.part == "learning":
        if not (arguments.runs and arguments.runs.is_dir()):
            raise ValueError(f"learning needs the folder of a comparison, got {arguments.runs}: give its --output")
        learning.write(arguments.runs, arguments.output / f"{arguments.table}.csv", arguments.arms, arguments.seeds)
    elif arguments.part == "drift":
        importlib.import_module(
            "studies.token_weights.drift"
        ).show_table()  # imports OpenRLHF's loss, which takes a while
    else:
        importlib.import_module("studies.token_weights.shares").write(arguments.output)

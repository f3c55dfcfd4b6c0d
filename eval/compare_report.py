"""Report of a comparison from its steps.csv, evaluations.csv and settings.json: tables, plots, 95 % intervals.

python eval/compare_report.py eval/results/compare/countdown
"""

import argparse
import json
import sys
from pathlib import Path

from comparison.report import write_report

FILES = ("settings.json", "steps.csv", "evaluations.csv")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="that eval/compare.py has written")
    parser.add_argument("--target", type=float, help="another held-out reward than the comparison's")
    arguments = parser.parse_args()
    if missing := [name for name in FILES if not (arguments.folder / name).is_file()]:
        sys.exit(f"eval/compare_report.py: there is no {arguments.folder / missing[0]}: run eval/compare.py first")
    if arguments.target is not None:
        if not 0 < arguments.target < 1:
            sys.exit(f"eval/compare_report.py: --target {arguments.target} is a mean reward, between 0 and 1")
        settings = arguments.folder / "settings.json"
        content = json.loads(settings.read_text()) | {"target": arguments.target}
        settings.write_text(json.dumps(content, indent=2) + "\n")
    print(write_report(arguments.folder))


if __name__ == "__main__":
    main()

"""Report of a comparison from its steps.csv, evaluations.csv and settings.json: tables, plots, 95 % intervals.

python eval/compare_report.py eval/results/compare/countdown
"""

import argparse
import json
from pathlib import Path

from comparison.report import write_report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="that eval/compare.py has written")
    parser.add_argument("--target", type=float, help="another held-out reward than the comparison's")
    arguments = parser.parse_args()
    settings = arguments.folder / "settings.json"
    if arguments.target:
        content = json.loads(settings.read_text()) | {"target": arguments.target}
        settings.write_text(json.dumps(content, indent=2) + "\n")
    print(write_report(arguments.folder))


if __name__ == "__main__":
    main()

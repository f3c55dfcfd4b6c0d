"""Report of a comparison from its steps.csv, evaluations.csv and settings.json: tables, plots, 95 % intervals.

With --join it first writes these files, with runs of other comparisons that have the same settings and other seeds.

python eval/compare_report.py eval/results/compare/countdown
python eval/compare_report.py build/both --join eval/results/compare/long_tail build/more --policies unpatched:32 fixed:8+tail:1
"""

import argparse
import json
import sys
from pathlib import Path

import pandas as pd
from common.paths import output_folder
from comparison.report import write_report

FILES = ("settings.json", "steps.csv", "evaluations.csv")
RUN = ["algorithm", "policy", "seed"]


def join(folders: list[Path], policies: list[str] | None, output: Path) -> None:
    """Write the settings, steps and evaluations of several comparisons' runs into `output`.

    Args:
        policies: whose runs are taken; all if there are none.

    Raises:
        ValueError: settings differ, a policy has no runs in a folder, or a run is in two folders.
    """
    settings = [json.loads((folder / "settings.json").read_text()) for folder in folders]
    for folder, other in zip(folders, settings):
        if differ := [name for name in settings[0] | other if settings[0].get(name) != other.get(name)]:
            raise ValueError(f"--join {folders[0]} {folder}: their settings differ in {', '.join(differ)}")
    joined = {}
    for name in FILES[1:]:
        parts = [pd.read_csv(folder / name) for folder in folders]
        if policies:
            for folder, part in zip(folders, parts):
                if missing := sorted({*policies} - {*part["policy"]}):
                    raise ValueError(f"--policies {missing[0]} has no runs in {folder}")
            parts = [part[part["policy"].isin(policies)] for part in parts]
        runs = pd.concat([part[RUN].drop_duplicates() for part in parts])
        if len(twice := runs[runs.duplicated()]):
            run = " ".join(map(str, twice.iloc[0]))
            raise ValueError(f"--join has a run twice, {run}: give comparisons with other seeds")
        joined[name] = pd.concat(parts)
    output.mkdir(parents=True, exist_ok=True)
    (output / "settings.json").write_text(json.dumps(settings[0], indent=2) + "\n")
    for name, frame in joined.items():
        frame.to_csv(output / name, index=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "folder", type=output_folder, help="that eval/compare.py has written, or a new one with --join"
    )
    parser.add_argument("--target", type=float, help="another held-out reward than the comparison's")
    parser.add_argument("--join", nargs="+", type=Path, default=[], help="folders whose runs are put together")
    parser.add_argument("--policies", nargs="+", help="that --join takes; by default all")
    arguments = parser.parse_args()
    for folder in arguments.join or [arguments.folder]:
        if missing := [name for name in FILES if not (folder / name).is_file()]:
            sys.exit(f"eval/compare_report.py: there is no {folder / missing[0]}: run eval/compare.py first")
    if arguments.target is not None and not 0 < arguments.target < 1:
        sys.exit(f"eval/compare_report.py: --target {arguments.target} is a mean reward, between 0 and 1")
    if arguments.join:
        try:
            join(arguments.join, arguments.policies, arguments.folder)
        except ValueError as error:
            sys.exit(f"eval/compare_report.py: {error}")
    if arguments.target is not None:
        settings = arguments.folder / "settings.json"
        content = json.loads(settings.read_text()) | {"target": arguments.target}
        settings.write_text(json.dumps(content, indent=2) + "\n")
    print(write_report(arguments.folder))


if __name__ == "__main__":
    main()

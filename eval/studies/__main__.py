"""Makes the results of a study again: `python eval/studies NAME`, with its flags. A study is a folder here with a run.py.

The code of others is in an earlier commit, which a study's name says.
"""

import ast
import importlib
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
sys.path[0] = str(FOLDER.parent)  # where lib and studies are
COMMIT = "9a1459f"  # the last one with the code of
FROZEN = ["defaults", "dynamic_sampling", "floor", "grader", "group_sizes", "health", "overhead", "placement"]
FROZEN += ["predict", "published", "rewards", "simulate", "token_weights"]


def main() -> None:
    names = sorted(file.parent.name for file in FOLDER.glob("*/run.py"))
    name = sys.argv.pop(1) if len(sys.argv) > 1 else ""
    if name in ("-h", "--help"):
        print(f"{__doc__}\n")
        for each in names:
            print(
                f"  {each:18} {ast.get_docstring(ast.parse((FOLDER / each / 'run.py').read_text())).splitlines()[0]}"
            )
        print(f"\nIn commit {COMMIT}: {', '.join(FROZEN)}.")
        return
    if name in FROZEN:
        sys.exit(f"eval/studies {name}: its results are kept, and its code is older: git checkout {COMMIT} runs it")
    if name not in names:
        sys.exit(f"eval/studies: {name or 'no name'} is not a study: give one of {', '.join(names)}")
    sys.argv[0] = f"eval/studies {name}"
    try:
        importlib.import_module(f"studies.{name}.run").main()
    except ValueError as error:
        sys.exit(f"{sys.argv[0]}: {error}")


if __name__ == "__main__":
    main()

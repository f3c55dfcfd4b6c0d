"""Prints this package's flags as docs/flags.md has them, from the parser; with --write puts the table there."""

import argparse
import re
from pathlib import Path

from openrlhf_sagc.arguments import add_arguments

PAGE = Path(__file__).parents[1] / "docs/flags.md"
BETWEEN = re.compile(r"(<!-- flags -->\n).*?(<!-- /flags -->)", re.DOTALL)


def table() -> str:
    """Markdown, a row a flag in the parser's order."""
    parser = argparse.ArgumentParser(add_help=False)
    add_arguments(parser)
    rows = [f"| `{action.option_strings[0]}` | {default(action)} | {action.help} |" for action in parser._actions]
    return "\n".join(["| flag | default | meaning |", "| --- | --- | --- |", *rows]) + "\n"


def default(action: argparse.Action) -> str:
    """As it is written behind the flag, and what else may stand there."""
    if action.nargs == 0 or action.default is None:
        return "off"
    if action.choices:
        return f"{action.default} (or {', '.join(choice for choice in action.choices if choice != action.default)})"
    values = action.default if isinstance(action.default, list) else [action.default]
    return " ".join(f"{value:g}".replace("e-0", "e-") for value in values)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--write", action="store_true", help="into docs/flags.md, instead of printing")
    if arguments.parse_args().write:
        PAGE.write_text(BETWEEN.sub(lambda found: found[1] + table() + found[2], PAGE.read_text()))
    else:
        print(table(), end="")

"""Writes a launch script of an earlier OpenRLHF anew, for OpenRLHF 0.11.2 and this package, and shows what it changed.

The new script goes beside the old one (run.sh: run.0.11.2.sh). Nothing in a script is executed.
"""

import argparse
import difflib
import importlib.util
import os
import shutil
import sys
from pathlib import Path
from typing import NoReturn

from openrlhf_sagc.arguments import add_arguments
from openrlhf_sagc.config.flags import CommandParser, openrlhf_parser
from openrlhf_sagc.redaction import HIDDEN, without_secrets
from openrlhf_sagc.run.trees import PATCHED, use_tree

VERSION = "0.11.2"
KEYS = ("--use_wandb", "--logger.wandb.key")
LARGEST = 1_000_000  # bytes of a script


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m openrlhf_sagc.migrate", description=__doc__)
    parser.add_argument("script", type=Path, nargs="+", help="a bash script that starts openrlhf.cli.train_ppo_ray")
    parser.add_argument("--output", type=Path, help="where the new script goes, of one script")
    parser.add_argument("--overwrite", action="store_true", help="replace a file that is there")
    arguments = parser.parse_args()
    if arguments.output and len(arguments.script) > 1:
        fail(f"--output {arguments.output} is for one script, not for {len(arguments.script)}: drop it")
    return arguments


def fail(line: str) -> NoReturn:
    raise SystemExit(f"openrlhf_sagc.migrate: {line}")


def main() -> None:
    arguments = parse_arguments()
    if missing := [name for name in ("tree_sitter", "tree_sitter_bash") if importlib.util.find_spec(name) is None]:
        fail(f"needs {' and '.join(missing)} to read bash: pip install tree-sitter tree-sitter-bash")
    use_tree(PATCHED)
    parser = CommandParser(openrlhf_parser(), add_arguments)
    for script in arguments.script:
        migrate(script, arguments.output or script.with_name(new_name(script)), arguments.overwrite, parser)


def new_name(script: Path) -> str:
    return f"{script.stem}.{VERSION}{script.suffix}" if script.suffix == ".sh" else f"{script.name}.{VERSION}"


def migrate(script: Path, output: Path, overwrite: bool, parser: CommandParser) -> None:
    """Write one script anew; its diff is printed, what to know of it on stderr."""
    from openrlhf_sagc.migrate.advice import advice
    from openrlhf_sagc.migrate.convert import convert

    source = read(script)
    conversion = convert(source, list(parser._option_string_actions))
    if not conversion.trainings:
        fail(f"{script} does not start openrlhf.cli.train_ppo_ray: give the script that does")
    defaults = {action.option_strings[0]: action.default for action in parser._actions}
    notes = [*dict.fromkeys(conversion.notes), *advice(conversion, defaults)]
    if conversion.script == source:
        summary = f"{script} needs no change, nothing is written"
    else:
        write(conversion.script, script, output, overwrite)
        known = len(conversion.flags) - conversion.unknown
        flags = len(conversion.flags) + conversion.unseen
        summary = f"{output} is written: {known} of {flags} flags are those of {VERSION}"
    old, new = (text.decode(errors="replace").splitlines(keepends=True) for text in (source, conversion.script))
    keys = [
        text
        for flag in conversion.flags
        if flag.name in KEYS
        for text in flag.texts
        if not text.lstrip("\\\"'").startswith("$")
    ]

    def shown(line: str) -> str:
        for key in keys:
            line = line.replace(key, HIDDEN)
        return without_secrets(line.encode(errors="replace").decode())

    for line in difflib.unified_diff(old, new, str(script), str(output)):
        print(shown(line.rstrip("\r\n")))
    sys.stdout.flush()
    for line in [*notes, summary]:
        print(f"openrlhf_sagc.migrate: {shown(line)}", file=sys.stderr)


def read(script: Path) -> bytes:
    try:
        if script.stat().st_size > LARGEST:
            fail(f"{script} has more than {LARGEST:,} bytes, which no launch script has")
        source = script.read_bytes()
    except OSError as error:
        fail(f"{script} cannot be read: {error.strerror}")
    if b"\0" in source:
        fail(f"{script} is not a text: give a bash script")
    return source


def write(text: bytes, script: Path, output: Path, overwrite: bool) -> None:
    if not overwrite and os.path.lexists(output):
        fail(f"{output} is there already: give another --output, or --overwrite")
    try:
        fresh = output.with_name(f"{output.name}.new")
        fresh.write_bytes(text)  # beside it, so that a full disk costs no script
        shutil.copymode(script, fresh)
        os.replace(fresh, output)
    except OSError as error:
        fail(f"{output} cannot be written: {error.strerror}")


if __name__ == "__main__":
    main()

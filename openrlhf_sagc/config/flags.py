"""The command's parser: OpenRLHF's flags and this package's, read in a moment; what it does not take is said in a line each."""

import argparse
import ast
import importlib.util
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from openrlhf_sagc.config.renamed_flags import explain, renamed_flag
from openrlhf_sagc.redaction import without_secrets

CONVERTER = "python -m openrlhf_sagc.migrate SCRIPT"
SHOWN = 4  # flags that an ambiguous abbreviation may mean
NEEDED = {  # by what argparse's message begins with
    "invalid choice: 'grpo'": ": group_norm is GRPO's estimator",
    "invalid int value": ": use a whole number",
    "invalid float value": ": use a number",
    "expected 2 arguments": ": give both with a space between",
    "ignored explicit argument": ": the flag takes no value, write it alone",
}


Declare = Callable[[argparse.ArgumentParser], None]


SEPARATED = re.compile(r"^invalid (?:int|float) value: '[\d.]+(?:,[\d.]+)+'$")


def parse_flags(words: Sequence[str], declare: Declare) -> argparse.Namespace:
    """The flags' values, as OpenRLHF's parser returns them, with those that `declare` adds to it.

    Raises:
        SystemExit: OpenRLHF is missing or not patched, or a flag or value is not taken; a line each.
    """
    parser = CommandParser(openrlhf_parser(), declare)
    if unknown := list(unknown_flags(words, parser)):
        raise refusal(unknown)
    values, strays = parser.parse_known_args(words)
    if strays:
        raise refusal(_describe_stray(words, stray, parser) for stray in strays)
    return values


def openrlhf_parser() -> argparse.ArgumentParser:
    """OpenRLHF's own parser: its function build_parser alone, since its module imports vLLM and torch, which takes 9 s.

    Raises:
        SystemExit: OpenRLHF is missing or not patched.
    """
    package = importlib.util.find_spec("openrlhf")
    if package is None or not package.submodule_search_locations:
        raise refusal(["no module openrlhf: install the patched OpenRLHF, build/dist/openrlhf-*.whl"])
    file = Path(package.submodule_search_locations[0], "cli/train_ppo_ray.py")
    tree = ast.parse(file.read_text(), str(file))
    is_light = [isinstance(node, (ast.Import, ast.ImportFrom)) and _of_python(node) for node in tree.body]
    builders = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "build_parser"]
    if not builders:
        raise refusal([f"{file} is not of the patched OpenRLHF: install build/dist/openrlhf-*.whl"])
    tree.body = [node for node, light in zip(tree.body, is_light, strict=True) if light] + list(builders)
    names: dict = {}
    exec(compile(tree, str(file), "exec"), names)
    return names["build_parser"]()


def _of_python(node: ast.Import | ast.ImportFrom) -> bool:
    """Whether an import is of Python's own modules alone."""
    modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
    return all(module.partition(".")[0] in sys.stdlib_module_names for module in modules)


class CommandParser(argparse.ArgumentParser):
    """OpenRLHF's flags, then those that are declared. An abbreviation that OpenRLHF takes by itself is still OpenRLHF's."""

    def __init__(self, openrlhf: argparse.ArgumentParser, declare: Declare):
        super().__init__(prog="python -m openrlhf_sagc", parents=[openrlhf], add_help=False)
        self._openrlhf_actions = set(openrlhf._actions)
        declare(self)

    def _get_option_tuples(self, option_string: str) -> list:
        """The flags that begin with these letters; argparse refuses if they are several."""
        found = super()._get_option_tuples(option_string)
        return [match for match in found if match[0] in self._openrlhf_actions] or found

    def error(self, message: str) -> NoReturn:
        """Ends with argparse's message, without 170 lines of usage."""
        flag, colon, problem = message.removeprefix("argument ").partition(": ")
        separated = SEPARATED.search(problem)
        needed = (
            ": put spaces between the values"
            if separated
            else next((what for begin, what in NEEDED.items() if problem.startswith(begin)), "")
        )
        start, match, flags = problem.partition(" could match ")
        if match and flags.count(",") >= SHOWN:
            problem = f"{start}{match}{', '.join(flags.split(', ')[:SHOWN])} and {flags.count(',') + 1 - SHOWN} more"
        raise refusal([without_secrets(flag + colon + problem + needed)])


def unknown_flags(words: Sequence[str], parser: CommandParser) -> Iterator[str]:
    """A line for each flag that the parser does not know; after several old ones, one that names the converter."""
    flags = list(parser._option_string_actions)
    names = dict.fromkeys(word.partition("=")[0] for word in words if word.startswith("--") and " " not in word)
    unknown = [name for name in names if not any(flag.startswith(name) for flag in flags)]
    yield from (explain(name, flags) for name in unknown)
    if len([name for name in unknown if renamed_flag(name)]) > 1:
        yield f"{CONVERTER} writes an old script anew"


def _describe_stray(words: Sequence[str], stray: str, parser: CommandParser) -> str:
    """A word that belongs to no flag: where it stands again, the first that a flag before it does not take."""
    for place in [place for place, word in enumerate(words) if word == stray and not stray.startswith("-")]:
        flags = [index for index in range(place) if words[index].startswith("--")]
        if flags and place - flags[-1] > _most_values(words[flags[-1]], parser):
            name = words[flags[-1]].partition("=")[0]
            return f"{name} does not take {without_secrets(stray)}: drop it, or put quotes around a value with spaces"
    return f"{without_secrets(stray)} is no flag: drop it, or look for the flag in --help"


def _most_values(word: str, parser: CommandParser) -> float:
    """Values that may stand behind a flag as it is written."""
    name, equals, _ = word.partition("=")
    action = parser._option_string_actions.get(name)
    count = 1 if action is None or action.nargs is None else action.nargs
    return 0 if equals else count if isinstance(count, int) else math.inf


def refusal(lines: Iterable[str]) -> SystemExit:
    """The end of the run with these lines."""
    return SystemExit("\n".join(f"openrlhf_sagc: {' '.join(line.split())}" for line in lines))

"""The commands' parser: OpenRLHF's flags, with or without this package's, read in a moment; what it does not take is a line each."""

import argparse
import ast
import importlib.util
import itertools
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from openrlhf_sagc.advantages.estimators import OWN
from openrlhf_sagc.config.renamed_flags import explain, renamed_flag
from openrlhf_sagc.redaction import shown, without_secrets

COMMAND = "python -m openrlhf_sagc"
CONVERTER = f"{COMMAND}.migrate SCRIPT"
SHOWN = 4  # flags that an ambiguous abbreviation may mean
NEEDED = {  # by what argparse's message begins with
    "invalid choice: 'grpo'": ": group_norm is GRPO's estimator",
    **{f"invalid choice: '{name}'": f": {COMMAND} has it" for name in OWN},
    "invalid int value": ": use a whole number",
    "invalid float value": ": use a number",
    "invalid loads value": """: use JSON in single quotes, such as '{"max_num_seqs": 512}'""",
    "expected 2 arguments": ": give both with a space between",
    "ignored explicit argument": ": the flag takes no value: write only the flag",
}
NEGATIVE = re.compile(r"^-(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?$")
Declare = Callable[[argparse.ArgumentParser], None]
SEPARATED = re.compile(r"^invalid (?:int|float) value: '[\d.]+(?:,[\d.]+)+'$")


def parse_flags(words: Sequence[str], declare: Declare) -> argparse.Namespace:
    """The flags' values, as OpenRLHF's parser returns them, with those that `declare` adds to it.

    Raises:
        SystemExit: a flag or value is not taken; a line each.
    """
    return _parsed(words, CommandParser(openrlhf_parser(), declare))


def parse_plain_flags(
    words: Sequence[str], openrlhf: argparse.ArgumentParser, declare: Declare, command: str
) -> argparse.Namespace:
    """The flags' values for a command that takes OpenRLHF's alone.

    Raises:
        SystemExit: a flag is one of those that `declare` adds, or a flag or value is not taken; a line each.
    """
    parser = CommandParser(openrlhf, lambda parser: None, command)
    own = argparse.ArgumentParser(add_help=False)
    declare(own)
    if ours := [name for name in _unknown(words, parser) if _matches(name, own)]:
        are, them = ("is a flag", "it") if len(ours) == 1 else ("are flags", "them")
        raise refusal([f"{' '.join(ours)} {are} of {COMMAND}, not of {command}: start the former, or drop {them}"])
    return _parsed(words, parser)


def _parsed(words: Sequence[str], parser: "CommandParser") -> argparse.Namespace:
    if unknown := [*_one_dash(words, parser), *unknown_flags(words, parser)]:
        raise refusal(unknown)
    values, strays = parser.parse_known_args(words)
    if strays:
        raise refusal(_describe_stray(words, stray, parser) for stray in strays)
    return values


def _one_dash(words: Sequence[str], parser: "CommandParser") -> Iterator[str]:
    """A line for each flag of today or of then that is given with one dash."""
    for name in dict.fromkeys(word.partition("=")[0] for word in words if re.match(r"-[A-Za-z]{2}", word)):
        if _matches(f"-{name}", parser):
            yield f"{name} has one dash, and flags have two: use -{name}"
        elif renamed_flag(f"-{name}"):
            yield explain(f"-{name}", [])


def openrlhf_parser() -> argparse.ArgumentParser:
    """The patched OpenRLHF's own parser: its function build_parser alone, since its module imports vLLM and torch, which takes 9 s."""
    file, tree = _command_of_openrlhf()
    builder = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "build_parser"]
    return _executed(tree, builder, file)["build_parser"]()


def released_parser() -> argparse.ArgumentParser:
    """The parser of OpenRLHF as released: of its module, what stands before the flags are parsed."""
    file, tree = _command_of_openrlhf()
    command = [statement for node in tree.body if isinstance(node, ast.If) for statement in node.body]
    makes = itertools.takewhile(lambda node: "parser.parse_args" not in ast.unparse(node), command)
    return _executed(tree, list(makes), file)["parser"]


def _command_of_openrlhf() -> tuple[Path, ast.Module]:
    """The file of train_ppo_ray of the OpenRLHF that is first on the path, and what stands in it."""
    package = importlib.util.find_spec("openrlhf")
    assert package and package.submodule_search_locations  # as run/trees.py has seen to
    file = Path(package.submodule_search_locations[0], "cli/train_ppo_ray.py")
    return file, ast.parse(file.read_text(), str(file))


def _executed(tree: ast.Module, statements: Sequence[ast.stmt], file: Path) -> dict:
    """The names that these statements of a module make, behind its imports of Python's own modules."""
    imports = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom)) and _of_python(node)]
    names: dict = {}
    exec(compile(ast.Module([*imports, *statements], []), str(file), "exec"), names)
    return names


def _of_python(node: ast.Import | ast.ImportFrom) -> bool:
    """Whether an import is of Python's own modules alone."""
    modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
    return all(module.partition(".")[0] in sys.stdlib_module_names for module in modules)


class CommandParser(argparse.ArgumentParser):
    """OpenRLHF's flags, then those that are declared. An abbreviation that OpenRLHF takes by itself is still OpenRLHF's."""

    def __init__(self, openrlhf: argparse.ArgumentParser, declare: Declare, command: str = COMMAND):
        super().__init__(prog=command, parents=[openrlhf], add_help=False)
        self._openrlhf_actions = set(openrlhf._actions)
        self._negative_number_matcher = NEGATIVE  # argparse takes -1e-6 for a flag
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
    flags, unknown = list(parser._option_string_actions), _unknown(words, parser)
    yield from (explain(name, flags) for name in unknown)
    if len([name for name in unknown if renamed_flag(name)]) > 1:
        yield f"{CONVERTER} writes an old script anew"


def _unknown(words: Sequence[str], parser: argparse.ArgumentParser) -> list[str]:
    """The flags among the words that the parser does not know, each once."""
    names = dict.fromkeys(word.partition("=")[0] for word in words if word.startswith("--") and " " not in word)
    return [name for name in names if not _matches(name, parser)]


def _matches(name: str, parser: argparse.ArgumentParser) -> bool:
    """Whether it is a flag of the parser's, or the beginning of one."""
    return any(flag.startswith(name) for flag in parser._option_string_actions)


def _describe_stray(words: Sequence[str], stray: str, parser: CommandParser) -> str:
    """A word that belongs to no flag: where it stands again, the first that a flag before it does not take."""
    for place in [place for place, word in enumerate(words) if word == stray and not stray.startswith("-")]:
        flags = [index for index in range(place) if words[index].startswith("--")]
        if flags and place - flags[-1] > _most_values(words[flags[-1]], parser):
            name = words[flags[-1]].partition("=")[0]
            return f"{name} does not take {shown(stray, name)}: drop it, or put quotes around a value with spaces"
    return f"{stray if re.fullmatch('-[A-Za-z]', stray) else shown(stray)} is not a flag: drop it, or look for the flag in --help"


def _most_values(word: str, parser: CommandParser) -> float:
    """Values that may stand behind a flag as it is written."""
    name, equals, _ = word.partition("=")
    action = parser._option_string_actions.get(name)
    count = 1 if action is None or action.nargs is None else action.nargs
    return 0 if equals else count if isinstance(count, int) else math.inf


def refusal(lines: Iterable[str]) -> SystemExit:
    """The end of the run with these lines."""
    return SystemExit("\n".join(f"openrlhf_sagc: {' '.join(line.split())}" for line in lines))

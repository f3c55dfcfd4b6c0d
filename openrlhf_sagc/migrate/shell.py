"""Where a bash script has the flags of its training: in commands, arrays, variables, strings and here-documents.

The script is parsed and never executed. All places are byte ranges, so that what is not a flag stays as it is.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from openrlhf_sagc.migrate.words import END, SAYS, Word, cut, inner, said, substitutions, tokens

MODULE = re.compile(rb"(?<![\w.])(?:openrlhf\.cli\.train_ppo_ray|openrlhf_sagc)(?![\w.])")
FILE = re.compile(rb"(?:^|[\s=\"'/])train_ppo_ray\.py$")
NAMES = re.compile(rb"\$\{?[#!]?(\w+|[@*])")
DEFAULT = re.compile(rb"\$\{(\w+):?[-=+](?P<text>[^{}]*)\}", re.DOTALL)  # what stands for a variable, or beside it
TEXTS = ("string", "raw_string", "ansi_c_string", "translated_string", "heredoc_body")
LINE = re.compile(rb"(?:[^\n\\]|\\.)*", re.DOTALL)
NAME = re.compile(rb"(?<![\w.-])--[A-Za-z][\w.-]*")  # of a flag
OTHER = re.compile(
    rb"\.py\b|(?:^|\s)-m\s+(?!openrlhf)\w|openrlhf\.cli\.(?!train_ppo_ray\b)|\bray\s+start\b"
)  # another program
NO_WORDS = (
    "comment",
    "variable_assignment",
    "file_redirect",
    "herestring_redirect",
    "heredoc_redirect",
)  # in a command


@dataclass(frozen=True)
class Training:
    """A script's training."""

    modules: list[Word]  # the words that name OpenRLHF's entry point
    lists: list[list[Word]]  # flags and values, a list a place
    holders: set[bytes]  # variables that hold flags
    known: set[bytes]  # variables that are set in the script
    others: list[tuple[int, bytes]]  # (place, name) of all flags but those of other programs; the lists may lack some
    broken_line: int  # the first line that the parser does not understand; 0 if it understands all


def find_training(source: bytes) -> Training:
    """The words that become arguments of train_ppo_ray, wherever the script has them."""
    script = _Script(source)
    script.look()
    lists = {words[0].start: words for words in script.lists if any(b"--" in word.text for word in words)}
    return Training(
        sorted(script.modules.values(), key=lambda word: word.start),
        [lists[start] for start in sorted(lists)],
        script.holders,
        {*script.values, b"@", b"*"},
        list(script.others()),
        script.broken_line(),
    )


class _Script:
    """A parsed script, and what is found in it."""

    def __init__(self, source: bytes):
        self.source = source
        self.root = Parser(Language(tree_sitter_bash.language())).parse(source).root_node
        nodes = list(_descendants(self.root))
        self.commands = [node for node in nodes if node.type == "command"]
        self.documents = [node for node in nodes if node.type == "heredoc_body"]
        self.functions = [node for node in nodes if node.type == "function_definition"]
        self.values: dict[bytes, list[Node]] = {}  # of variables
        for node in nodes:
            for name, value in self._assigned(node):
                if not value.has_error:
                    self.values.setdefault(name, []).append(value)
        self.modules: dict[int, Word] = {}
        self.lists: list[list[Word]] = []
        self.holders: set[bytes] = {b"@", b"*"}
        self.seen: set[bytes] = set()  # variables and functions whose words are in the lists

    def look(self) -> None:
        launchers = self._launchers()
        for command in self.commands:
            words = self._words(command.children)
            if not self._take(words, launchers, command):
                for word in words:
                    self._take(inner(word), launchers, command)
        for name, values in self.values.items():
            for value in values:
                words = self._words_of(value)
                if not self._take(words, launchers, value) and name in launchers and self._is_added(value):
                    self._note(self._split(words), value)
        for document in self.documents:
            words = tokens(self.source, document.start_byte, document.end_byte)
            self._take(words, launchers, document)
            for word in words:
                if word.quote and MODULE.search(word.text):
                    self._take(inner(word), launchers, document)
        self._take_lost(launchers)

    def _is_added(self, value: Node) -> bool:
        """Whether it is added to its variable: COMMAND+=" --flag"."""
        return self.source[: value.start_byte].endswith(b"+=")

    def broken_line(self) -> int:
        end = len(self.source.rstrip(b"\\\r\n\t "))  # a backslash behind the last word continues nothing
        broken = [
            node.start_point[0] + 1
            for node in _descendants(self.root)
            if (node.type == "ERROR" or node.is_missing) and node.start_byte < end
        ]
        return min(broken, default=0)

    def others(self) -> Iterator[tuple[int, bytes]]:
        """Flags that are no word of another program's command, and in no comment."""
        passed = {place for comment in self._comments() for place in comment}
        for command in self.commands:
            words = self._words(command.children)
            if words and words[0].text not in SAYS:
                passed |= {word.start for word in words}
        for match in NAME.finditer(self.source):
            start = self.source.rfind(b"\n", 0, match.start()) + 1
            while start and self.source[:start].endswith(b"\\\n"):
                start = self.source.rfind(b"\n", 0, start - 1) + 1
            if match.start() not in passed and not OTHER.search(self.source, start, match.start()):
                yield match.start(), match[0]

    def _comments(self) -> list[range]:
        return [range(node.start_byte, node.end_byte) for node in _descendants(self.root) if node.type == "comment"]

    def _take_lost(self, launchers: set[bytes]) -> None:
        """The entry point where the parser has lost its way: up to the end of the line, with the lines that it goes on in."""
        comments = self._comments()
        for match in MODULE.finditer(self.source):
            known = any(word.start <= match.start() < word.end for word in self.modules.values())
            if not known and not any(match.start() in comment for comment in comments):
                line = LINE.match(self.source, match.start())
                assert line
                self._take(tokens(self.source, match.start(), line.end()), launchers, self.root)

    def _launchers(self) -> set[bytes]:
        """Variables that hold the entry point, or a variable that does."""
        found: set[bytes] = set()
        while True:
            more = {
                name
                for name, values in self.values.items()
                for value in values
                if self._entry(self._words_of(value), found) is not None
            }
            if more <= found:
                return found
            found |= more

    def _entry(self, words: list[Word], launchers: set[bytes]) -> int | None:
        """The index of the word that names the entry point, or a variable that does."""
        for index, word in enumerate(words):
            if MODULE.search(word.text) and b" " not in word.text or FILE.search(word.bare):
                return index
            if launchers & set(NAMES.findall(word.text)):
                return index
        return None

    def _take(self, words: list[Word], launchers: set[bytes], node: Node) -> bool:
        """Note the words behind the entry point, and what they refer to."""
        entry = self._entry(words, launchers)
        if entry is None:
            return False
        if MODULE.search(words[entry].text) or FILE.search(words[entry].bare):
            self.modules[words[entry].start] = words[entry]
        ends = (index for index in range(entry + 1, len(words)) if END.match(words[index].text))
        self._note(cut(words[entry + 1 : next(ends, len(words))]), node)
        return True

    def _note(self, words: list[Word], node: Node) -> None:
        """Words of the training, with those of the variables and of the calls of the function that they stand for."""
        self.lists.append(words)
        for word in words:
            self._note_held(word, node)
        names = {name for word in words for name in NAMES.findall(word.text)}
        for name in names - self.seen:
            self.seen.add(name)
            for value in self.values.get(name, []):
                held = self._split(self._words_of(value))
                if value.type == "array" or any(word.bare.startswith(b"--") for word in held):
                    self.holders.add(name)
                self._note(held, value)
        if any(name in (b"@", b"*") or name.isdigit() for name in names):
            self._note_calls(node)

    def _note_held(self, word: Word, node: Node) -> None:
        """The flags that stand in a word for a variable, ${FLAGS:---a 1}, or that a command in it says, $(... && echo --a)."""
        for match in DEFAULT.finditer(word.text):
            begin, end = (word.start + place for place in match.span("text"))
            held = inner(Word(begin, end, match["text"]))
            if any(part.bare.startswith(b"--") for part in held):
                self.holders.add(match[1])
                self._note(held, node)
        for begin, end in substitutions(word):
            words = tokens(self.source, begin, end)
            for index in [index for index, part in enumerate(words) if part.text in SAYS]:
                ends = (place for place in range(index, len(words)) if END.match(words[place].text))
                self._note(said(self.source, words[index + 1 : next(ends, len(words))]), node)

    def _note_calls(self, node: Node) -> None:
        for function in self.functions:
            name = self._text(function.child_by_field_name("name"))
            if function.start_byte <= node.start_byte < function.end_byte and name not in self.seen:
                self.seen.add(name)
                for call in self.commands:
                    words = self._words(call.children)
                    if words and words[0].text == name:
                        self._note(self._split(words[1:]), call)

    def _split(self, words: list[Word]) -> list[Word]:
        """With the flags in a quoted word as words of their own: "--a 1 --b"."""
        parts = [inner(word) if re.match(rb"[\"']\s*--\S+\s", word.text) else [word] for word in words]
        return [word for part in parts for word in part]

    def _assigned(self, node: Node) -> Iterator[tuple[bytes, Node]]:
        """Name and value of an assignment, a loop, `set --` or a here-document that is read."""
        if node.type == "variable_assignment":
            name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
            if name is not None and value is not None:
                yield re.split(rb"\[", self._text(name))[0], value
        elif node.type == "expansion" and (match := re.match(rb"\$\{(\w+):?=", self._text(node))):
            yield match[1], node
        elif node.type == "for_statement":
            for value in node.children_by_field_name("value"):
                yield self._text(node.child_by_field_name("variable")), value
        elif node.type == "command" and re.match(rb"set\s+--\s", self._text(node)):
            yield b"@", node
        elif node.type == "redirected_statement" and re.match(
            rb"(?:IFS=\S*\s+)?(?:read|mapfile|readarray)\s", self._text(node)
        ):
            command = next((child for child in node.children if child.type == "command"), None)
            for document in _descendants(node):
                if command is not None and document.type == "heredoc_body":
                    yield self._words(command.children)[-1].text, document

    def _words_of(self, value: Node) -> list[Word]:
        """Words of an array, or within a text."""
        if value.type == "array":
            return self._words(value.children)
        if value.type == "command":  # set --
            return self._words(value.children)[2:]
        if value.type in TEXTS:
            return inner(Word(value.start_byte, value.end_byte, self._text(value)))
        words = tokens(self.source, value.start_byte, value.end_byte)
        return [replace(word, alone=True) for word in words]

    def _words(self, nodes: Iterable[Node]) -> list[Word]:
        nodes = [node.children[0] if node.type == "command_name" else node for node in nodes]
        places: list[tuple[int, int]] = []
        for node in nodes:
            if node.is_named and node.type not in NO_WORDS:
                touches = places and places[-1][1] == node.start_byte  # the parser parts a word here and there
                start = places.pop()[0] if touches else node.start_byte
                places.append((start, node.end_byte))
        return [Word(start, end, self.source[start:end]) for start, end in places]

    def _text(self, node: Node | None) -> bytes:
        return b"" if node is None else self.source[node.start_byte : node.end_byte]


def _descendants(node: Node) -> Iterator[Node]:
    waiting = [node]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += reversed(node.children)

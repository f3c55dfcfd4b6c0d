"""A launch script of an earlier OpenRLHF as one of OpenRLHF 0.11.2 and this package."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from openrlhf_sagc.advantages.estimators import ESTIMATORS
from openrlhf_sagc.config.renamed_flags import RenamedFlag, closest_flag, renamed_flag, renamed_flags
from openrlhf_sagc.migrate.shell import MODULE, NAME, NAMES, Training, find_training
from openrlhf_sagc.migrate.words import EXPANSION, Word

FLAG = re.compile(rb"--[A-Za-z][\w.-]*(?:=.*)?", re.DOTALL)
BYTES = "surrogateescape"  # a script may be of any encoding
LONGEST = 1024  # OpenRLHF's default of prompt_max_len and of generate_max_len
FORKS_GRPO = "grpo"  # what forks call group_norm
CORRECTIONS = {"tis": "token clip", "icepop": "token mask", "seq-mask-tis": "seq mask", "mis": "seq mask"}
ENABLES = ("--enable_vllm_is_correction", "--vllm_enable_is_correction", "--algo.advantage.is_correction_enable")
TYPES = ("--vllm_is_correction_type", "--algo.advantage.is_correction_type", "--use_icepop")


@dataclass
class Flag:
    """A flag of a training, with the words that follow it."""

    word: Word
    name: str
    value: str | None  # behind an `=`
    values: list[Word] = field(default_factory=list)
    renamed: RenamedFlag | None = None

    @property
    def texts(self) -> list[str]:
        """The values as they stand in the script."""
        return [self.value] if self.value is not None else [word.text.decode(errors=BYTES) for word in self.values]


@dataclass
class Conversion:
    """What a script became."""

    script: bytes
    flags: list[Flag]  # as they were
    notes: list[str]  # what a person should know, a line each
    old: int = 0  # flags that were renamed
    unknown: int = 0  # flags that neither today's OpenRLHF nor an earlier one has
    unseen: int = 0  # old flags that stay, as nothing shows whose they are
    trainings: int = 0  # places that name the entry point
    has_critic: bool = True


def convert(source: bytes, today: Iterable[str]) -> Conversion:
    """The script for today's flags. A script that has only these changes in the name of its module alone.

    Args:
        source: the script, which is not executed.
        today: the flags that OpenRLHF 0.11.2 and this package take.
    """
    training = find_training(source)
    converter = _Converter(training, set(today), source)
    edits = [edit for word in training.modules for edit in _module_edits(source, word)]
    for words in converter.flags:
        edits += [edit for flag in words for edit in converter.edits(flag)]
    notes = []
    if training.broken_line:
        notes = [f"bash could not be read completely from line {training.broken_line} on: look at the diff"]
    script, flags = _apply(source, edits), [flag for words in converter.flags for flag in words]
    old = sum(flag.renamed is not None for flag in flags)
    return Conversion(
        script,
        flags,
        notes + converter.notes,
        old,
        len(converter.foreign),
        converter.unseen,
        len(training.modules),
        converter.has_critic,
    )


def _module_edits(source: bytes, word: Word) -> list[tuple[int, int, bytes]]:
    """The package in the place of OpenRLHF's module, or of its file."""
    if match := MODULE.search(word.text):
        return [(word.start + match.start(), word.start + match.end(), b"openrlhf_sagc")]
    line = source[: word.start].replace(b"\\\n", b" ").rpartition(b"\n")[2]
    option = b"--module" if re.search(rb"\bdeepspeed\b", line) else b"-m" if line.strip() else b"python -m"
    bare = re.search(rb"[^\s\"'=\\]*train_ppo_ray\.py", word.text)
    assert bare
    begin, end = (0, len(word.text)) if word.quote else bare.span()
    return [(word.start + begin, word.start + end, option + b" openrlhf_sagc")]


class _Converter:
    """The flags of a script's training, seen together: some of them are one flag today, or two."""

    def __init__(self, training: Training, today: set[str], source: bytes):
        self.notes: list[str] = []
        self.unseen = 0
        self.flags = [_flags(words, today, training.holders) for words in training.lists]
        every = [flag for words in self.flags for flag in words]
        self.names = {flag.renamed.flag if flag.renamed else flag.name for flag in every}
        estimators = {"--advantage_estimator", "--algo.advantage.estimator"}
        named = {text.strip("\"'\\") for flag in every if estimators & {flag.name} for text in flag.texts}
        self.has_critic = not named & {*ESTIMATORS, "reinforce", FORKS_GRPO}
        self.given = self.names.union(*(flag.renamed.successors for flag in every if flag.renamed))
        self.foreign = [flag for flag in every if flag.renamed is None and not _known(flag.name, today)]
        # What is written for this package already stays as it is, whatever it says.
        self.drops = any(
            MODULE.search(word.text) is None or b"openrlhf_sagc" not in word.text for word in training.modules
        )
        for flag in self.foreign:
            self.notes.append(self._describe_foreign(flag, closest_flag(flag.name, today)))
        self._note_unseen(training, source)

    def edits(self, flag: Flag) -> list[tuple[int, int, bytes]]:
        """What takes the flag's place."""
        old = flag.renamed
        if old is None:
            return _remove(flag) if self.drops and flag in self.foreign else []
        if old.flag in ("--prompt_max_len", "--generate_max_len", "--max_len"):
            return self._length_edits(flag)
        if old.flag in ENABLES:
            return _replace(flag, self._correction())
        if old.flag in TYPES:
            if not self.names & set(ENABLES):
                self._note_dropped(flag, f"it did nothing without {ENABLES[0]}")
            return _remove(flag)
        if not old.successors:
            self._note_dropped(flag, old.note)
            return _remove(flag)
        if len(old.successors) == 1:
            start = flag.word.start + flag.word.text.index(b"--")
            return [(start, start + len(flag.name), old.successors[0].encode())]
        successors = list(old.successors)
        if any(not word.startswith("--") for word in successors):
            return _replace(flag, [(successors[0], successors[1:2])])
        if successors[1].startswith("--critic.") and not self.has_critic:
            successors = successors[:1]
        return _replace(flag, [(name, flag.texts) for name in successors])

    def _note_unseen(self, training: Training, source: bytes) -> None:
        """Flags that stay as they are, though they may be the training's."""
        every = [flag for words in self.flags for flag in words]
        values = {word for flag in every for word in flag.values}
        seen = {place for flag in every for place in range(flag.word.start, flag.word.end)}
        seen |= {place for word in values for place in range(word.start, word.end)}
        for place, name in training.others:
            if place not in seen and (flag := name.decode()) in renamed_flags():
                self.unseen += 1
                line = source.count(b"\n", 0, place) + 1
                today = " ".join(renamed_flags()[flag].successors)
                self.notes.append(
                    f"line {line}: {flag} stays, as nothing shows that it is the training's: if it is, "
                    + (f"write {today}" if today else "drop it")
                )
        for word in (word for words in training.lists for word in words):
            is_known = NAME.search(word.text) or set(NAMES.findall(word.text)) & training.known
            if EXPANSION.match(word.text) and not is_known and word not in values:
                text = word.text.decode(errors=BYTES)
                self.notes.append(f"{text} is set elsewhere and stays: convert the flags that it has by hand")

    def _describe_foreign(self, flag: Flag, closest: str) -> str:
        successors = renamed_flags()[closest].successors if closest in renamed_flags() else (closest,)
        is_given = not self.given.isdisjoint({closest, *successors})
        like = (
            f"; if {closest} is meant, add {' '.join(successors)}" if closest and successors and not is_given else ""
        )
        why = f"no version of OpenRLHF has it{like}"
        return f"{_shown(flag)} is dropped: {why}" if self.drops else f"{flag.name} stays: {why}"

    def _note_dropped(self, flag: Flag, why: str) -> None:
        self.notes.append(f"{_shown(flag)} is dropped: {why}")

    def _correction(self) -> list[tuple[str, list[str]]]:
        """Level and mode of today for the type that was chosen."""
        kinds = [flag for words in self.flags for flag in words if flag.renamed and flag.renamed.flag in TYPES]
        kind = "tis"
        for flag in kinds:
            given = flag.texts[0] if flag.texts else "without a value"
            kind = "icepop" if flag.renamed and flag.renamed.flag == "--use_icepop" else given.strip("\"'\\")
        if kind not in CORRECTIONS:
            self.notes.append(f"{kinds[-1].name} {kind} is taken for tis: set level and mode by hand if it is another")
        level, mode = CORRECTIONS.get(kind, CORRECTIONS["tis"]).split()
        prefix = "--algo.advantage.is_correction_"
        return [(prefix + "level", [level]), (prefix + "mode", [mode])]

    def _length_edits(self, flag: Flag) -> list[tuple[int, int, bytes]]:
        """data.max_len is the sum of both lengths, or an old max_len if that is more."""
        found = {name: self._near(name, flag) for name in ("--prompt_max_len", "--generate_max_len", "--max_len")}
        prompt, response, longest = found.values()
        assert flag.renamed
        if flag.renamed.flag == "--max_len" and (prompt or response):
            return _remove(flag)
        if flag.renamed.flag == "--max_len":
            return _replace(flag, [("--data.max_len", flag.texts)])
        total = ("--data.max_len", [_sum(prompt, response, longest)])
        if flag.renamed.flag == "--prompt_max_len":
            return _replace(flag, [total] if response else [total, ("--rollout.max_new_tokens", [str(LONGEST)])])
        renamed = ("--rollout.max_new_tokens", flag.texts)
        return _replace(flag, [renamed] if prompt else [renamed, total])

    def _near(self, name: str, flag: Flag) -> Flag | None:
        """The flag of this name in the same place, or else anywhere in the script."""
        places = sorted(self.flags, key=lambda words: flag not in words)
        return next(
            (other for words in places for other in words if other.renamed and other.renamed.flag == name), None
        )


def _flags(words: list[Word], today: set[str], holders: set[bytes]) -> list[Flag]:
    """The flags of a list of words; a variable that holds flags is no value."""
    flags: list[Flag] = []
    ended = False
    for word in words:
        bare = word.bare
        if not FLAG.fullmatch(bare):
            if holders & set(NAMES.findall(bare)) or EXPANSION.match(word.text) and NAME.search(word.text):
                ended = True
            elif flags and flags[-1].value is None and not ended:
                ended = _is_no_value(word, flags[-1], today)
                flags[-1].values += [word] * (not ended)
            continue
        ended = False
        name, equals, value = bare.decode(errors=BYTES).partition("=")
        renamed = None if _known(name, today) else renamed_flag(name)
        flags.append(Flag(word, name, value if equals else None, [], renamed))
    for flag in flags:
        if flag.renamed:
            del flag.values[flag.renamed.values :]
    return flags


def _is_no_value(word: Word, flag: Flag, today: set[str]) -> bool:
    """Whether an expansion behind a flag that nobody knows is more than its value, and stays with all that follows."""
    if flag.renamed or _known(flag.name, today) or not EXPANSION.match(word.text):
        return False
    return bool(flag.values) or not word.quote and bool(re.search(rb"(?i)arg|flag|opt|extra", word.text))


def _shown(flag: Flag) -> str:
    """The flag with its values, as they stood in the script."""
    equals = f"{flag.name}={flag.value}" if flag.value is not None else ""
    return equals or " ".join([flag.name, *flag.texts])


def _known(name: str, today: set[str]) -> bool:
    """Whether it is a flag of today, or one of those that begin with it."""
    return name in today or any(flag.startswith(name) for flag in today)


def _sum(prompt: Flag | None, response: Flag | None, longest: Flag | None) -> str:
    """In numbers if they are numbers, else as bash's arithmetic."""
    texts = [flag.texts[0] if flag and flag.texts else "" for flag in (prompt, response, longest)]
    first, second, third = (text.strip("\"'\\") for text in texts)
    terms = [first or str(LONGEST), second or str(LONGEST)]
    if all(term.isdigit() for term in (*terms, third or "0")):
        return str(max(sum(map(int, terms)), int(third or 0)))
    escape = (
        "\\" if any(text.lstrip("\"'").startswith("\\$") for text in texts) else ""
    )  # of a text that bash expands twice
    total = "+".join(escape + term if term.startswith("$") else term for term in terms)
    if not third:
        return f"{escape}$(({total}))"
    third = escape + third if third.startswith("$") else third
    return f"{escape}$(({total}>{third}?{total}:{third}))"


def _replace(flag: Flag, new: list[tuple[str, list[str]]]) -> list[tuple[int, int, bytes]]:
    """Other flags in the place of this one and its values, quoted as it was."""
    quote = flag.word.quote.decode()

    def quoted(word: str) -> str:
        return word if quote and word.startswith(quote) else f"{quote}{word}{quote}"

    words = []
    for name, values in new:
        words += ["=".join([name, *values])] if flag.value is not None else [name, *values]
    end = flag.values[-1].end if flag.values else flag.word.end
    text = " ".join(map(quoted, words))
    if flag.word.alone and " " in text:
        text = f'"{text}"'
    return [(flag.word.start, end, text.encode(errors=BYTES))]


def _remove(flag: Flag) -> list[tuple[int, int, bytes]]:
    """Nothing in its place."""
    return _replace(flag, [])


def _apply(source: bytes, edits: Iterable[tuple[int, int, bytes]]) -> bytes:
    """The source with other bytes in these ranges; what is removed goes with the space, or the line, before it."""
    for start, end, new in sorted(edits, reverse=True):
        before, after = source[:start], source[end:]
        if not new:
            shorter = re.sub(rb"(?:[ \t]|\\?\r?\n)+$", b"", before)
            line = shorter.rpartition(b"\n")[2]
            if re.search(rb"(?:^|\s)#", line):  # a comment, which would swallow what follows
                pass
            elif not re.search(rb"[(\"'=]$", line):
                before = shorter
            elif shorter == before:  # the first word of a text or of an array
                after = after.lstrip(b" \t")
        source = before + new + after
    return source

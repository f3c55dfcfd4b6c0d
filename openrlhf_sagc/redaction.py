"""Keeps secrets out of what is printed: URLs lose user, password, query and fragment, headers and known keys their value.

As a program it prints a command for a log: the words come on standard input, each ended by a NUL.
"""

import json
import logging
import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TextIO

HIDDEN = "***"
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]{0,20}$", re.IGNORECASE)
_LONGEST_SCHEME = 21
_NEXT_URL = re.compile(r",[a-z][a-z0-9+.-]{0,20}://", re.IGNORECASE)  # of a list
_RUN = re.compile(r"\S*")
_PORT = r"""\d{1,5}(?:[/?\#\s'"),;>\]]|[.:](?:\s|$)|$)"""
_USER = re.compile(rf"""[^\s/?\#@:'"\[]*:(?=\S)(?!{_PORT})""")  # and behind it a password
# A password with spaces in the middle of a text: `user:`, where no port follows, and later in the line `@host`.
_SPACED = re.compile(
    rf"""[^\s/?\#@:'"\[]*:(?=\S)(?!{_PORT})[^\n]{{0,200}}@(?=[\w.-]+(?::\d{{1,5}})?(?:[/?\#\s'")>,]|$))\S*"""
)
_AUTHORITY = re.compile(r"[^/?#]*")
_PLACE = re.compile(r"[^?#'\"<>]*")  # host and path
_NO_HOST = re.compile(r"[^/]*\s")
_QUERY = re.compile(r"[?#]")
_CLOSERS = "'\")>,"  # end a text around a URL, and are no part of its query
_LONGEST_QUOTE = 2000
_WITHOUT_SCHEME = re.compile(r"[\w.%+~-]*:.*@(?=[^@]*$)", re.DOTALL)
_HEADER = re.compile(
    r"""((?<![a-z])(?:authorization|x-api-key|x-[a-z-]{0,20}token)['"]?\s{0,3}[:=,]\s{0,3}(?:b(?=['"]))?['"]?)
        (?:(?:digest|aws4-[a-z0-9-]{1,20})\s[^\n]*|(?:[a-z][a-z0-9-]{0,30}:?\s+)?['"]?[^\s'",]+)""",
    re.IGNORECASE | re.VERBOSE,
)
_QUOTED_COOKIE = re.compile(
    r"""((?<![a-z])(?:set-)?cookie['"]?\s{0,3}[:=,]\s{0,3}b?(?P<quote>['"]))(?:(?!(?P=quote))[^\n])+""", re.IGNORECASE
)
_COOKIE = re.compile(r"""((?<![a-z])(?:set-)?cookie\s{0,3}[:=]\s{0,3})[^\s=;'"]{1,200}=[^\n]*""", re.IGNORECASE)
_BEARER = re.compile(
    r"""\b(bearer)((?:\s{0,9}:)?\s{1,9}['"]?|:['"]?)(?!(?:tokens?|auth\w*|schemes?|headers?)\b)([^\s'",]+)""",
    re.IGNORECASE,
)
# One run of letters and digits, mixed; `_` and `-` stand in names of functions and folders too.
_MIXED = r"(?!(?:[a-z]+|[A-Z]+|\d+)(?![A-Za-z0-9]))[A-Za-z0-9]{20,}"
_KEY = re.compile(
    rf"\b(?:(?:hf_|sk-|gh[pousr]_|github_pat_){_MIXED}|sk-(?:proj|svcacct|admin|ant-api\d\d)-[\w-]{{20}}"
    r"|glpat-[\w-]{20}|xox[a-z]-[\w-]{10}|AKIA[A-Z0-9]{12})[\w-]*"
)
_ASSIGNED = re.compile(
    r"""\b(?P<name>(?:[A-Z0-9_]{0,60}_)?(?:API_?KEY|KEY|TOKEN|SECRET|PASS(?:WORD|WD)?|AUTH|CREDENTIALS?)(?:_[A-Z0-9_]{0,60})?
        |(?i:password|passwd|(?:api|secret|access)[-_]?key|(?:access|auth|hf)[-_]?token))
        (?P<sign>['"]?\s{0,3}[:=]\s{0,3})(?:(?P<quote>['"])(?P<quoted>[^'"\n]+)|(?P<value>[^\s'",;&)}\]]+))""",
    re.VERBOSE,
)
_WANDB_KEY_IN_TEXT = re.compile(
    r"""(--logger\.wandb\.k[a-z]{0,9})(['"]?(?:=|,?\s{1,9})['"]?)(?!--|from-WANDB_API_KEY)([^\s'",]+)"""
)
_NO_SECRET = re.compile(r"[<\[({$*].*|\|.*|[+-]?\d+(?:\.\d+)?|true|false|none|null", re.IGNORECASE | re.DOTALL)
_WORDS_OF_SECRETS = {"KEY", "KEYS", "TOKEN", "SECRET", "SECRETS", "PASS", "PASSWD", "PWD", "AUTH", "CREDENTIAL"}
_WORDS_OF_SECRETS |= {"CREDENTIALS", "APIKEY", "PASSPHRASE", "SSHPASS", "AUTHTOKEN"}
_WORDS_OF_PLACES = {"PATH", "FILE", "DIR", "FOLDER", "HOME", "SOCK"}
_PLACE_BEGINS = ("/", "./", "../", "~")
_SHORTEST = 8  # characters of a secret, so that no ordinary word is taken for one
_WANDB_KEY = re.compile(r"--logger\.wandb\.k(?:ey?)?")  # argparse takes a flag's beginning for the flag
_WANDB_KEY_ELSEWHERE = "from-WANDB_API_KEY"  # launch.sh's word for a key that stays in the environment
_RUNTIME_ENV = "--runtime-env-json"


class RewardUrl(str):
    """The URL of a reward server, whole wherever it is used; printed in a list or in the arguments it has no secrets."""

    def __repr__(self) -> str:
        return repr(without_secrets(self))


class Secret(str):
    """A flag's value, whole wherever it is used, that the printed arguments do not show."""

    def __repr__(self) -> str:
        return repr(HIDDEN)


def without_secrets(text: str, whole: bool = False) -> str:
    """The text with scheme, host and path of its URLs alone, and without the values of headers, keys and secret variables.

    Secret are environment variables of which a word of the name (between underscores) is KEY, TOKEN, SECRET, PASS, AUTH,
    CREDENTIAL or the like, unless the value is a number or a path; `$NAME` stands for their values. The time is linear in
    the text, and a text without secrets comes back as it is.

    Args:
        text: to print.
        whole: the text is the value of one flag, so that a URL in it goes on after a space.
    """
    for value, name in sorted(_secret_variables(), key=lambda secret: len(secret[0]), reverse=True):
        text = text.replace(value, f"${name}")
    lacks_scheme = whole and "://" not in text and _WITHOUT_SCHEME.match(text)
    if whole or "://" not in text:
        text = "".join(_bare_urls(f"x://{text}" if lacks_scheme else text, whole))
    else:
        text = "".join(piece for line in text.splitlines(keepends=True) for piece in _bare_urls(line, whole))
    text = text.removeprefix("x://") if lacks_scheme else text
    text = _HEADER.sub(rf"\g<1>{HIDDEN}", text)
    text = _COOKIE.sub(rf"\g<1>{HIDDEN}", _QUOTED_COOKIE.sub(rf"\g<1>{HIDDEN}", text))
    text = _BEARER.sub(_without_value, text)
    text = _WANDB_KEY_IN_TEXT.sub(_without_value, text)
    text = _ASSIGNED.sub(_without_assigned, text)
    return _KEY.sub(HIDDEN, text)


def _secret_variables() -> Iterator[tuple[str, str]]:
    """(value, name) of each."""
    for name, value in os.environ.items():
        words = set(name.upper().split("_"))
        if name in ("PWD", "OLDPWD") or not (words & _WORDS_OF_SECRETS or name.upper().endswith("PASSWORD")):
            continue
        is_place = value.startswith(_PLACE_BEGINS) and words & _WORDS_OF_PLACES
        if len(value) >= _SHORTEST and not (is_place or _is_plain(value)):
            yield value, name


def _is_plain(value: str) -> bool:
    """No secret, whatever its name: a number, a switch, a special token as <eos>, or an existing path."""
    return bool(_NO_SECRET.fullmatch(value)) or "/" in value and os.path.exists(value)


def _looks_secret(value: str) -> bool:
    """No word of a sentence."""
    return value != HIDDEN and (len(value) >= 16 or not re.fullmatch(r"[A-Za-z]?[a-z]*[.:;!?)]*|[*]*", value))


def _without_value(match: re.Match) -> str:
    """For a match of (name, sign, value)."""
    name, sign, value = match.groups()
    return name + sign + (HIDDEN if sign.strip() or _looks_secret(value) else value)


def _without_assigned(match: re.Match) -> str:
    value, sign = match["quoted"] or match["value"], match["sign"]
    is_word = match["value"] and ":" in sign and not _looks_secret(value)
    if is_word or _is_plain(value) and not match["name"].upper().endswith(("PASSWORD", "PASSWD")):
        return match[0]
    return match["name"] + sign + (match["quote"] or "") + HIDDEN


def _bare_urls(text: str, whole: bool) -> Iterator[str]:
    """The pieces of a text whose URLs have scheme, host and path alone; `whole` as in `without_secrets`.

    A password behind `user:` may hold any character: all up to the last `@` that can belong to the URL is taken for it. A
    `@` in a path is none of a password. The places that are looked up once for many URLs keep the time linear.
    """
    done = space = run_end = 0
    last_at = start = -1
    special = max(text.rfind(character) for character in "@?#")  # behind it no URL has anything to lose
    while (colon := text.find("://", max(start, done))) >= 0 and colon < special:
        start = colon + 3
        scheme = _SCHEME.search(text, max(done, colon - _LONGEST_SCHEME), colon)
        if not scheme:
            continue
        yield text[done:start]
        if start > space:
            space = len(text) if whole else _end(_RUN, text, start)
        if start > run_end:
            next_url = _NEXT_URL.search(text, start, space)
            run_end = next_url.start() if next_url else space
            last_at = text.rfind("@", start, run_end)
        end = run_end
        closing = _closing_quote(text, scheme.start(), start)
        if closing >= 0 and last_at < closing:
            end = closing
        at = _at(text, start, end)
        while end != closing and (spaced := _SPACED.match(text, max(start, at + 1))):
            end, at = spaced.end(), text.rfind("@", start, spaced.end())
        shown, done = _shown(text, start, at, end)
        yield shown
    yield text[done:]


def _at(text: str, start: int, end: int) -> int:
    """The `@` behind user and password of the URL at `start`; -1 if there is none."""
    authority = _end(_AUTHORITY, text, start, end)
    if _USER.match(text, start, end) or text[authority : authority + 1] in ("?", "#"):
        return text.rfind("@", start, end)
    return text.rfind("@", start, authority)


def _end(pattern: re.Pattern, text: str, start: int, end: int = sys.maxsize) -> int:
    match = pattern.match(text, start, end)
    return match.end() if match else start


def _closing_quote(text: str, begin: int, start: int) -> int:
    """Where the quote ends that stands before the URL at `begin`; -1 if there is none, or none in the line."""
    if begin == 0 or text[begin - 1] not in "'\"":
        return -1
    closing = text.find(text[begin - 1], start, start + _LONGEST_QUOTE)
    return -1 if "\n" in text[start : max(start, closing)] else closing


def _shown(text: str, start: int, at: int, end: int) -> tuple[str, int]:
    """(what is printed of a URL behind its scheme, where the text goes on).

    Args:
        text: with the URL, which goes from `start` to `end`, or to a quote before that.
        at: the `@` behind its password; before `start` if there is none.
    """
    begin = max(start, at + 1)
    place_end = _end(_PLACE, text, begin, end)
    place = text[begin:place_end]
    if at >= start and (_QUERY.search(text, start, at) or _NO_HOST.match(place)):
        place = HIDDEN  # what looks like the host may be the end of a password or of a query
    elif place_end == end or text[place_end] not in "?#":
        return place, place_end
    query = text[place_end:end]
    return place + query[len(query.rstrip(_CLOSERS)) :], end


def command_line(words: Sequence[str]) -> str:
    """A command as one line for a log, quoted for a shell, without the secrets of its flags."""
    shown = []
    for i, word in enumerate(words):
        flag, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
        given = flag if equals else words[i - 1] if i else ""
        if flag and not equals:
            shown.append(without_secrets(word, whole=True))
        elif given == _RUNTIME_ENV:
            shown.append(flag + equals + _runtime_env(value))
        elif _WANDB_KEY.fullmatch(given) and value != _WANDB_KEY_ELSEWHERE:
            shown.append(flag + equals + HIDDEN)
        else:
            shown.append(without_secrets(word, whole=True))
    return shlex.join(shown)


def _runtime_env(text: str) -> str:
    """Ray's runtime env as JSON, without the values of its variables and the secrets of its URLs."""
    try:
        return json.dumps(_masked(json.loads(text)))
    except (ValueError, RecursionError):
        return HIDDEN


def _masked(value: Any, in_variables: bool = False) -> Any:
    if isinstance(value, dict):
        return {key: _masked(item, in_variables or key == "env_vars") for key, item in value.items()}
    if isinstance(value, list):
        return [_masked(item, in_variables) for item in value]
    if in_variables:
        return HIDDEN
    return without_secrets(value, whole=True) if isinstance(value, str) else value


class _Redacted:
    """A text stream that writes no secrets, and what it writes to a file as well; otherwise the stream it stands for."""

    def __init__(self, stream: TextIO):
        self._stream = stream
        self.kept: TextIO | None = None

    def write(self, text: str) -> int:
        shown = without_secrets(text)
        self._stream.write(shown)
        if self.kept is not None:
            try:
                self.kept.write(shown)
            except OSError:  # a full disk costs the file, not the run
                self.kept = None
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def redact_output() -> None:
    """From here on this process prints no secrets, in errors and tracebacks neither, nor in the lines Ray brings of others.

    Loggers that imports have made before write to the redacted streams too. A closed stream stays as it is.
    """
    new: dict[int, _Redacted] = {}
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, _Redacted):
            new[id(stream)] = _Redacted(stream)
            setattr(sys, name, new[id(stream)])
    for logger in (logging.root, *logging.root.manager.loggerDict.values()):
        for handler in getattr(logger, "handlers", ()):  # a place holder has none
            if isinstance(handler, logging.StreamHandler) and id(handler.stream) in new:
                handler.setStream(new[id(handler.stream)])


def keep_output(path: str | os.PathLike) -> None:
    """Append what this process prints from here on to a file, behind `redact_output`, as it is printed.

    Raises:
        OSError: the file cannot be opened.
    """
    streams = [stream for stream in (sys.stdout, sys.stderr) if isinstance(stream, _Redacted)]
    if streams:
        file = open(path, "a", encoding="utf-8", errors="backslashreplace", buffering=1)  # until the process ends
        for stream in streams:
            stream.kept = file


if __name__ == "__main__":
    print(command_line(sys.stdin.buffer.read().decode(errors="replace").split("\0")[:-1]))

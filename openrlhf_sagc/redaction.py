"""Chooses what is printed: of a flag's value what is on a list, of other texts what does not look like a secret.
As a program it prints a command for a log: the words come on standard input, each ended by a NUL."""

import os
import re
import shlex
import sys
import unicodedata
from collections.abc import Iterable, Iterator
from difflib import get_close_matches as _close
from runpy import run_path
from urllib.parse import quote, unquote

HIDDEN = "***"
WORDS = """true false none null off auto keep adam muon anew batched_mm grouped_mm deepgemm binary_kl clip discard mask
    fail forward length ratio eager flash_reinforce gae reinforce grpo gspo ppo siblings k1 k2 k3 tv plain round same
    shuffled size throughput sort stop samples prompts seconds tokens token seq token-mean seq-mean-token-mean bf16 fp16
    fp32 nccl gloo sdpa flash_attention_2 kernels-community/flash-attn2@v2 all-linear score constant_with_warmup
    cosine_with_min_lr prompt label input $@ from-wandb_api_key python python3 bash env ray job submit -m -- cpu-patched
    cpu-base openrlhf_sagc openrlhf_sagc.off openrlhf_sagc.unpatched constant linear cosine""".split()
# The words are the flags' choices, and what stands in the launch scripts' commands; python3 -I knows no package here.
WORDS += run_path(os.path.join(os.path.dirname(__file__), "advantages/estimators.py"))["ESTIMATORS"]
_FLAG = re.compile(r"--[A-Za-z]{1,20}(?:[._-]\d?[A-Za-z]{1,20}\d?)*(?:=|\Z)")
_KNOWN = re.compile(r"--(?:actor|algo|ckpt|critic|data|ds|eval|logger|ref|reward|rollout|train|vllm)\.|--address$")
_OWN = re.compile(r"--(?:ckpt|logger\.(?!.*\.k)|rollout\.(?:trace|length_h)|train\.rollouts|data\.\w+_(?:key|sp))")
_OF_TEXT = re.compile(r"--(\w+\.(trace|\w+_(path|to|from|file|folder))|(data|eval|ckpt)\.\w+)$")  # errors name these
_SECRET = re.compile(r"(?i)token(?!s|iz)|key|secret|pass|pwd|auth|cred|otp|jwt|env_v|db\.k|(?<![a-z])pin(?![a-z])")
_VARIABLE = re.compile(r"(?:^|_)(?:API|AUTH)?(?:KEYS?|TOKEN|SECRETS?|PWD|AUTH|CREDENTIALS?)(?:_(?!MODE)|$)|PASS")
_URL = r"[A-Za-z][A-Za-z0-9+.-]{0,20}://[A-Za-z0-9._-]*(?::(?:\d{1,5}|PORT))?(?:/[A-Za-z0-9._/-]*)?"
_VALUE = rf"[+-]?(?:\d{{1,12}}(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?|{_URL}|[A-Za-z0-9._/-]+\.(?:py(?::\w+)?|jsonl?|csv|parquet)"
_KEY = re.compile(r"""(?x)  # a service's, or letters and digits that take turns
    \b(?:hf_|sk-|gh[pousr]_|github_pat_|glpat-|xox[a-z]-|AKIA)(?=[\w-]{0,80}(?:\d|[a-z][A-Z]))[\w-]{6,}
    |(?<![A-Za-z0-9])(?=[A-Za-z]*\d+[A-Za-z]+\d)[A-Za-z0-9]{20,}|(?:services/T[A-Z0-9]{8,}/B|webhooks/\d)[\w/-]{9,}""")
_NAMED = re.compile(r"""(?ix)  # name=value, "name": value, name: Value1, --name value1
    ((?<![a-z])(?<!metric_)(?<!input_|label_|image_)(?:(?:[a-z]{0,9}(?:key|token)|secret|pass(?:word|wd)?(?![\d_])|pwd
    |cookie|auth(?:orization)?|bearer|credentials?|sig(?:nature)?|jwt|otp|pin)(?![a-z])[\w.-]{0,40})
    (?:[\\'"]{0,3}\s{0,3}=|[\\'"]{1,3}\s{0,3}[:,]|:(?=\S)|\s(?=\s{0,9}['"]?(?!-?\d+(?![\w.+/-]))[\w.+/-]{0,60}\d)
    |:(?!\s+(?!basic|digest|token|bearer)[a-z]*[.,:;!?)]*(?:\s|\Z)))\s{0,9})(?!\s*-?\d+\.\d+(?:e-?\d+)?[,}])
    (?:[bruf]?\\{0,2}(?P<quote>['"]).*?(?:(?P=quote)|(?=\n)|\Z)|[\[{(].*|[^\n,'"}\])]+)""")
_hidden: set[str] = set()  # values of this process's flags


def shown(value: str, flag: str = "") -> str:
    """The value of a flag if `docs/security.md` has it among those that are printed, else `***`."""
    return value if value.isprintable() and all(_is_listed(*part) for part in _parts(value, flag)) else HIDDEN


def _parts(value: str, flag: str) -> list[tuple[str, str]]:
    """(text, its flag) of a value's addresses, or of all in its JSON but plain keys; a secret's if a key is."""
    if value[:1] not in ("{", "["):
        return [(part, flag) for part in re.split(r",(?=\w+://)", value)]
    found = re.findall(r'"(?:[^"\\]|\\.)*"\s*:?|[^\s"{}\[\],:]+', re.sub(r'"[a-z_.]{1,40}"\s*:', "", value))
    flag = "--secret" if _SECRET.search(value) else flag
    return [(part.strip('": '), "--secret" if part.endswith(":") else flag) for part in found]


def _is_listed(text: str, flag: str) -> bool:
    if text.lower() in ("", *WORDS) or re.fullmatch("[A-Za-z_-]+", text) and _close(text.lower(), WORDS, 1, 0.8):
        return True
    is_secret = _SECRET.search(flag.removesuffix("_key") if flag.startswith("--data.") else flag)
    is_open = _KNOWN.match(flag) and not is_secret and not _KEY.search(text + "0")
    forms = f"{_VALUE}|[^:]*" if _OF_TEXT.match(flag) else _VALUE
    is_plain = bool(is_open) and all(re.fullmatch(forms, part) for part in text.split(","))
    return not re.search("[@;&=%?#]", text) and (is_plain or os.path.exists(re.sub(r"(?<=\.py):\w+$", "", text)))


def _flags(words: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """(the flag that a word belongs to, what it has of that, its value)."""
    flag = ""
    for word in words:
        name, equals, value = word.partition("=") if _FLAG.match(word) else ("", "", word)
        flag = name or flag
        yield flag, name + equals, value


def command_line(words: Iterable[str]) -> str:
    """A command as one line for a log, quoted for a shell, with the values that `shown` shows."""
    return shlex.join(name + shown(value, flag) for flag, name, value in _flags(words))


def hide(words: Iterable[str]) -> None:
    """From here on `without_secrets` leaves out this command's secrets, and values that are odd or have an address."""
    for text, flag in [part for flag, _, value in _flags(words) for part in _parts(value, flag)]:
        is_odd = _KNOWN.match(flag) and not _OWN.match(flag) and (re.search("[@;&=%?#:]", text) or _KEY.search(text))
        plain = unquote(unquote(text))
        if not _is_listed(text, flag) and (is_odd or _SECRET.search(flag) or _NAMED.search(plain) or "//" in plain):
            login, _, after = plain.rpartition("@")  # user and password; host, path and query
            user, _, password = re.split(r"[/\\]{2}", login)[-1].partition(":")
            parts = [user, *re.split("[?#&;=]" if "//" in plain else r"[?#&;=:\s]", after)[1:]]
            _hidden.update({text, plain, password, *(part for part in parts if len(part) >= 6)})


def without_secrets(text: str) -> str:
    """The text, `visible`, without hidden values (short ones as words), secret variables and what looks secret."""
    given = [value for name, value in os.environ.items() if _VARIABLE.search(name.upper())]
    values = {value for value in given if not _is_listed(value, "")}
    values |= {form for value in _hidden for form in (value, quote(value, ""), repr(value)[1:-1])}
    for value in sorted((value for value in values if len(value) >= 4 and value in text), key=len, reverse=True):
        text = re.sub(re.escape(value) if len(value) >= 8 else rf"(?<!\w){re.escape(value)}(?!\w)", HIDDEN, text)
    return visible(_KEY.sub(HIDDEN, re.sub(r"\S+", _word, _NAMED.sub(rf"\1{HIDDEN}", text))))


def visible(text: str) -> str:
    """The text with escapes for what a terminal obeys: cursor, direction, line separators; new lines and tabs stay."""
    obeyed = {char for char in set(text) - {*"\n\t"} if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
    return text.translate({ord(char): ascii(char)[1:-1] for char in obeyed})


def _word(found: re.Match) -> str:
    """A word as it is, unless it has an address that is no plain one."""
    word = found[0]
    for piece in re.findall(r"""[^\s'"()\[\]{}<>,|`]+""", word) if re.search("[@%;&?#]|://", word) else ():
        piece = re.sub(r"pass@\d", "", piece.strip(".:;!?"))
        is_odd = re.search("(?<=.)@|@(?=.)|://|%[0-9A-Fa-f]{2}", piece) or "=" in piece and re.search("[;&?#]", piece)
        if is_odd and piece.strip("@") and piece not in WORDS and not re.fullmatch(_URL, piece):
            return word[: word.find("=") + 1] * bool(_FLAG.match(word)) + HIDDEN + ":" * word.endswith(":")
    return word


if __name__ == "__main__":
    print(command_line(sys.stdin.buffer.read().decode(errors="replace").split("\0")[:-1]))

"""What a person should know of a converted script: defaults that are others today, and what this package needs."""

import csv
import re
from collections.abc import Iterator
from pathlib import Path

from openrlhf_sagc.advantages.estimators import ESTIMATORS
from openrlhf_sagc.config import renamed_flags
from openrlhf_sagc.config.refusal import OFF
from openrlhf_sagc.migrate.convert import ENABLES, FORKS_GRPO, Conversion

DEFAULTS = Path(renamed_flags.__file__).with_name("changed_defaults.csv")
ENTRY = re.compile(rb"^(?!\s*#).*?openrlhf\.cli\.(\w+)", re.MULTILINE)  # but in a comment
FOLDER = re.compile(  # that Python looks for modules in
    rb"""^(?!\s*\#)[^\n]*?(\bcd\s+[^\s;&|)]+|\bworking_dir\b[\\"']*\s*:\s*[\\"']*(?:\$\{\w+\}|[^\s\\"',}])+|--working-dir[=\s]\s*\S+|PYTHONPATH=\S+)""",
    re.MULTILINE,
)
QUOTES = r"[\\\"']"
WITHOUT_GROUPS = ("gae", "reinforce", "flash_reinforce")
DYNAMIC = {"--use_dynamic_batch", "--train.dynamic_batch_enable"}
PACKING = DYNAMIC | {"--packing_samples", "--ds.packing_samples"}  # with flash attention, in every version
SHARED = (0, 6, 3)  # since this version reward addresses share the samples


def advice(conversion: Conversion, defaults: dict[str, object]) -> Iterator[str]:
    """Lines for whoever starts the script.

    Args:
        conversion: the script.
        defaults: those of today's flags, by their names.
    """
    if conversion.old:
        yield from _changed_defaults(conversion, defaults)
        yield from _shared_addresses(conversion)
    if conversion.trainings:
        yield from _needed(conversion, defaults)
        yield from _folders(conversion.script)
    for name in sorted(set(ENTRY.findall(conversion.script)) - {b"train_ppo_ray"}):
        yield _entry_point(name.decode())


def _changed_defaults(conversion: Conversion, defaults: dict[str, object]) -> Iterator[str]:
    """Flags that the script leaves at a default which has changed since the version that it may be of."""
    given, first = _given(conversion), _oldest(conversion)
    needed = {
        "": True,
        "critic": conversion.has_critic,
        "correction": bool(given.keys() & {*ENABLES}),
        "padded": not given.keys() & PACKING,
        "static": not given.keys() & DYNAMIC,
    }
    with DEFAULTS.open(newline="") as file:
        for row in csv.DictReader(file):
            flags = {row["flag"], *row["earlier"].split()}
            if given.keys() & flags or first >= _number(row["since"]) or not needed[row["note"]]:
                continue
            today = defaults[row["flag"]]
            shown = " ".join(map(str, today)) if isinstance(today, list) else "no limit" if today is None else today
            yield (
                f"{row['flag']} is not given: its default was {row['default']} before {row['since']} and is {shown} today; "
                f"to keep it add {row['flag']} {row['default']}"
            )


def _line(script: bytes, match: re.Match[bytes]) -> int:
    return script.count(b"\n", 0, match.start(1)) + 1


def _folders(script: bytes) -> Iterator[str]:
    """Folders that may be a clone of OpenRLHF or of a fork, as those of most old scripts are."""
    entered: list[str] = []
    given: list[str] = []
    for match in FOLDER.finditer(script):
        text = re.sub(QUOTES, "", match[1].decode(errors="replace"))
        (entered if text.startswith("cd") else given).append(f"line {_line(script, match)}: {text}")
    if entered:
        yield (
            f"a run that starts in a folder which holds another openrlhf, as a clone or a fork does, ends ({', '.join(entered)}): start "
            "in another one, with whole paths to what the script uses"
        )
    if given:
        yield (
            f"another openrlhf in such a folder, as of a clone or a fork, is passed over ({', '.join(given)}): the run is of OpenRLHF "
            "0.11.2, without what a fork has changed"
        )


def _shared_addresses(conversion: Conversion) -> Iterator[str]:
    urls = ",".join(_given(conversion).get("--reward.remote_url", [])).strip("\"'")
    if "," in urls and _oldest(conversion) < SHARED:
        yield (
            f"--reward.remote_url {urls}: up to OpenRLHF 0.6.2 each sample went to every address, and the rewards were added; since "
            "then the addresses share the samples: if their rewards differ, write a reward_func in a .py file that adds them"
        )


def _oldest(conversion: Conversion) -> tuple[int, ...]:
    """The first version that has all of the script's flags."""
    return max(_number(flag.renamed.first) for flag in conversion.flags if flag.renamed)


def _needed(conversion: Conversion, defaults: dict[str, object]) -> Iterator[str]:
    """What the scheduler needs, and dynamic sampling."""
    given = _given(conversion)

    def value(name: str, default: str) -> str:
        return given.get(name, [default])[-1:][0] if given.get(name, [default]) else default

    estimator = value("--algo.advantage.estimator", "gae")
    if estimator == FORKS_GRPO:
        yield f"no version of OpenRLHF has --algo.advantage.estimator {FORKS_GRPO}: group_norm is GRPO's"
    elif estimator not in (*ESTIMATORS, *WITHOUT_GROUPS) and "$" not in estimator:
        yield f"OpenRLHF 0.11.2 has no --algo.advantage.estimator {estimator}: use one of {', '.join(ESTIMATORS)}"
    elif estimator in WITHOUT_GROUPS:
        yield (
            f"python -m openrlhf_sagc needs groups: --algo.advantage.estimator {estimator} has none, {', '.join(ESTIMATORS)} "
            f"have; {OFF} runs the script as it is"
        )
    samples = value("--rollout.n_samples_per_prompt", "1")
    if samples in ("0", "1"):
        yield f"python -m openrlhf_sagc needs groups: --rollout.n_samples_per_prompt {samples} is none, use 2 or more"
    for name, idle in (
        ("--rollout.vllm_generate_batch_size", value("--rollout.batch_size", str(defaults["--rollout.batch_size"]))),
        ("--critic.freezing_steps", "-1"),
    ):
        if value(name, idle) != idle and not ("vllm" in name and "--train.partial_rollout_enable" in given):  # a pool
            yield f"python -m openrlhf_sagc does not take {name} {value(name, idle)}: drop it, or start {OFF}"
    scores = given.keys() & {"--reward.remote_url", "--train.agent_func_path"}
    if "--algo.dynamic_filtering_enable" in given and not scores:
        yield (
            "--algo.dynamic_filtering_enable needs the scores of --reward.remote_url or --train.agent_func_path, beside a "
            "reward model too"
        )


def _given(conversion: Conversion) -> dict[str, list[str]]:
    """Flags of the script under their names of today and of then, with their values."""
    given: dict[str, list[str]] = {}
    for flag in conversion.flags:
        texts = [text.strip("\"'\\") for text in flag.texts]
        names = [flag.renamed.flag, *flag.renamed.successors[:1]] if flag.renamed else [flag.name]
        given.update(dict.fromkeys(names, texts))
    return given


def _entry_point(name: str) -> str:
    if name == "train_ppo":
        return "openrlhf.cli.train_ppo stays: it trained without Ray, which OpenRLHF gave up in 0.6.1; write for train_ppo_ray"
    return f"openrlhf.cli.{name} stays: this converts only openrlhf.cli.train_ppo_ray"


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))

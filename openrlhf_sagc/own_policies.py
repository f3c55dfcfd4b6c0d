"""Policies of one's own: FILE.py:Class of the user's in the place of group control, or of dynamic sampling's judgement.

docs/architecture.md shows one of each. They are made before Ray starts and again in the driver, and give no surprise to the
rest of the package: what they answer is checked here, and a mistake is one line that names the class.
"""

import importlib.util
import inspect
import operator
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from openrlhf_sagc.config.causes import short
from openrlhf_sagc.config.plug_in_import import takes, where
from openrlhf_sagc.decisions.controller import StragglerAwareGroupController
from openrlhf_sagc.decisions.records import Candidate

# Verbs of a class, each with what it is called with.
STATE = {"state_dict": (), "load_state_dict": ("state",)}
SIZE_VERBS = {"observe": ("groups",), "metrics": (), **STATE}
OBSERVED = dict.fromkeys(("running", "forecasts", "frame_ends"))  # what `observe` may take besides, by name
WATCHED = ("straggler_rate", "straggler_rate_mean")
LONGEST_REASON = 60  # characters of what becomes a metric's name


class PolicyError(ValueError):
    """A policy of one's own cannot be made, or answers what it may not; the message begins with `policy FILE.py:Class`."""


def name_of(word: str | None) -> str | None:
    """File and class without the folders, by which a checkpoint knows the policy; None if there is none."""
    return word and os.path.basename(word)


class _Own:
    """An object of the class that the word names; it gets those of the named arguments that it takes.

    Args:
        word: FILE.py:Class.
        verbs: that the class needs.
        words, settings: that it is made with.

    Raises:
        PolicyError: the file or the class does not fit.
    """

    def __init__(self, word: str, verbs: dict[str, tuple[str, ...]], *words: Any, **settings: Any) -> None:
        self._what, self._name = f"policy {word}", name_of(word)
        path, _, name = word.rpartition(":")
        self._path = os.path.abspath(path)
        self._expect(path.endswith(".py"), "names no class: use FILE.py:Class")
        self._expect(os.path.isfile(self._path), f"cannot be imported: there is no file {self._path}")
        with self._named("cannot be imported"):
            spec: Any = importlib.util.spec_from_file_location(f"policies of {self._path}", self._path)
            module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # where dataclasses look for it
            spec.loader.exec_module(module)
        cls = getattr(module, name, None)
        there = [key for key, value in vars(module).items() if getattr(value, "__module__", "") == spec.name]
        self._expect(callable(cls), f"is not there: {self._path} has {', '.join(there[:8]) or 'no class'}")
        with self._named(f"cannot be made as {name}({', '.join(['group_sizes'] * len(words) + ['**settings'])})"):
            self._own = cls(*words, **_taken(cls, settings))  # type: ignore[misc]
        for verb, given in (verbs | (STATE if hasattr(self._own, "state_dict") else {})).items():
            method, call = getattr(self._own, verb, None), f"{verb}({', '.join(given)})"
            self._expect(callable(method), f"has no method {call}: add it")
            fits = takes(method, *given, **_taken(method, OBSERVED)) and not inspect.iscoroutinefunction(method)
            self._expect(fits, f"has a method {verb} that cannot be called as {call}: let it take that, without async")

    def _expect(self, condition: object, otherwise: str) -> None:
        if not condition:
            raise PolicyError(f"{self._what} {otherwise}")

    @contextmanager
    def _named(self, what_fails: str) -> Iterator[None]:
        """Errors of the user's code in one line, with its line there."""
        try:
            yield
        except (Exception, SystemExit) as error:
            raise PolicyError(f"{self._what} {what_fails}: {short(where(error, self._path))}") from error

    def _call(self, verb: str, *words: Any, **named: Any) -> Any:
        with self._named(f"fails in {verb}"):
            method = getattr(self._own, verb)
            return method(*words, **_taken(method, named))

    def state_dict(self) -> dict[str, Any]:
        """{"policy": its name, "state": a copy of what it keeps, if it keeps anything}."""
        if not hasattr(self._own, "state_dict"):
            return {"policy": self._name}
        return {"policy": self._name, "state": self._plain(self._call("state_dict"))}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict()`; from that of another class it begins anew."""
        if state.get("policy") == self._name and "state" in state:
            self._call("load_state_dict", self._plain(state["state"]))

    def _plain(self, value: Any) -> Any:
        """A copy of a state as a checkpoint can hold it, and be read without running code."""
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, dict):
            return {self._plain(key): self._plain(entry) for key, entry in value.items()}
        if type(value) in (list, tuple):
            return type(value)(map(self._plain, value))
        if hasattr(value, "detach"):  # a tensor of torch's
            return value.detach().clone()
        is_plain = value is None or type(value) in (bool, int, float, str)
        kinds = "numbers, texts, lists, dictionaries and tensors"
        self._expect(is_plain, f"has a {type(value).__name__} in its state_dict: a checkpoint holds {kinds}")
        return value


class OwnSizePolicy(_Own):
    """A `SizePolicy` of one's own. What it does not measure of the stragglers is measured beside it, as at a fixed size.

    Args:
        word: FILE.py:Class, made as Class(group_sizes, **settings) with those of the settings that it takes.
        settings: by name.
        watch: a controller with these settings, whose sizes the policy chooses from.
    """

    def __init__(self, word: str, settings: dict[str, Any], watch: StragglerAwareGroupController) -> None:
        super().__init__(word, SIZE_VERBS, watch.group_sizes, **settings)
        self._watch = watch
        self._choose()

    def _choose(self) -> None:
        """Ask for the size of the next step, once a step, as every answer may be another."""
        with self._named("fails in group_size"):
            given = self._own.group_size
        sizes = self._watch.group_sizes
        size = None
        with suppress(TypeError):  # of an array or a tensor that is no single whole number
            size = None if isinstance(given, bool) else operator.index(given)
        self._expect(size in sizes, f"gives group_size {short(repr(given), 80)}: use an int, one of {list(sizes)}")
        self.group_size = int(given)

    def observe(self, groups: Sequence[Sequence[float]], **more: Any) -> None:
        """As `SizePolicy`; a step without groups is passed over."""
        if groups:
            self._watch.observe(groups, more["running"])
            self._call("observe", groups, **more)
            self._choose()

    def metrics(self) -> dict[str, float]:
        """The policy's, and the straggler rates."""
        found, watched = self._call("metrics"), self._watch.metrics()
        with self._named(f"gives metrics {short(repr(found), 80)}, which is no dictionary of numbers"):
            own = {str(name): float(value) for name, value in found.items()}
        return {name: watched[name] for name in WATCHED} | own

    def state_dict(self) -> dict[str, Any]:
        """That of group control, which can go on from it, with the policy's."""
        return {**self._watch.state_dict(), "group_size": self.group_size, **super().state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict()` or that of group control, at its size."""
        self._watch.load_state_dict(state)
        super().load_state_dict(state)
        self.group_size = int(state["group_size"])


class OwnFilter(_Own):
    """A `GroupFilter` of one's own.

    Args:
        word: FILE.py:Class, made as Class(**settings) with those of the settings that it takes.
        settings: by name.
    """

    def __init__(self, word: str, settings: dict[str, Any]) -> None:
        super().__init__(word, {"admit": ("group",)}, **settings)

    def admit(self, group: Candidate) -> str | None:
        """Why the group is dropped, None if it is kept."""
        reason = self._call("admit", group)
        fits = reason is None or isinstance(reason, str) and 0 < len(reason) <= LONGEST_REASON and reason.isprintable()
        use = f"use None to keep a group, or a text of at most {LONGEST_REASON} characters to drop it"
        self._expect(fits, f"gives {short(repr(reason), 80)} in admit: {use}")
        return reason


def _taken(function: Any, named: dict[str, Any]) -> dict[str, Any]:
    """Those of the named arguments that the function names; all of them if it takes any."""
    try:
        parameters = [*inspect.signature(function).parameters.values()] if named else []
    except ValueError:  # a builtin has no signature
        return {}
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return named
    return {parameter.name: named[parameter.name] for parameter in parameters if parameter.name in named}

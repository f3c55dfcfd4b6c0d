"""Countdown with written-out search: make a target from three numbers by adding and subtracting, each used once.

A prompt is `use 4 15 6 to make 13 :`. A response first notes what every pair makes and then searches, starting from
the target and taking the numbers off or adding them until nothing should be left (line breaks are for reading only):

    4 +15 = 19 , 4 -15 = -11 , 4 +6 = 10 , 4 -6 = -2 , 15 +6 = 21 , 15 -6 = 9 ;
    13 -6 = 7 +4 = 11 -15 = -4 , 13 -4 = 9 -15 = -6 +6 = 0 !

The last attempt says 13 = 4 + 15 - 6. `!` follows an attempt that ends at 0, `stuck` ends a search that was given up.
Tokens are words separated by single spaces; a number with its sign is one word.
"""

import random
import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, combinations_with_replacement, permutations, product

LARGEST_NUMBER = 15
NUMBERS_PER_INSTANCE = 3
MAX_ATTEMPTS = 14
GIVE_UP_PROBABILITY = 0.12
CONTEXT = 256  # tokens that a model can read: a prompt and the longest search

PROMPT = re.compile(r"use ((?:\d+ )+)to make (\d+) :")
ATTEMPT = re.compile(r"(\d+)((?: [+-]\d+ = -?\d+)+) !")
STEP = re.compile(r"([+-]\d+) = (-?\d+)")


@dataclass(frozen=True)
class Instance:
    """A solvable problem: `numbers` in the order the prompt names them, and the positive `target`."""

    numbers: tuple[int, ...]
    target: int

    @property
    def key(self) -> tuple[tuple[int, ...], int]:
        """What makes two instances the same problem: the numbers as a multiset, and the target."""
        return tuple(sorted(self.numbers)), self.target

    @property
    def prompt(self) -> str:
        return f"use {' '.join(map(str, self.numbers))} to make {self.target} :"

    @property
    def label(self) -> str:
        """The target; the reward reads the prompt alone."""
        return str(self.target)


def all_instances() -> list[Instance]:
    """Every solvable problem with a positive target, one a multiset of numbers and target, numbers ascending."""
    instances = []
    for numbers in combinations_with_replacement(range(1, LARGEST_NUMBER + 1), NUMBERS_PER_INSTANCE):
        signed = product(*((number, -number) for number in numbers))
        targets = sorted({sum(terms) for terms in signed if sum(terms) > 0})
        instances += [Instance(numbers, target) for target in targets]
    return instances


def shuffled(instance: Instance, rng: random.Random) -> Instance:
    """The same problem with its numbers in a random order."""
    return Instance(tuple(rng.sample(instance.numbers, len(instance.numbers))), instance.target)


def split_instances(seed: int, heldout: int) -> tuple[list[Instance], list[Instance]]:
    """All problems in random order as (train, held-out) with `heldout` of them held out; none is in both."""
    instances = all_instances()
    if not 0 < heldout < len(instances):
        raise ValueError(f"heldout must be between 1 and {len(instances) - 1}, got {heldout}")
    rng = random.Random(seed)
    rng.shuffle(instances)
    instances = [shuffled(instance, rng) for instance in instances]
    return instances[heldout:], instances[:heldout]


@lru_cache(maxsize=None)
def possible_attempts(instance: Instance) -> tuple[tuple[int, ...], ...]:
    """The steps of every attempt: the numbers in each order with each choice of signs, at least one of them minus."""
    every_sign = list(product((-1, 1), repeat=len(instance.numbers)))[:-1]
    orders = permutations(instance.numbers)
    return tuple(tuple(s * n for s, n in zip(signs, order)) for order in orders for signs in every_sign)


def search_trace(instance: Instance, rng: random.Random) -> str:
    """One written-out search: attempts in random order until one ends at 0 or the search is given up."""
    pairs = combinations(instance.numbers, 2)
    notes = " , ".join(f"{a} +{b} = {a + b} , {a} -{b} = {a - b}" for a, b in pairs)
    attempts, ending = [], "stuck"
    for steps in rng.sample(possible_attempts(instance), MAX_ATTEMPTS):
        value = instance.target
        text = str(value)
        for step in steps:
            value += step
            text += f" {step:+d} = {value}"
        attempts.append(text)
        if value == 0:
            ending = "!"
            break
        if rng.random() < GIVE_UP_PROBABILITY:
            break
    return f"{notes} ; {' , '.join(attempts)} {ending}"


def written_out(instances: list[Instance], rng: random.Random) -> list[str]:
    """A prompt each, its numbers in a random order, and one written-out search behind it."""
    instances = [shuffled(instance, rng) for instance in instances]
    return [f"{instance.prompt} {search_trace(instance, rng)}" for instance in instances]


def solved(prompt: str, response: str) -> bool:
    """Whether the last attempt of `response`, marked `!`, takes each number of `prompt` once from the target to 0.

    `response` is the text after the prompt without special tokens. Every value is computed here; an attempt with a
    wrong value written anywhere in it does not count.
    """
    problem = PROMPT.fullmatch(prompt.strip())
    if problem is None:
        raise ValueError(f"not a Countdown prompt: {prompt!r}")
    numbers, target = sorted(map(int, problem[1].split())), int(problem[2])
    attempt = ATTEMPT.fullmatch(re.split(r"[,;]", response)[-1].strip())
    if attempt is None or int(attempt[1]) != target:
        return False
    value, used = target, []
    for step, written in STEP.findall(attempt[2]):
        value += int(step)
        used.append(abs(int(step)))
        if value != int(written):
            return False
    return sorted(used) == numbers and value == 0

"""Route: ride a line to its end, on which responses are as unequal in length as a reasoning model's.

A prompt is `line 7 , 15 to go :`. A response takes local and express trains and writes how many stations are left. It ends
with `!` at the end of the line:

    local 14 express 9 express 4 local 3 local 2 local 1 local 0 !

Who takes an express too far writes `lost`. Trips differ in length by a lognormal distribution, and responses to the same
prompt by how often they take the express.
"""

import random
import re
from dataclasses import dataclass

LINES = 290  # they tell trips of the same length apart
TRAINS = {"local": 1, "express": 5}  # stations they go
MEDIAN, LOG_SD = 24, 1.5
SHORTEST, LONGEST = 3, 290  # trips, in stations
PROBLEMS = 3000
CARELESSNESS = 0.5  # how often an express is taken where it goes too far, against elsewhere
CONTEXT = 592  # tokens that a model can read: a prompt and the longest way

PROMPT = re.compile(r"line \d+ , (\d+) to go :")
RESPONSE = re.compile(r"((?:(?:local|express) -?\d+ )*)!")


@dataclass(frozen=True)
class Instance:
    """A trip of so many `stations` on a `line`."""

    line: int
    stations: int

    @property
    def prompt(self) -> str:
        return f"line {self.line} , {self.stations} to go :"

    @property
    def label(self) -> str:
        """The length of the trip; the reward reads the prompt alone."""
        return str(self.stations)


def drawn_trip(rng: random.Random) -> Instance:
    """A trip of lognormal length on any line."""
    stations = 0
    while not SHORTEST <= stations <= LONGEST:
        stations = round(MEDIAN * rng.lognormvariate(0, LOG_SD))
    return Instance(rng.randint(1, LINES), stations)


def split_instances(seed: int, heldout: int) -> tuple[list[Instance], list[Instance]]:
    """PROBLEMS different trips as (train, held-out) with `heldout` of them held out; none is in both."""
    if not 0 < heldout < PROBLEMS:
        raise ValueError(f"heldout must be between 1 and {PROBLEMS - 1}, got {heldout}")
    rng = random.Random(seed)
    drawn: dict[Instance, None] = {}
    while len(drawn) < PROBLEMS:
        drawn.setdefault(drawn_trip(rng))
    instances = list(drawn)
    rng.shuffle(instances)
    return instances[heldout:], instances[:heldout]


def written_way(instance: Instance, rng: random.Random) -> str:
    """One way, which may miss the end of the line."""
    eagerness = rng.random()
    left, words = instance.stations, []
    while left > 0:
        goes_too_far = left < TRAINS["express"]
        train = "express" if rng.random() < eagerness * (CARELESSNESS if goes_too_far else 1) else "local"
        left -= TRAINS[train]
        words.append(f"{train} {left}")
    return f"{' '.join(words)} {'lost' if left else '!'}"


def written_out(instances: list[Instance], rng: random.Random) -> list[str]:
    """A prompt each and one way behind it."""
    return [f"{instance.prompt} {written_way(instance, rng)}" for instance in instances]


def solved(prompt: str, response: str) -> bool:
    """Whether `response`, the text after the prompt without special tokens, rides to the end of the line and says so."""
    trip = PROMPT.fullmatch(prompt.strip())
    if trip is None:
        raise ValueError(f"not a Route prompt: {prompt!r}")
    left = int(trip[1])
    way = RESPONSE.fullmatch(response)
    if way is None:
        return False
    words = way[1].split()
    for train, written in zip(words[::2], words[1::2]):
        left -= TRAINS[train]
        if int(written) != left:
            return False
    return left == 0

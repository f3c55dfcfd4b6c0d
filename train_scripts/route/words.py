"""The words of Route: a number is one token."""

from task import LONGEST, TRAINS

NUMBERS = [str(number) for number in range(1 - max(TRAINS.values()), LONGEST + 1)]  # lines are among them
WORDS = ["line", ",", "to", "go", ":", "!", "lost", "local", "express", *NUMBERS]

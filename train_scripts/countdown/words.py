"""The words of Countdown: a number with its sign is one token."""

from task import LARGEST_NUMBER, NUMBERS_PER_INSTANCE

TOTAL = NUMBERS_PER_INSTANCE * LARGEST_NUMBER
ADDED = [f"+{number}" for number in range(1, LARGEST_NUMBER + 1)]
VALUES = [str(number) for number in range(-TOTAL, 2 * TOTAL + 1)]  # every number a search can reach
WORDS = ["use", "to", "make", ":", "=", ",", ";", "!", "stuck", *ADDED, *VALUES]

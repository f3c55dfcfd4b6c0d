"""How many tokens an engine drafts in an iteration: as many as have paid, by its own iterations."""

FEW, MORE = 16, 4  # the smallest budget of an iteration in tokens, and times as much as each further one has
TRIES = 4  # iterations of a budget before it is compared
RETRIES = 0.01  # share of the time that may go to budgets that are slower
CREDIT = 2.0  # iterations that may be lost at first
GAIN = 0.03  # that a draft has to promise
USUAL, RARE = 0.05, 0.3  # share of the last iteration in the mean of the usual budget, and of one that is tried again
ODD = 3.0  # times the mean: no iteration, but a pause


class _Mean:
    """Tokens and milliseconds of the iterations with a budget; nothing is known before TRIES of them."""

    def __init__(self) -> None:
        self.tokens, self.ms = 0.0, 0.0
        self.first: list[tuple[float, int]] = []  # milliseconds and tokens of the first iterations

    def add(self, tokens: int, ms: float, share: float) -> None:
        if self.is_known:
            self.tokens += share * (tokens - self.tokens)
            self.ms += share * (min(ms, ODD * self.ms) - self.ms)
            return
        self.first.append((ms, tokens))
        if self.is_known:
            usual = sorted(self.first)[: TRIES // 2 + 1]  # the others may be pauses
            self.ms, self.tokens = (sum(values) / len(usual) for values in zip(*usual))

    @property
    def is_known(self) -> bool:
        return len(self.first) == TRIES

    @property
    def speed(self) -> float:
        return self.tokens / self.ms if self.ms else 0.0


class _Budgets:
    """Those of about as many running requests, the smallest first, and what is known of them."""

    def __init__(self, most: int) -> None:
        self.tokens = [0, FEW]
        while self.tokens[-1] < most:
            self.tokens.append(self.tokens[-1] * MORE)
        self.means = [_Mean() for _ in self.tokens]
        self._saved = 0.0  # milliseconds that slower ones may take
        self._turn = 0

    def choose(self) -> int:
        """The place of the budget of the next iteration: the fastest, or another one that there is time to try."""
        known = [place for place, mean in enumerate(self.means) if mean.is_known]
        if len(known) < 2:
            return len(known)
        others = [place for place in known if place != self._fastest] + [len(known)] * (len(known) < len(self.means))
        other = others[self._turn % len(others)]
        if self._loss(other) > self._saved:
            return self._fastest
        self._turn += other in known or len(self.means[other].first) == TRIES - 1
        return other

    def note(self, place: int, tokens: int, ms: float) -> None:
        """An iteration with this budget has sampled so many tokens in so many milliseconds."""
        usual = place == self._fastest
        self.means[place].add(tokens, ms, USUAL if usual else RARE)
        if not self.means[0].is_known:
            self._saved = CREDIT * ms
            return
        self._saved += RETRIES * ms - (0.0 if usual else max(ms - tokens / self.means[self._fastest].speed, 0.0))

    @property
    def _fastest(self) -> int:
        """The place of the budget with most tokens a millisecond; without drafts, unless others promise a GAIN."""
        place = max(range(len(self.means)), key=lambda place: self.means[place].speed)
        return place if self.means[place].speed > (1 + GAIN) * self.means[0].speed else 0

    def _loss(self, place: int) -> float:
        """Milliseconds that an iteration with this budget is expected to lose; one that is not known gains nothing."""
        mean, best = self.means[place], self.means[self._fastest]
        if mean.is_known:
            return max(mean.ms - mean.tokens / best.speed, RETRIES * best.ms)
        a_token = (self.means[place - 1].ms - self.means[0].ms) / self.tokens[place - 1]
        return max(a_token * self.tokens[place], RETRIES * best.ms)


class DraftBudget:
    """Chooses the budget of each iteration: for as many running requests, the one with the most tokens a millisecond.

    Verifying a draft costs nothing as long as an engine waits for its memory, and a token's computing where it is full. So
    each power of two of running requests learns which budget is the fastest, none among them. They are tried from the
    smallest on, each where what the one before has cost says that it may be. What pays changes with the lengths and with
    what is drafted: slower ones are tried again, for RETRIES of the time.

    Args:
        longest: tokens of a draft.
    """

    def __init__(self, longest: int) -> None:
        self.longest = longest
        self._budgets: dict[int, _Budgets] = {}
        self._chosen: tuple[_Budgets, int] | None = None  # of the iteration that runs

    def choose(self, running: int) -> int:
        """Tokens that the next iteration may draft, of so many running requests."""
        kind = running.bit_length()
        budgets = self._budgets.setdefault(kind, _Budgets(self.longest << kind))
        place = budgets.choose()
        self._chosen = budgets, place
        return min(budgets.tokens[place], running * self.longest)

    def note(self, tokens: int, ms: float) -> None:
        """The iteration of the last choice has sampled so many tokens in so many milliseconds."""
        if self._chosen:
            budgets, place = self._chosen
            budgets.note(place, tokens, ms)

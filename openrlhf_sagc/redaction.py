"""Keeps secrets out of logs: user, password and query of URLs, and the values of secret environment variables."""

import os
import re

_URL = re.compile(
    r"""(?P<scheme>[a-z][a-z0-9+.-]{0,20}://)  # kept, as are host and path; bounded, so that the time is linear
        (?:[^\s?\#]{0,500}@)?              # user and password, also where they hold what should be quoted
        (?P<place>[^\s?\#'"<>]*)
        (?:[?\#]\S*(?<!['")>,]))?           # query and fragment, up to the quote or bracket that ends the URL""",
    re.IGNORECASE | re.VERBOSE,
)
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASS|_PWD$|AUTH|CREDENTIAL", re.IGNORECASE)
_SHORTEST = 8  # characters of a secret, so that no ordinary word is taken for one


class RewardUrl(str):
    """The URL of a reward server, whole wherever it is used; printed in a list or in the arguments it has no secrets."""

    def __repr__(self) -> str:
        return repr(without_secrets(self))


class Secret(str):
    """A flag's value, whole wherever it is used, that the printed arguments do not show."""

    def __repr__(self) -> str:
        return "'***'"


def without_secrets(text: str) -> str:
    """The text with scheme, host and path of its URLs alone, and `$NAME` for the values of secret variables.

    Secret are environment variables with KEY, TOKEN, SECRET, PASS, AUTH or CREDENTIAL in their name, or _PWD at its end.
    """
    secrets = [(value, name) for name, value in os.environ.items() if _SECRET_NAME.search(name)]
    for value, name in sorted(secrets, key=lambda secret: len(secret[0]), reverse=True):
        if len(value) >= _SHORTEST:
            text = text.replace(value, f"${name}")
    return _URL.sub(r"\g<scheme>\g<place>", text)

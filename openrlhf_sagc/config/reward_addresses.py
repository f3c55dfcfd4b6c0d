"""--reward.remote_url: one .py file, or the addresses of reward servers; what is neither is corrected in the line."""

import os
import re
from urllib.parse import urlsplit

from openrlhf_sagc.config.refusal import refuse
from openrlhf_sagc.config.settings import Settings
from openrlhf_sagc.redaction import shown

FLAG = "--reward.remote_url"
_ADDRESS = re.compile(r"https?://.*", re.IGNORECASE)
_FUNCTION = re.compile(r"(.*\.py)(?:::?|@)\w+", re.IGNORECASE)  # a file and the name of its function
_OTHER_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:/+", re.IGNORECASE)


def check_addresses(args: Settings) -> None:
    """Each of them is an address or the one file.

    Raises:
        SystemExit: one is not; the line has the value that would work.
    """
    if args.train.agent_func_path or not args.reward.remote_url:  # OpenRLHF puts a word there for an agent
        return
    urls = args.reward.remote_url
    for url in urls:
        if name := _FUNCTION.fullmatch(url.strip()):
            refuse(
                not os.path.exists(url),
                f"{FLAG} {_shown(url)} names a function: use {_shown(name[1])}, in which OpenRLHF calls reward_func",
            )
        refuse(
            url.strip().lower().endswith(".py") and not url.strip().endswith(".py"),
            f"{FLAG} {_shown(url)}: OpenRLHF takes no such ending: rename the file to {_shown(url.strip()[:-3] + '.py')}",
        )
        is_file = os.path.exists(url) and not url.endswith(".py")
        refuse(
            is_file, f"{FLAG} {_shown(url)} is not a .py file: give a Python file that has reward_func, or an address"
        )
    right = list(filter(None, map(_corrected, urls)))
    files = [url for url in right if url.endswith(".py") and not _ADDRESS.match(url)]
    refuse(not right, f"{FLAG} {','.join(urls)!r} is empty: give a .py file or an address")
    refuse(
        files and len(right) > 1,
        f"{FLAG} {_shown(','.join(urls))} has a .py file and something else: use only one file, {_shown(files[0] if files else '')}, or "
        "only addresses",
    )
    for url in right:
        refuse(
            url not in files and not _has_host(url),
            f"{FLAG} {_shown(url)} has no host and port that can be asked: use http://HOST:PORT/PATH",
        )
    wrong = [url for url in urls if url not in right]
    if not wrong:
        if len(right) > 1:
            print(
                f"openrlhf_sagc: {FLAG}: {len(right)} addresses share the samples, so all have to give the same rewards (up to OpenRLHF "
                "0.6.2 each got all samples, and rewards were added)"
            )
        return
    advice = ",".join(map(_shown, right))
    if len(right) == 1 and advice.startswith("http://") and not _ADDRESS.search(wrong[0]):
        advice += f" or {advice.replace('http://', 'https://', 1)}"
    what = (
        f"{_shown(wrong[0])} is neither a .py file nor an address"
        if wrong[0].strip() == wrong[0] != ""
        else (f"{_shown(','.join(urls))!r} has a comma or a space too many")
    )
    refuse(True, f"{FLAG} {what}: use {advice}")


def _corrected(url: str) -> str:
    """The file or address that is meant; empty if it is nothing."""
    url = url.strip().strip("'\"").strip()
    if not url or url.endswith(".py") and "://" not in url:
        return url
    if address := _ADDRESS.search(url):
        return address[0]
    return f"http://{_OTHER_SCHEME.sub('', url)}"


def _has_host(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and not re.search(r"\s", url) and (parts.port is None or parts.port > 0)
    except ValueError:  # a port that is no number
        return False


def _shown(url: str) -> str:
    is_bare = "://" not in url and re.search("[:/]", url)
    return shown(f"http://{url}", FLAG).removeprefix("http://") if is_bare else shown(url, FLAG)

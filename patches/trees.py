"""Makes OpenRLHF's four trees from its released wheel and the patches: python3 patches/trees.py [FOLDER]

FOLDER (build) gets, each as a git repository with a commit a patch:
  base         the wheel's files
  patched      base + patches/*.patch, what GPU machines run
  cpu-base     base + patches/cpu/*.patch + ON_CPU, "unpatched" on a CPU
  cpu-patched  cpu-base + the other patches/*.patch
and `stamp`, which says what they were made from. `pip install` puts the same trees into this package's wheel (backend.py).
Exit codes: 2 no git, 10 wheel missing, 11 wheel differs from the pinned one, 12 a patch does not apply.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PATCHES = ROOT / "patches"
VERSION = "0.11.2"
SHA256 = "c969d70db03a70724c3d8a5a01186c6e0728bce624fb3dff95e39b5396acefa6"
WHEEL = f"openrlhf-{VERSION}-cp311-cp311-manylinux1_x86_64.whl"  # its code is that of the wheels for 3.10 and 3.12
FOR_WHEEL = ["--python-version", "3.11", "--implementation", "cp", "--abi", "cp311", "--platform", "manylinux1_x86_64"]
# Of the main series: nothing can be imported without the one where flash-attn is missing, and without the other fp32 ends
# at the first weight sync.
ON_CPU = ("*-Pack-samples-without-flash-attn-*.patch", "*-Give-vLLM-s-engines-the-data-type-*.patch")
TREES = ("base", "patched", "cpu-base", "cpu-patched")
NOTICE = f"# This file of OpenRLHF {VERSION} was changed by the project openrlhf_sagc: its folder patches/ has each change.\n"
WHO = {"NAME": "OpenRLHF", "EMAIL": "openrlhf@localhost", "DATE": "2026-11-20T12:00:00+0000"}
# Commits must not depend on the user's git settings or on the clock, nor go to a repository that calls this.
GIT = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    **{f"GIT_{role}_{name}": value for role in ("AUTHOR", "COMMITTER") for name, value in WHO.items()},
}


class NotMade(Exception):
    """The trees could not be made: an exit code, and why in a line."""

    def __init__(self, code: int, line: str):
        super().__init__(line)
        self.code = code


def make_trees(folder: Path) -> None:
    """Write the four trees into the folder, in the place of earlier ones.

    Raises:
        NotMade: git or the wheel is missing, the wheel is another one, or a patch does not apply.
    """
    if shutil.which("git") is None:
        raise NotMade(2, "git is missing, which applies the patches: install it, or install a release's wheel")
    base, cpu_base = folder / "base", folder / "cpu-base"
    series = sorted(PATCHES.glob("*.patch"))
    on_cpu = [patch for pattern in ON_CPU for patch in PATCHES.glob(pattern)]
    _unpack(_fetched_wheel(), base)
    _apply(base, folder / "patched", "main", series)
    _apply(base, cpu_base, "cpu", [*sorted(PATCHES.glob("cpu/*.patch")), *on_cpu])
    _apply(cpu_base, folder / "cpu-patched", "main", [patch for patch in series if patch not in on_cpu])


def _fetched_wheel() -> Path:
    """OpenRLHF's wheel as released, downloaded with pip's own settings if it is not there."""
    wheel = ROOT / "build/wheel" / WHEEL
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    if not wheel.exists():
        what = ["--only-binary=:all:", *FOR_WHEEL, "--dest", wheel.parent, f"openrlhf=={VERSION}"]
        subprocess.run([*download, *what], stdout=sys.stderr)
    if not wheel.exists():
        raise NotMade(
            10, f"openrlhf {VERSION} could not be downloaded: check pip's index, or put its wheel at {wheel}"
        )
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if found != SHA256:
        raise NotMade(
            11, f"{wheel} has sha256 {found}, the series is made for {SHA256}: delete it to download it anew"
        )
    return wheel


def _unpack(wheel: Path, tree: Path) -> None:
    """Write the wheel's files into the tree, as a repository's first commit."""
    unpacked = tree.with_name("unpacked")
    for folder in (tree, unpacked):
        shutil.rmtree(folder, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(unpacked)
    (unpacked / f"openrlhf-{VERSION}.data/purelib").rename(tree)
    shutil.rmtree(unpacked)
    _git(tree, "init", "--quiet", "--initial-branch=base")
    _git(tree, "add", "--all", "--force")
    _git(tree, "commit", "--quiet", "--message", f"OpenRLHF {VERSION}")


def _apply(base: Path, tree: Path, branch: str, patches: Sequence[Path]) -> None:
    """Copy a tree, and commit the patches on it, on a new branch."""
    shutil.rmtree(tree, ignore_errors=True)
    shutil.copytree(base, tree)
    _git(tree, "checkout", "--quiet", "-b", branch)
    for patch in patches:
        try:
            _git(tree, "am", "--quiet", "--no-3way", "--keep-non-patch", "--committer-date-is-author-date", patch)
        except subprocess.CalledProcessError as error:
            said = next(
                (line for line in error.stderr.splitlines() if line.startswith("error: ")), "error: git am failed"
            )
            raise NotMade(12, f"{patch.relative_to(ROOT)} does not apply to {base}: {said[7:]}") from None


def _git(tree: Path, *words: str | Path) -> None:
    subprocess.run(["git", "-C", tree, *words], env=GIT, check=True, capture_output=True, text=True)


def export_trees(made: Path, package: Path) -> None:
    """Copy what of the trees is given away: OpenRLHF's package alone, with a notice in each file that a patch changes.

    Args:
        made: with what `make_trees` has written.
        package: gets a folder for each tree.
    """
    for name in TREES:
        shutil.copytree(
            made / name / "openrlhf", package / name / "openrlhf", ignore=shutil.ignore_patterns("__pycache__")
        )
        for file in (package / name).rglob("*.py"):
            released = made / "base" / file.relative_to(package / name)
            if not released.exists() or released.read_bytes() != file.read_bytes():
                file.write_text(NOTICE + file.read_text())


def stamp() -> str:
    """What trees are made from, in a line as sha256sum prints it."""
    files = [*sorted(PATCHES.glob("*.patch")), *sorted(PATCHES.glob("cpu/*.patch")), Path(__file__)]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest() + "  -\n"


def build(folder: Path) -> None:
    """Make the trees of a clone, and say what from."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "stamp").unlink(missing_ok=True)
    make_trees(folder)
    (folder / "stamp").write_text(stamp())


def is_built(folder: Path) -> bool:
    """Whether the folder's trees are those of the patches as they are now."""
    return (folder / "stamp").exists() and (folder / "stamp").read_text() == stamp()


if __name__ == "__main__":
    try:
        build(Path(*sys.argv[1:2] or [ROOT / "build"]))
    except NotMade as not_made:
        print(f"patches/build.sh: {not_made}", file=sys.stderr)
        sys.exit(not_made.code)

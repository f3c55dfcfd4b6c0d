"""This package's build backend (PEP 517): setuptools, which also puts OpenRLHF's trees into the wheel.

It is the same wheel from a folder, an sdist or git's address. A command that runs in a clone, or is installed as editable, uses
the trees of the clone's build/, which are made as well.
"""

import shutil
import tempfile
from pathlib import Path

import trees
from setuptools.build_meta import *  # noqa: F403
from setuptools.command.build_py import build_py

PACKAGE = "openrlhf_sagc"


class BuildWithTrees(build_py):
    """Named in pyproject.toml."""

    def run(self) -> None:
        package, clone = Path(self.build_lib, PACKAGE), trees.ROOT / "build"
        if not self.editable_mode:
            shutil.rmtree(package, ignore_errors=True)  # an earlier build may have left modules that are gone
        super().run()
        try:
            if not trees.is_built(clone):
                trees.build(clone)
            if not self.editable_mode:
                self._add_trees(package)
        except trees.NotMade as not_made:
            raise SystemExit(f"{PACKAGE}: {not_made}") from None

    def _add_trees(self, package: Path) -> None:
        """Made anew: those of a clone may have been changed."""
        with tempfile.TemporaryDirectory() as folder:
            trees.make_trees(Path(folder))
            trees.export_trees(Path(folder), package / "trees")

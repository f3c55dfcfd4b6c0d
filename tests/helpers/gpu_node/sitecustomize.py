"""A GPU node's Python without a GPU: PyTorch says that it has CUDA, and the kernels' hub is this folder.

Python imports it at its start where this folder is on PYTHONPATH. All else is the installed packages' own code, `kernels` among it.
HUB=away: there is no network. CACHED=no: nothing was fetched before. The builds are those that published_builds.csv has.
"""

import csv
import importlib.util
import json
import os
import runpy
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path
from types import SimpleNamespace

HERE = Path(__file__).parent
REPOSITORY = "kernels-community/flash-attn2"
TORCH, CUDA = "2.13.0+cu130", "13.0"  # as PyPI's torch 2.13.0 says


def have_cuda(torch):
    """What is asked before the first kernel: a node of two H100."""
    torch.__version__ = torch.version.__version__ = type(torch.__version__)(TORCH)
    torch.version.cuda = CUDA
    for name, answer in {
        "is_available": True,
        "is_initialized": True,
        "_is_compiled": True,
        "device_count": 2,
        "current_device": 0,
        "get_device_capability": (9, 0),
        "get_arch_list": ["sm_90"],
        "get_device_name": "NVIDIA H100 80GB HBM3",
    }.items():
        setattr(torch.cuda, name, lambda *_, answer=answer, **__: answer)
    torch._C._cuda_getCurrentRawStream = lambda device: 0  # Triton's runtime imports it


def pretended(run_path):
    """`runpy.run_path`, by which torch's version.py is read where to import torch takes too long."""

    def run(path, *more, **others):
        found = run_path(path, *more, **others)
        return found | {"__version__": TORCH, "cuda": CUDA} if str(path).endswith("torch/version.py") else found

    return run


class Hub:
    """The hub's API, as far as kernels 0.16 asks it."""

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp())

    def _answer(self, offline=False):
        if os.environ.get("HUB") == "away" and not offline:
            raise ConnectionError("Name or service not known")

    def get_organization_overview(self, name):
        self._answer()
        return SimpleNamespace(trustedKernelPublisher=name == REPOSITORY.split("/")[0])

    def list_repo_tree(self, repository, *, revision, **_):
        from huggingface_hub.hf_api import RepoFolder

        self._answer()
        return [RepoFolder(path=f"build/{build}", oid="0") for build in builds(repository, revision)]

    def list_repo_refs(self, repo_id, **_):
        self._answer()
        names = dict.fromkeys(row["branch"] for row in published())
        return SimpleNamespace(
            branches=[SimpleNamespace(name=name, ref=f"refs/heads/{name}", target_commit="0" * 40) for name in names]
        )

    def hf_hub_download(self, repository=None, *, filename, repo_id=None, revision, **_):
        from huggingface_hub.utils import EntryNotFoundError

        self._answer()
        if filename.endswith("kernel-status.toml"):
            raise EntryNotFoundError("no such file")
        return str(self._put(Path(filename).parent.name) / "metadata.json")

    def snapshot_download(self, repository, *, revision, local_files_only=False, **_):
        from huggingface_hub.errors import LocalEntryNotFoundError

        self._answer(offline=local_files_only)
        if local_files_only and os.environ.get("CACHED") == "no":
            raise LocalEntryNotFoundError("nothing of it is on the disk")
        for build in builds(repository, revision):
            self._put(build)
        return str(self.folder)

    def _put(self, build):
        folder = self.folder / "build" / build
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(HERE / "flash_attn2.py", folder / "__init__.py")
        (folder / "metadata.json").write_text(json.dumps(METADATA))
        return folder


METADATA = {
    "id": "_flash_attn2_stub",
    "name": "flash-attn2",
    "version": 2,
    "license": "BSD-3-Clause",
    "python-depends": [],
    "backend": {"type": "cuda", "archs": ["8.0", "9.0"]},
}


def published():
    with open(HERE / "published_builds.csv", newline="") as file:
        return list(csv.DictReader(file))


def builds(repository, branch):
    """The names of the folders of builds that a branch of the repository has."""
    return [row["build"] for row in published() if repository == REPOSITORY and row["branch"] == branch]


def ask_this_hub(module):
    hub = Hub()
    module._get_hf_api = lambda *_, **__: hub


class AfterImport:
    """Finds a module as Python would, and changes it once it is loaded."""

    CHANGES = {"torch": have_cuda, "kernels.utils": ask_this_hub, "kernels._versions": ask_this_hub}

    def find_spec(self, name, path=None, target=None):
        if name not in self.CHANGES or getattr(self, "busy", None) == name:
            return None
        self.busy = name
        spec = importlib.util.find_spec(name)
        self.busy = None
        spec.loader.exec_module = partial(self._load, spec.loader.exec_module, self.CHANGES[name])
        return spec

    @staticmethod
    def _load(load, change, module):
        load(module)
        change(module)


runpy.run_path = pretended(runpy.run_path)
sys.meta_path.insert(0, AfterImport())

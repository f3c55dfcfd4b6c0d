#!/usr/bin/env bash
# Installs this package on a GPU node, with OpenRLHF 0.11.2 in it and all that a run needs: bash install.sh [PIP OPTION...]
# It then fetches the launch scripts' attention kernel into the hub's cache (HF_HOME), and says which compilers are missing.
# PYTHON: the Python to install into (python3). Exit codes: 2 something is missing on the machine, 3 all is installed but the
# kernel, else pip's own.
set -euo pipefail

root=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=/dev/null
. "$root/train_scripts/help.sh"
PYTHON=${PYTHON:-python3}
fail() { echo "install.sh: $*" >&2; exit 2; }
[ "$(uname -sm)" = "Linux x86_64" ] || fail "needs Linux on x86_64, this is $(uname -sm)"
command -v git >/dev/null || fail "git is missing: install it (Debian: apt-get install git)"
command -v "$PYTHON" >/dev/null || fail "no $PYTHON: set PYTHON to a Python 3.11 or newer"
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || fail "needs Python 3.11 or newer, $PYTHON is $("$PYTHON" --version 2>&1)"
"$PYTHON" -m pip --version >/dev/null 2>&1 || fail "$PYTHON has no pip: install it (Debian: apt-get install python3-pip), or set PYTHON to that of a venv"
"$PYTHON" -m pip install "$@" "${root}[gpu]"
scripts=$root/train_scripts
"$PYTHON" "$scripts/toolchain.py" || true # a login node may lack what the GPU nodes have: preflight.py asks there
"$PYTHON" "$scripts/attention.py" --fetch || exit 3

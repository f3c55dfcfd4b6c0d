#!/usr/bin/env bash
# Makes the four trees of OpenRLHF in build/, or in the folder BUILD names: see patches/trees.py, and there the exit codes.
set -euo pipefail
cd "$(dirname "$0")/.."

BUILD=${BUILD:-build}
PYTHON=${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}
command -v "$PYTHON" >/dev/null || { echo "patches/build.sh: no $PYTHON: set PYTHON to a Python 3.11 or newer with pip" >&2; exit 2; }
"$PYTHON" patches/trees.py "$BUILD"
echo "built $BUILD/base, patched, cpu-base and cpu-patched"

#!/usr/bin/env bash
# Makes a release of the last commit: dist/ with the sdist and the wheel that is built from it, with OpenRLHF's trees, and
# their sha256.
#   bash release.sh
# Before: raise __version__ in openrlhf_sagc/__init__.py and version in CITATION.cff, put the day into CHANGELOG.md, commit.
# PYTHON: one with pip, setuptools and wheel. The same commit gives the same bytes. Exit codes: 2 the release is not ready, 3 the build failed.
set -euo pipefail
cd "$(dirname "$0")"

PYTHON=${PYTHON:-$PWD/.venv/bin/python}
fail() { echo "release.sh: $2" >&2; exit "$1"; }
command -v "$PYTHON" >/dev/null || fail 2 "no $PYTHON: run train_scripts/setup.sh, or set PYTHON"

version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' openrlhf_sagc/__init__.py)
[ -n "$version" ] || fail 2 "openrlhf_sagc/__init__.py has no __version__"
newest=$(grep -m 1 '^## \[' CHANGELOG.md) || fail 2 "CHANGELOG.md has no heading of a version"
[[ $newest =~ ^"## [$version] - "[0-9]{4}-[0-9]{2}-[0-9]{2}$ ]] ||
    fail 2 "CHANGELOG.md begins with '$newest': write '## [$version] - $(date +%F)'"
cited=$(sed -n 's/^version: //p' CITATION.cff)
[ "$cited" = "$version" ] || fail 2 "CITATION.cff has version $cited: write $version"
changed=$(git status --porcelain)
[ -z "$changed" ] || fail 2 "not committed: $(echo "$changed" | cut -c4- | paste -sd ' ')"
! git rev-parse --quiet --verify "refs/tags/v$version" >/dev/null || fail 2 "v$version is tagged already: raise __version__"

# Times are the commit's, and names, modes, owners and the order of files do not depend on who builds it and when.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH PYTHONHASHSEED=0 LC_ALL=C TZ=UTC
umask 022
out=$PWD/dist name=openrlhf_sagc-$version source=$(mktemp -d)
trap 'rm -rf "$source"' EXIT
git archive --prefix=source/ HEAD | tar -x --no-same-permissions -C "$source"
rm -rf "$out"
mkdir "$out"
[ ! -d build/wheel ] || export PIP_NO_INDEX=1 PIP_FIND_LINKS=$PWD/build/wheel # OpenRLHF's wheel, as the set-up has it
build="import sys; sys.path.insert(0, 'patches'); import backend; backend.build_sdist(sys.argv[1])"
log=$(cd "$source/source" && "$PYTHON" -c "$build" "$source" 2>&1) || { echo "$log" | tail -n 5 >&2; fail 3 "the sdist was not built"; }
tar -xzf "$source/$name.tar.gz" --no-same-permissions --no-same-owner -C "$source"
tar -c --format=ustar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX \
    -C "$source" "$name" | gzip -9n >"$out/$name.tar.gz"
"$PYTHON" -m pip --quiet --disable-pip-version-check wheel --no-deps --no-build-isolation \
    --wheel-dir "$out" "$out/$name.tar.gz" 2>"$source/pip.log" || { cat "$source/pip.log" >&2; fail 3 "the wheel was not built"; }
(cd "$out" && sha256sum "$name.tar.gz" "$name-py3-none-any.whl")
echo "release.sh: TURNS=all bash tests/run.sh should have passed on this commit; to tag it: git tag v$version"

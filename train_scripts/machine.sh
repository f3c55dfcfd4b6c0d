# shellcheck shell=bash
# What a machine needs before anything is installed; sourced by setup.sh.

PYTHONS="3.11, 3.12 or 3.13"

# find_python: prints the command of a Python that the set-up can use, python3 before others; nothing if there is none.
find_python() {
    local candidate
    for candidate in python3 python3.13 python3.12 python3.11; do
        case $("$candidate" -c 'import sys; print(*sys.version_info[:2])' 2>/dev/null) in
            "3 11" | "3 12" | "3 13") echo "$candidate"; return ;;
        esac
    done
}

# lacks WHAT PACKAGE...: notes that WHAT is missing, and Debian's packages that bring it.
missing=() packages=()
lacks() { missing+=("$1"); packages+=("${@:2}"); }

look_for_python() {
    local python found
    python=$(find_python)
    if [ -n "$python" ]; then
        "$python" -c 'import ensurepip' 2>/dev/null || lacks "venv of $python" "$python-venv"
        "$python" -c 'import os, sysconfig; assert os.path.exists(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null ||
            lacks "headers of $python" "$python-dev"
    elif found=$(python3 --version 2>&1); then
        lacks "Python $PYTHONS (python3 is $found: put another into PATH, for example as python3.13)"
    else
        lacks "Python $PYTHONS" python3 python3-venv python3-dev
    fi
}

look_for_programs_and_libraries() {
    local wanted program libraries
    for wanted in git:git g++:g++ flock:util-linux; do
        program=${wanted%:*}
        command -v "$program" >/dev/null || lacks "$program" "${wanted#*:}"
    done
    # Not `| grep -q`, which closes the pipe: ldconfig may die of that, and then the libraries would seem to be missing.
    libraries=$("${LDCONFIG:-/sbin/ldconfig}" -p)
    [[ $libraries == *libseccomp.so.2* ]] || lacks "libseccomp.so.2 (confines the comparison of answers)" libseccomp2
    [[ $libraries == *libnuma.so.1* ]] || lacks "libnuma.so.1 (vLLM needs it)" libnuma1
}

# check_machine: returns with 0 if all is there, otherwise says in one line what is missing and what installs all of it.
check_machine() {
    look_for_python
    look_for_programs_and_libraries
    [ ${#missing[@]} -gt 0 ] || return 0
    local list line
    printf -v list '%s, ' "${missing[@]}"
    line="missing on this machine: ${list%, }"
    [ ${#packages[@]} = 0 ] || line+="; Debian and Ubuntu install it with: apt-get install ${packages[*]}"
    echo "$line"
    return 1
}

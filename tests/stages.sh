# shellcheck shell=bash
# The stages of tests/run.sh, and the table of them at its end.
# shellcheck source=/dev/null
. "${BASH_SOURCE[0]%/*}/../train_scripts/values.sh"

log=build/tests.log
: >$log
failures=0 rows=()

# counted FILE WORD: how many WORD pytest counts at its end.
counted() { sed -nE "s/^=+ (.* )?([0-9]+) $2.* in [0-9.]+s.*=$/\2/p" "$1" | tail -n 1; }

# stage NAME COMMAND...: runs the command, whatever has failed before, and notes a row of the table.
stage() {
    local name=$1 output=$log.stage code=0 start=$SECONDS passed failed errors skipped
    shift
    echo "[tests, minute $((SECONDS / 60))] $name"
    { "$@" 2>&1 | tee "$output"; } || code=$?
    passed=$(counted "$output" passed) failed=$(counted "$output" failed)
    errors=$(counted "$output" error) skipped=$(counted "$output" skipped)
    failed=${failed:-0} errors=${errors:-0}
    check_numbers 0 failed errors
    failed=$((failed + errors))
    if [ "$code" != 0 ] && [ "$failed" = 0 ]; then # no test: a linter, or pytest itself
        failed=1
        echo "FAILED $name: exit code $code" >>"$output"
    elif [ -z "$passed$skipped" ] && [ "$failed" = 0 ]; then
        passed=1
    fi
    cat "$output" >>"$log"
    failures=$((failures + failed))
    rows+=("$(printf '%-28s %6d %6d %7d %7d' "$name" "${passed:-0}" "$failed" "${skipped:-0}" $((SECONDS - start)))")
}

# table: a row for each stage that has ended, what was skipped, what failed.
table() {
    rm -f "$log.stage"
    echo
    grep -E '^SKIPPED' "$log" || true
    grep -E '^(FAILED|ERROR) ' "$log" || true
    printf '%-28s %6s %6s %7s %7s\n' stage passed failed skipped seconds
    printf '%s\n' "${rows[@]}"
}

all_passed() { [ "$failures" = 0 ]; }

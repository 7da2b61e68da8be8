#!/usr/bin/env bash
# Runs the tests: those of every crate, then of a mounted volume, then of what is installed. Installs
# first what they need, as far as it can (scripts/setup.sh).
#
# usage: scripts/test.sh [--quick]
#
# --quick leaves out what needs a mount or an optimised build, and tries fewer random cases. What this
# machine cannot run, because there is no root or no /dev/fuse, is named and not counted. Ends with one
# line, "N passed, N failed", and fails if any test did.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin:$HOME/.cargo/bin"

purpose=test
quick=false
if [[ ${1-} == --quick ]]; then
    quick=true
    purpose=test-quick
    export PROPTEST_CASES=${PROPTEST_CASES-16}
    export CFFS_CRASH_STATES=${CFFS_CRASH_STATES-10000}
    export CFFS_SCHEDULES=${CFFS_SCHEDULES-200}
fi

log=$(mktemp)
release_log=$(mktemp)
release=
cleanup() {
    [[ -z $release ]] || kill "$release" 2>/dev/null || true
    rm -f "$log" "$release_log"
}
trap cleanup EXIT
passed=0
failed=0

# What tests on mounts need besides the programs that are installed. Every `make build` here includes it,
# that of `make install` too, so that nothing is built twice.
export ALSO="-p cffs-bench"

# Runs a command and keeps what it prints in the log, and its exit status.
run() {
    status=0
    "$@" 2>&1 | tee "$log" || status=$?
}

# Adds "PASSED FAILED". A command that failed and reports no failed test, say because it did not compile,
# counts as one; so does one that succeeded and reports no test.
add() {
    local passed_here failed_here
    read -r passed_here failed_here <<<"${1:-0 0}"
    if ((failed_here == 0 && (status != 0 || passed_here == 0))); then
        failed_here=1
    fi
    passed=$((passed + passed_here))
    failed=$((failed + failed_here))
}

# The totals that a suite printed last: "N passed, N failed".
totals() {
    sed -nE 's/^([0-9]+) passed, ([0-9]+) failed(, [0-9]+ skipped)?$/\1 \2/p' "$log" | tail -n 1
}

run scripts/setup.sh "$purpose"
if ((status != 0)); then
    echo "FAILED  setup: what needs the programs above will fail, too"
    failed=$((failed + 1))
fi

# All targets in one go, libraries for C and Python among them. What does not compile fails again below.
cargo build --locked --workspace --all-targets || true
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
export CFFS_LIBRARIES=$target/debug

# Tests wait for devices, timers and other processes, and leave processors idle: meanwhile the optimised
# programs are compiled, at a lower priority.
if ! $quick; then
    optimised=(build)
    [[ ! -x target/tools/python/bin/maturin ]] || optimised+=(wheel)
    nice make --no-print-directory "${optimised[@]}" >"$release_log" 2>&1 &
    release=$!
fi

# The totals of the tests of crates.
crate_totals() {
    sed -nE 's/^test result: .* ([0-9]+) passed; ([0-9]+) failed;.*/\1 \2/p' "$log" |
        awk '{ p += $1; f += $2 } END { print p + 0, f + 0 }'
}

run cargo test --locked --workspace --no-fail-fast
add "$(crate_totals)"

# The core once more, with locks whose order a seed decides.
run cargo test --locked -p cffs --features schedules --test schedules --no-fail-fast
add "$(crate_totals)"

# The tests of a Python package, with what it is imported from.
run_python() { # PACKAGE MODULES
    run env PYTHONPATH="$2:$PWD/target/tools/python:$PWD/target/tools/data" \
        python3 -m unittest discover --start-directory "python/$1/tests"
    add "$(sed -E 's/[(),]/ /g; s/=/ /g' "$log" | awk '
        /^Ran [0-9]+ tests? in / { ran = $2 }
        /^(OK|FAILED)( |$)/ { for (i = 2; i < NF; i += 2) count[$i] = $(i + 1) }
        END {
            bad = count["failures"] + count["errors"]
            print ran - bad - count["skipped"], bad
        }')"
}

run_python uconfigparser "$PWD/python/uconfigparser/src"
run_python pycffs "$(scripts/python-module.sh --built || echo /nonexistent)"

if ! $quick; then
    status=0
    wait "$release" || status=$?
    release=
    cat "$release_log"
    if ((status != 0)); then
        add "0 1"
    elif ((EUID != 0)) || [[ ! -r /dev/fuse ]]; then
        echo "not run: tests/acceptance, which mounts volumes and so needs root and /dev/fuse"
    else
        # By io_uring where the kernel has it, and by /dev/fuse, but for the cases that mount by NFS.
        run tests/acceptance/run --mount-options transport=auto
        add "$(totals)"
        run tests/acceptance/run --mount-options transport=dev --except nfs-
        add "$(totals)"
        # On a volume in an object store the suites of others pass, too.
        run tests/acceptance/run --fs cffs-store --only fsx --only pjdfstest --only stress
        add "$(totals)"
    fi
    run tests/packaging/run
    add "$(totals)"
fi

echo "$passed passed, $failed failed"
((failed == 0))

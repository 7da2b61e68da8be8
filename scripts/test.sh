#!/usr/bin/env bash
# Runs the tests: those of every crate, then those of a mounted volume and of the installed files. Installs
# the programs that they need, as far as possible (scripts/setup.sh).
#
# usage: scripts/test.sh [--quick]
#
# --quick leaves out the tests on mounts and of the installed files, and tries fewer random cases. Tests that
# this machine cannot run, without root or without /dev/fuse, are named and not counted. Ends with one line,
# "N passed, N failed", and fails if any test did.
#
# All tests use the development build, whose assertions are checked; `make soak` uses the optimised one.
#
# Tests wait for devices, timers and other processes, and downloads for the network. Meanwhile the
# processors do other work: tools are fetched while the crates are compiled, and while the tests of the
# crates run, installing and killed servers are tested at a lower priority.
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

directory=$(mktemp -d)
log=$directory/log
declare -A started
cleanup() {
    ((${#started[@]} == 0)) || kill "${started[@]}" 2>/dev/null || true
    rm -rf "$directory"
}
trap cleanup EXIT
passed=0
failed=0

# Runs a command, and stores its output and its exit status in the log.
run() {
    status=0
    "$@" 2>&1 | tee "$log" || status=$?
}

# Starts a command in the background under a name.
start() { # NAME COMMAND...
    "${@:2}" >"$directory/$1" 2>&1 &
    started[$1]=$!
}

# Waits for the command of this name, and prints its output, as if it had run now.
finish() { # NAME
    status=0
    wait "${started[$1]}" || status=$?
    unset "started[$1]"
    tee "$log" <"$directory/$1"
}

# Adds "PASSED FAILED". A command that failed without reporting a failed test, for example because it did not
# compile, counts as one; so does one that succeeded without reporting any test.
add() {
    local passed_here failed_here
    read -r passed_here failed_here <<<"${1:-0 0}"
    if ((failed_here == 0 && (status != 0 || passed_here == 0))); then
        failed_here=1
    fi
    passed=$((passed + passed_here))
    failed=$((failed + failed_here))
}

# The last totals that a suite printed: "N passed, N failed".
totals() {
    sed -nE 's/^([0-9]+) passed, ([0-9]+) failed(, [0-9]+ skipped)?$/\1 \2/p' "$log" | tail -n 1
}

# Compiling needs these; the rest of what the tests need is fetched meanwhile.
scripts/setup.sh test-quick
start setup scripts/setup.sh "$purpose"
# Builds all targets at once, including the libraries for C and Python. A target that does not compile fails
# again below.
if ! cargo build --locked --workspace --all-targets; then
    echo "FAILED  build: the tests on mounts and of the installed files are left out"
    failed=$((failed + 1))
    quick=true
fi
# Packaging builds the library again, so it is copied before.
modules=$(scripts/python-module.sh --built || echo /nonexistent)
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
export CFFS_LIBRARIES=$target/debug
export CFFS_BENCH=$target/debug/cffs-bench
finish setup
if ((status != 0)); then
    echo "FAILED  setup: what needs the programs above will fail, too"
    failed=$((failed + 1))
fi

# These need no mount on this machine: the servers that are killed run in a virtual machine.
if ! $quick; then
    export CFFS=$target/debug/cffs
    start packaging nice tests/packaging/run
    can_mount=false
    if ((EUID == 0)) && [[ -r /dev/fuse ]]; then
        can_mount=true
        start killed nice tests/acceptance/run --mount-options transport=auto --only killed-servers
    fi
fi

run scripts/run_tests.py --locked --workspace
add "$(totals)"

# The core once more, with a seed that determines the order of locks. The whole workspace is named, so that
# dependencies have the same features as above and are not compiled again. It continues at a lower priority
# while volumes are mounted.
start schedules nice scripts/run_tests.py --locked --workspace --features cffs/schedules --test schedules

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
run_python pycffs "$modules"

if ! $quick; then
    if ! $can_mount; then
        echo "not run: tests/acceptance, which mounts volumes and so needs root and /dev/fuse"
    else
        # Over io_uring if the kernel supports it, and over /dev/fuse. The NFS cases, and one that uses
        # other mount options, would be the same again.
        run tests/acceptance/run --mount-options transport=auto --except killed-servers
        add "$(totals)"
        run tests/acceptance/run --mount-options transport=dev --except nfs- --except killed-servers \
            --except growth
        add "$(totals)"
        # Other projects' suites also pass on a volume in an object store.
        run tests/acceptance/run --fs cffs-store --only fsx --only pjdfstest --only stress
        add "$(totals)"
        finish killed
        add "$(totals)"
    fi
    finish packaging
    add "$(totals)"
fi
finish schedules
add "$(totals)"

echo "$passed passed, $failed failed"
((failed == 0))

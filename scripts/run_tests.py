#!/usr/bin/env python3
"""Builds the test programs of crates and runs them, several at a time.

usage: scripts/run_tests.py [--jobs N] OPTION...     (options of cargo test, such as --workspace)

cargo runs one test program after the other, and many of them wait most of the time, for devices, timers and
other processes. This script builds them with one command, starts the longest first, and prints the output
of each when it ends. Programs that must not run together with others run at the end.

Tests of documentation run last, by cargo. Ends with the time of each program and "N passed, N failed";
fails if any test did.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import re
import subprocess
import sys
import tempfile
import time

# The programs that take longest are started first: started last, one of them would run on alone.
LONGEST = ["cffs/crash", "cffs-cli/integration", "cffs-bench/place", "cffs-web/page",
           "cffs-object/cffs_object", "cffs/integration", "cffs/cffs", "cffs-bench/cffs_bench",
           "cffs-c/programs", "cffs-fuzz/seeded", "cffs/model", "cffs-serve/cffs_serve"]
# These programs make mount namespaces. A namespace keeps every volume in use that is mounted when it is made,
# so tests of another program would fail to unmount theirs. Running each program in a namespace does not help:
# outside the first one, C-FFS does not mount volumes as block devices.
ALONE = ["cffs-bench/place", "cffs-cli/namespaces", "cffs-place/program"]
TOTALS = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed;", re.MULTILINE)
# The exit code of a test program in which tests failed.
TESTS_FAILED = 101

Program = collections.namedtuple("Program", "name path directory")
# What a program did: wall clock and processors, its children's included.
Result = collections.namedtuple("Result", "name passed failed wall_s cpu_s")


def build(options):
    """The test programs that cargo builds with these options, the longest first."""
    command = ["cargo", "test", "--no-run", "--message-format=json-render-diagnostics", *options]
    built = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if built.returncode:
        sys.exit("run_tests: the tests do not compile")
    programs = []
    for message in map(json.loads, built.stdout.splitlines()):
        if message["reason"] == "compiler-artifact" and message["profile"]["test"] and message["executable"]:
            directory = os.path.dirname(message["manifest_path"])
            name = f"{os.path.basename(directory)}/{message['target']['name']}"
            programs.append(Program(name, message["executable"], directory))
    rank = {name: number for number, name in enumerate(LONGEST)}
    return sorted(programs, key=lambda program: rank.get(program.name, len(rank)))


def counts(output, status):
    """How many tests passed and failed. A program that fails without a failed test counts as one."""
    found = [(int(passed), int(failed)) for passed, failed in TOTALS.findall(output)]
    passed, failed = sum(totals[0] for totals in found), sum(totals[1] for totals in found)
    return passed, failed or int(status != 0)


def run(program):
    """Runs a test program as cargo does, and prints its output."""
    deps = os.path.dirname(program.path)
    libraries = [deps, os.path.dirname(deps), os.environ.get("LD_LIBRARY_PATH")]
    environment = dict(os.environ, CARGO_MANIFEST_DIR=program.directory,
                       LD_LIBRARY_PATH=":".join(filter(None, libraries)))
    begun = time.monotonic()
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        child = subprocess.Popen([program.path], cwd=program.directory, env=environment,
                                 stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        printed = output.read().strip()
    if child.returncode not in (0, TESTS_FAILED):
        printed += f"\n{program.name} ended with {child.returncode}"
    print(f"== {program.name}\n{printed}\n", flush=True)
    return Result(program.name, *counts(printed, child.returncode), time.monotonic() - begun,
                  usage.ru_utime + usage.ru_stime)


def run_documentation(options):
    """Runs the tests of documentation, and prints their output."""
    begun = time.monotonic()
    ended = subprocess.run(["cargo", "test", "--doc", "--no-fail-fast", *options], stdin=subprocess.DEVNULL,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    print(f"== documentation\n{ended.stdout}", flush=True)
    return Result("documentation", *counts(ended.stdout, ended.returncode), time.monotonic() - begun, 0)


def main():
    parser = argparse.ArgumentParser(usage="scripts/run_tests.py [--jobs N] OPTION...")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)) + 1,
                        help="programs that run at a time (one more than there are processors)")
    arguments, options = parser.parse_known_args()
    programs = build(options)
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        results = list(pool.map(run, (program for program in programs if program.name not in ALONE)))
    results += [run(program) for program in programs if program.name in ALONE]
    if "--test" not in options:
        results.append(run_documentation(options))
    print("seconds and seconds of processors, by program:")
    for result in sorted(results, key=lambda result: -result.wall_s):
        print(f"{result.wall_s:8.1f} {result.cpu_s:8.1f}  {result.name}")
    passed, failed = sum(result.passed for result in results), sum(result.failed for result in results)
    print(f"{passed} passed, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())

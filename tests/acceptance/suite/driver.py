"""Runs the cases, several at a time, and prints the verdict.

Each case has its own process, session, volume and log. A case that hangs is ended at its time limit, with
everything that it started, and the others continue.
"""

import argparse
import importlib
import os
import pkgutil
import shutil
import signal
import sys
import tempfile
import time
import traceback

from . import cases, volume
from .case import REGISTRY, Skip, Trial, pick

LOG_TAIL_LINES = 40
LOG_LINE_COLUMNS = 400
FULL_TIMEOUT_FACTOR = 40
PASSED, FAILED, SKIPPED = "passed", "FAILED", "skipped"
SKIP_STATUS = 77

# What `--matrix` runs all cases on: each feature and policy by itself, and all of them together, which
# makes a conventional file system.
MATRIX = (
    ("all features", None, None),
    ("no embedded inodes", "^embed", None),
    ("no inline files", "^inline", None),
    ("hints alone", None, "hint"),
    ("no policy", None, "none"),
    ("conventional", "^embed,^inline", "none"),
)


def main(arguments):
    options = parse(arguments)
    for module in pkgutil.iter_modules(cases.__path__):
        importlib.import_module(f"{cases.__name__}.{module.name}")
    chosen = choose(options)
    if options.list:
        print("\n".join(case.name for case in chosen))
        return 0
    if os.geteuid() != 0:
        sys.exit("run: mounting, other users and device nodes need root")
    if options.fs.startswith("cffs") and not os.access(volume.cffs_binary(), os.X_OK):
        sys.exit(f"run: no program at {volume.cffs_binary()}: build it, or name it in $CFFS")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))

    base = tempfile.mkdtemp(prefix="acceptance-", dir=options.scratch)
    os.chmod(base, 0o755)
    counts = {PASSED: 0, FAILED: 0, SKIPPED: 0}
    kinds = MATRIX if options.matrix else ((None, options.features, options.policy),)
    try:
        for number, (title, options.features, options.policy) in enumerate(kinds):
            if title:
                print(f"== {title}", flush=True)
            place = os.path.join(base, str(number))
            os.mkdir(place)
            for verdict in verdicts(chosen, options, place):
                counts[verdict] += 1
    except KeyboardInterrupt:
        print("\ninterrupted", flush=True)
        return 130
    finally:
        if not (options.keep and counts[FAILED]):
            shutil.rmtree(base, ignore_errors=True)
    skipped = f", {counts[SKIPPED]} skipped" if counts[SKIPPED] else ""
    print(f"{counts[PASSED]} passed, {counts[FAILED]} failed{skipped}")
    return 1 if counts[FAILED] else 0


def parse(arguments):
    parser = argparse.ArgumentParser(prog="run", description="Real programs on a mounted file system.")
    parser.add_argument("--fs", choices=volume.KINDS, default="cffs", help="what to test (cffs)")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="sizes for the gate: minutes (the default)")
    size.add_argument("--full", action="store_true", help="the promised sizes: an hour")
    parser.add_argument("--only", action="append", metavar="NAME",
                        help="only cases with this name, or that start with it; may be repeated")
    parser.add_argument("--except", action="append", metavar="NAME", default=[], dest="left_out",
                        help="omit cases with this name, or that start with it; may be repeated")
    parser.add_argument("--jobs", type=int, metavar="N",
                        help="number of cases that run at a time (one per processor; one with --full)")
    parser.add_argument("--features", metavar="LIST", help="cffs: passed to mkfs")
    parser.add_argument("--policy", metavar="POLICY", help="cffs: passed to mkfs")
    parser.add_argument("--matrix", action="store_true",
                        help="cffs: all cases for each feature and policy in turn")
    parser.add_argument("--mount-options", metavar="OPTS", help="added to each mount's -o")
    parser.add_argument("--scratch", metavar="DIR", help="directory for images and logs ($TMPDIR or /tmp)")
    parser.add_argument("--keep", action="store_true", help="keep image and log of failed cases")
    parser.add_argument("--list", action="store_true", help="print the cases' names, and run nothing")
    options = parser.parse_args(arguments)
    kind_of_cffs = options.features or options.policy
    if (kind_of_cffs or options.matrix) and not options.fs.startswith("cffs"):
        parser.error("--features, --policy and --matrix are for cffs")
    if options.jobs is None:
        options.jobs = 1 if options.full else len(os.sched_getaffinity(0))
    if options.jobs < 1:
        parser.error("--jobs must be at least 1")
    if options.matrix and kind_of_cffs:
        parser.error("--matrix chooses the features and policies itself")
    return options


def choose(options):
    """The cases by name; a name that matches nothing is an error, not an empty success. Cases with long
    limits come first, so that none of them runs alone at the end."""
    everything = sorted(REGISTRY, key=lambda case: (-case.timeout, case.name))
    left_out = matching(everything, options.left_out)
    chosen = matching(everything, options.only) if options.only else everything
    return [case for case in chosen if case not in left_out]


def matching(everything, names):
    """The cases with these names; a text that is not a name selects all cases that start with it."""
    for name in names:
        if not any(case.name.startswith(name) for case in everything):
            sys.exit(f"run: no case is called {name}: see --list")
    exact = {case.name for case in everything} & set(names)
    return [case for case in everything
            if case.name in exact
            or any(case.name.startswith(name) for name in names if name not in exact)]


class Run:
    """A running case, in a child process."""

    def __init__(self, case, options, base):
        self.case = case
        self.options = options
        self.limit_s = case.timeout * (FULL_TIMEOUT_FACTOR if options.full else 1)
        self.work = os.path.join(base, case.name)
        os.mkdir(self.work)
        self.log = os.path.join(self.work, "log")
        kind = volume.KINDS[options.fs]
        self.under_test = kind(self.work, options.features, options.policy, options.mount_options)
        self.began = time.monotonic()
        self.child = os.fork()
        if self.child == 0:
            os._exit(child_main(case, options, self.under_test, self.work, self.log))

    def poll(self):
        """Whether the child has ended or reached its time limit, and its exit status if it has one."""
        ended, status = os.waitpid(self.child, os.WNOHANG)
        if ended:
            return True, os.waitstatus_to_exitcode(status)
        return time.monotonic() - self.began >= self.limit_s, None

    def end(self):
        """Ends all processes of the case, and removes its mount."""
        end_session(self.child)
        self.under_test.tear_down()

    def finish(self, status):
        """Cleans up after the child and prints the case's line."""
        elapsed_s = time.monotonic() - self.began
        self.end()
        return report(self.case, status, elapsed_s, self.limit_s, self.work, self.log, self.options.keep)


def verdicts(chosen, options, base):
    """Runs the cases, and yields the verdict of each as it ends."""
    waiting = list(chosen)
    runs = []
    try:
        while waiting or runs:
            while waiting and len(runs) < options.jobs:
                case = waiting.pop(0)
                if case.only_on and options.fs != case.only_on:
                    reason = f"only for {case.only_on}"
                    print(f"{SKIPPED:7} {case.name:28}         {reason}", flush=True)
                    yield SKIPPED
                else:
                    runs.append(Run(case, options, base))
            for run in list(runs):
                is_over, status = run.poll()
                if is_over:
                    verdict = run.finish(status)
                    runs.remove(run)
                    yield verdict
            time.sleep(0.02)
    finally:
        for run in runs:
            run.end()


def child_main(case, options, under_test, work, log):
    """The child's life: make, mount, run, unmount, check. Returns its exit status."""
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.umask(0o022)
    scratch = os.path.join(work, "scratch")
    os.mkdir(scratch)
    status = 1
    try:
        under_test.make(pick(case.size, options.full), pick(case.inodes, options.full))
        under_test.mount()
        case.function(Trial(under_test, scratch, options.full))
        if under_test.is_mounted():
            under_test.unmount()
        under_test.check()
        status = 0
    except Skip as reason:
        print(f"skip: {reason}")
        status = SKIP_STATUS
    except BaseException:  # any exception must become a verdict for the parent
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    return status


def end_session(leader):
    """Ends all processes in the case's session. A server in the background has a session of its own, and ends
    with its mount."""
    for _ in range(100):
        alive = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc")))
                 if session_of(pid) == leader]
        if not alive:
            break
        for pid in alive:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        try:
            os.waitpid(leader, os.WNOHANG)
        except ChildProcessError:
            pass
        time.sleep(0.05)


def session_of(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            return int(stat.read().rpartition(")")[2].split()[3])
    except (FileNotFoundError, ProcessLookupError):
        return None


def report(case, status, elapsed, limit, work, log, keep):
    """Prints the case's line, and the log's tail if it failed; removes its files."""
    verdict = {0: PASSED, SKIP_STATUS: SKIPPED}.get(status, FAILED)
    lines = open(log, encoding="utf-8", errors="replace").read().splitlines() if os.path.exists(log) else []
    print(f"{verdict:7} {case.name:28} {elapsed:6.1f}s", end="")
    if verdict == SKIPPED:
        print("  " + next(line for line in lines if line.startswith("skip: "))[6:], end="")
    print()
    if verdict == FAILED:
        if status is None:
            print(f"    did not end within {limit} s")
        for line in lines[-LOG_TAIL_LINES:]:
            print("    " + line[:LOG_LINE_COLUMNS])
        if keep:
            print(f"    kept: {work}")
    else:
        for line in lines:
            if line.startswith("note: "):
                print(f"        {line[6:]}")
    sys.stdout.flush()
    if not (keep and verdict == FAILED):
        shutil.rmtree(work, ignore_errors=True)
    return verdict

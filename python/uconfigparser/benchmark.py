"""Times UConfigParser and configparser on the file system of a directory.

    python3 benchmark.py DIRECTORY [--options 300] [--rounds 200]
    python3 benchmark.py DIRECTORY --counts

Everything is warm. Prints the median time in microseconds of reading 5 of the options, of setting 5, and of
reading all of them, each with a new parser, as in a program that has just started; and of reading 5 again in
a program that keeps its parser, after another program has changed one of the options.

With --counts it prints what does not depend on the machine instead: the files that each case opens, the bytes
that it reads and writes, and the lines of Python that it executes.
"""

import argparse
import configparser
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "src"))

from uconfigparser import UConfigParser

TOUCHED = 5


def median_us(call, rounds):
    times = []
    for _ in range(rounds):
        begun = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - begun)
    return statistics.median(times) / 1000


def counts(call):
    """The files that a call opens, the bytes that it moves, and the lines of Python that it executes."""
    opened = lines = 0

    def audit(event, _):
        nonlocal opened
        opened += counting and event == "open"

    def trace(_frame, event, _argument):
        nonlocal lines
        lines += event == "line"
        return trace

    def transferred():
        return sum(int(line.split()[1]) for line in Path("/proc/self/io").read_text().splitlines()[:2])

    counting = False
    sys.addaudithook(audit)
    call()
    # Reading the counters counts, too.
    transferred()
    before = transferred()
    own = transferred() - before
    before, counting = transferred(), True
    call()
    counting = False
    moved = transferred() - before - own
    sys.settrace(trace)
    call()
    sys.settrace(None)
    return opened, moved, lines


def ini_parser(path):
    parser = configparser.ConfigParser()
    parser.read(path)
    return parser


def cases(ini, directory, options):
    names = [f"option{number}" for number in range(0, options, options // TOUCHED)][:TOUCHED]

    def get_ini():
        parser = ini_parser(ini)
        return [parser.get("section", name) for name in names]

    def get_files():
        parser = UConfigParser(directory)
        return [parser.get("section", name) for name in names]

    def set_ini():
        parser = ini_parser(ini)
        for name in names:
            parser.set("section", name, "changed")
        with open(ini, "w") as file:
            parser.write(file)

    def set_files():
        parser = UConfigParser(directory)
        for name in names:
            parser.set("section", name, "changed")

    kept = UConfigParser(directory)

    def again_ini():
        # Some option has changed, and only the whole file tells which.
        return get_ini()

    def again_files():
        return [kept.get("section", name) for name in names]

    def all_ini():
        return dict(ini_parser(ini)["section"])

    def all_files():
        return UConfigParser(directory).read_all()

    yield f"get {TOUCHED}", get_ini, get_files
    yield f"set {TOUCHED}", set_ini, set_files
    yield f"get {TOUCHED} again", again_ini, again_files
    yield "read all", all_ini, all_files


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("directory")
    arguments.add_argument("--options", type=int, default=300)
    arguments.add_argument("--rounds", type=int, default=200)
    arguments.add_argument("--counts", action="store_true")
    arguments = arguments.parse_args()
    place = Path(tempfile.mkdtemp(dir=arguments.directory))
    try:
        values = {f"option{number}": f"value of option {number}" for number in range(arguments.options)}
        config = UConfigParser(place / "config")
        config["section"] = values
        ini = place / "config.ini"
        with open(ini, "w") as file:
            config.write(file)
        if arguments.counts:
            print(f"{'':12} {'':6} {'opened':>8} {'bytes':>8} {'lines':>8}")
            for name, *forms in cases(ini, place / "config", arguments.options):
                for form, call in zip(("INI", "files"), forms):
                    opened, moved, lines = counts(call)
                    print(f"{name:12} {form:6} {opened:8} {moved:8} {lines:8}")
            return
        print(f"{'':12} {'INI, us':>10} {'files, us':>10} {'ratio':>7}")
        for name, with_ini, with_files in cases(ini, place / "config", arguments.options):
            before, after = (median_us(call, arguments.rounds) for call in (with_ini, with_files))
            print(f"{name:12} {before:10.0f} {after:10.0f} {before / after:7.2f}")
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    main()

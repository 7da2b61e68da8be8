"""Typical work of developers: a checkout, a build, and running the result."""

import os
import shutil
import subprocess

from .. import trees
from ..case import GIB, case

IDENTITY = {"GIT_AUTHOR_NAME": "A", "GIT_AUTHOR_EMAIL": "a@localhost", "GIT_COMMITTER_NAME": "A",
            "GIT_COMMITTER_EMAIL": "a@localhost", "GIT_CONFIG_GLOBAL": "/dev/null"}


@case("git", size=(2 * GIB, 8 * GIB), inodes=(200_000, 500_000))
def git(t):
    """Clone, check out other versions, gc, fsck; the work tree is clean after each step, and after a
    remount (git compares size, times and inode number of each file with its index)."""
    program = t.program("git", "apt-get install git")
    environment = {**os.environ, **IDENTITY}
    origin = t.outside("origin")
    trees.make_plain_tree(origin, t.pick(3_000, 60_000))

    def run(directory, *arguments):
        return t.output(program, "-C", directory, "-c", "gc.auto=0", *arguments, env=environment)

    run(origin, "init", "-q", "-b", "main")
    for version in range(3):
        if version:
            for top in sorted(os.listdir(origin)):
                if top.isdigit() and int(top) % 3 == version:
                    shutil.rmtree(os.path.join(origin, top))
            tree = os.path.join(origin, f"new{version}")
            trees.make_plain_tree(tree, t.pick(500, 5_000), seed=version + 10)
        run(origin, "add", "-A")
        run(origin, "commit", "-q", "-m", f"version {version}")
        run(origin, "tag", f"v{version}")

    clone = t.path("clone")
    t.run(program, "clone", "-q", "--no-hardlinks", origin, clone, env=environment)
    for version in ("v0", "v1", "v2", "v0", "main"):
        run(clone, "checkout", "-q", version)
        assert not run(clone, "status", "--porcelain"), f"unclean after the checkout of {version}"
    t.remount()
    assert not run(clone, "diff-files", "--name-only"), "the index is stale after a remount"
    run(clone, "gc", "-q")
    run(clone, "fsck", "--full", "--strict")
    run(clone, "worktree", "add", "-q", t.path("second"), "v1")
    assert not run(t.path("second"), "status", "--porcelain")
    t.run(program, "clone", "-q", "--local", clone, t.path("hardlinked"), env=environment)
    run(t.path("hardlinked"), "fsck", "--full")
    trees.assert_same(contents(origin), contents(clone), "the work tree")


def contents(root):
    return {path: fields[4:] for path, fields in trees.describe(root, times=False).items()
            if not path.startswith(b".git/") and path != b".git"}


def crate_source(t, crate, version):
    """The source of a crate from the registry, through cargo, in a directory outside the mount."""
    project = t.outside("fetch")
    os.makedirs(os.path.join(project, "src"), exist_ok=True)
    with open(os.path.join(project, "Cargo.toml"), "w", encoding="ascii") as manifest:
        manifest.write(f'[package]\nname = "fetch"\nversion = "0.1.0"\nedition = "2021"\n'
                       f'[dependencies]\n{crate} = "={version}"\n[workspace]\n')
    with open(os.path.join(project, "src", "lib.rs"), "w", encoding="ascii") as source:
        source.write("")
    t.run("cargo", "vendor", "--quiet", "--versioned-dirs", cwd=project, stdout=subprocess.DEVNULL)
    return os.path.join(project, "vendor", f"{crate}-{version}")


LUA_MAKEFILE = """\
CFLAGS = -O1 -DLUA_USE_POSIX
OBJECTS = $(patsubst %.c,%.o,$(filter-out luac.c onelua.c ltests.c,$(wildcard *.c)))
lua: $(OBJECTS)
\t$(CC) -o $@ $^ -lm
%.o: %.c $(wildcard *.h)
\t$(CC) $(CFLAGS) -c -o $@ $<
clean:
\trm -f *.o lua
"""


@case("make", size=1 * GIB)
def make(t):
    """make -j2 of Lua: builds, runs, does nothing the second time, and rebuilds touched files. make decides
    by times alone."""
    t.program("gcc", "apt-get install gcc make")
    source = crate_source(t, "lua-src", "550.1.1")
    version = sorted(name for name in os.listdir(source) if name.startswith("lua-5.4"))[0]
    tree = t.path("lua")
    shutil.copytree(os.path.join(source, version), tree)
    if not os.path.exists(os.path.join(tree, "lua.c")):
        # The crate contains only the library; a program of ten lines replaces the interpreter.
        with open(os.path.join(tree, "main.c"), "w", encoding="ascii") as main:
            main.write('#include "lua.h"\n#include "lauxlib.h"\n#include "lualib.h"\n'
                       "int main(int argc, char **argv) { lua_State *L = luaL_newstate(); luaL_openlibs(L);\n"
                       "  return argc != 3 || luaL_dostring(L, argv[2]); }\n")
    with open(os.path.join(tree, "Makefile"), "w", encoding="ascii") as makefile:
        makefile.write(LUA_MAKEFILE)
    program = "local s = 0 for i = 1, 1000 do s = s + i end print(s)"
    for _ in range(t.pick(1, 5)):
        t.run("make", "-C", tree, "-j2")
        assert t.output(os.path.join(tree, "lua"), "-e", program).strip() == b"500500"
        assert b"up to date" in t.output("make", "-C", tree), "a second make rebuilds something"
        os.utime(os.path.join(tree, "lvm.c"))
        again = t.output("make", "-C", tree)
        assert b"lvm.c" in again and b"lgc.c" not in again, again
        t.run("make", "-C", tree, "clean")


@case("cargo", size=2 * GIB, timeout=300)
def cargo(t):
    """A crate with dependencies and its target directory on the mount: build, run, and build again without
    changes. Cargo locks with flock, hard-links its results, and trusts times."""
    t.program("cargo", "rustup")
    project = t.subdir("project")
    os.mkdir(os.path.join(project, "src"))
    with open(os.path.join(project, "Cargo.toml"), "w", encoding="ascii") as manifest:
        manifest.write('[package]\nname = "guest"\nversion = "0.1.0"\nedition = "2021"\n[workspace]\n'
                       '[dependencies]\nitoa = "1"\nserde_json = "1"\n')
    with open(os.path.join(project, "src", "main.rs"), "w", encoding="ascii") as source:
        source.write('fn main() { println!("{}", serde_json::json!({ "answer": 42 })); }\n')
    environment = {key: value for key, value in os.environ.items() if key != "CARGO_TARGET_DIR"}
    environment["CARGO_BUILD_JOBS"] = "2"

    def build():
        return t.run("cargo", "build", cwd=project, env=environment, stderr=subprocess.PIPE).stderr

    assert b"Compiling guest" in build()
    assert t.output(os.path.join(project, "target/debug/guest")).strip() == b'{"answer":42}'
    assert b"Compiling" not in build(), "cargo rebuilds what has not changed"
    t.remount()
    assert b"Compiling" not in build(), "cargo rebuilds what has not changed, after a remount"
    assert t.output(os.path.join(project, "target/debug/guest")).strip() == b'{"answer":42}'

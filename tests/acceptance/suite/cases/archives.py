"""Copies of a tree by common backup programs."""

import os
import subprocess

from .. import trees
from ..case import GIB, Skip, case


def odd_tree_outside(t):
    """A tree on the host's file system: the source of the copies."""
    source = t.outside("source")
    os.mkdir(source)
    trees.make_odd_tree(source)
    return source


@case("rsync", size=2 * GIB)
def rsync(t):
    """rsync -aHAX to the mount, again to the mount, and back: neither rsync nor this suite finds a
    difference."""
    if t.volume.name == "xfs":
        raise Skip("xfs shows ACLs a second time, as trusted.SGI_ACL_*, and rsync -X copies both")
    program = t.program("rsync", "apt-get install rsync")
    source = odd_tree_outside(t)
    expected = trees.describe(source)
    t.run(program, "-aHAXS", f"{source}/", t.subdir("copy"))
    trees.assert_same(expected, trees.describe(t.path("copy")), "copied to the mount")
    t.remount()
    trees.assert_same(expected, trees.describe(t.path("copy")), "after a remount")
    changes = t.output(program, "-aHAXSni", "--checksum", "--delete", f"{source}/", t.path("copy"))
    assert not changes.strip(), f"rsync would change: {changes[:2000]!r}"
    os.mkdir(t.outside("back"))
    t.run(program, "-aHAXS", t.path("copy") + "/", t.outside("back"))
    trees.assert_same(expected, trees.describe(t.outside("back")), "copied back")


@case("tar", size=2 * GIB)
def tar(t):
    """tar with xattrs and ACLs: packed from the mount and unpacked on it again."""
    trees.make_odd_tree(t.subdir("tree"))
    # Sockets cannot be archived; tar says so and leaves them out.
    os.unlink(t.path("tree", "special", "socket"))
    expected = trees.describe(t.path("tree"))
    archive = t.outside("archive.tar")
    flags = ["--xattrs", "--xattrs-include=*", "--acls", "--sparse", "--format=pax"]
    t.run("tar", "-C", t.path("tree"), *flags, "-cf", archive, ".")
    t.run("tar", "-C", t.subdir("again"), *flags, "-xpf", archive, "--same-owner")
    t.remount()
    trees.assert_same(expected, trees.describe(t.path("again")), "unpacked")
    t.run("tar", "-C", t.path("again"), *flags, "--compare", "-f", archive)


@case("cp", size=2 * GIB)
def cp(t):
    """cp -a with each of its methods of copying data; holes stay holes."""
    trees.make_odd_tree(t.subdir("tree"))
    expected = trees.describe(t.path("tree"))
    variants = (["--reflink=auto"], ["--sparse=always"], ["--sparse=never", "--reflink=never"])
    for number, flags in enumerate(variants):
        copy = t.path(f"copy{number}")
        t.run("cp", "-a", *flags, t.path("tree"), copy)
        trees.assert_same(expected, trees.describe(copy), " ".join(flags))
    space = int(subprocess.check_output(["du", "-k", t.path("copy1", "sparse")]).split()[0])
    assert space < 1024, f"a copy with three islands takes {space} KiB"

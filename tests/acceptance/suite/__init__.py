"""The mount acceptance suite: real programs on a real mount.

`volume` makes, mounts and checks file systems of each kind; `case` defines cases and their interface;
`driver` runs cases and prints the verdict; `cases/` contains the cases, one file per subject. `syscalls` and
`trees` are helpers of the cases. The suite does not depend on the internals of C-FFS: all cases also run on
ext4 and xfs, which shows that the cases are right.
"""

"""The mount acceptance suite: real programs on a real mount.

`volume` makes, mounts and checks file systems of each kind; `case` is what a case is and what it may
use; `driver` runs cases and prints the verdict; `cases/` holds the cases, one file per subject.
`syscalls` and `trees` are helpers of the cases. Nothing here knows how C-FFS works inside: what is
demanded of it is demanded of ext4 and xfs as well, which is how a case is known to be right.
"""

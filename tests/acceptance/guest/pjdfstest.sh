# Runs pjdfstest on the export, and prints its output.
# With another length of the base path, its tests of long paths may compute a negative length.
base=/mnt/a/base/in/several/directories
mkdir -p $base /tmp/second
pjdfstest -c /pjdfstest.toml -p $base -s /tmp/second || true

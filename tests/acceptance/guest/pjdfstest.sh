# Runs pjdfstest on the export, and prints what it prints.
# Where the base has another length, its tests of long paths may compute a negative one.
base=/mnt/a/base/in/several/directories
mkdir -p $base /tmp/second
pjdfstest -c /pjdfstest.toml -p $base -s /tmp/second || true

# Runs pjdfstest on the export, and prints what it prints.
mkdir /mnt/base /tmp/second
pjdfstest -c /pjdfstest.toml -p /mnt/base -s /tmp/second || true

# Shell commands on files, each result checked, and checked again with cold caches.

fail() {
    echo "FAILED: $*"
    exit 1
}

same() { # WHAT FOUND EXPECTED
    [ "$2" = "$3" ] || fail "$1: found '$2', expected '$3'"
}

refused() { # COMMAND...: it must fail
    ! "$@" 2>/dev/null || fail "not refused: $*"
}

reattach() { # forgets every cached page, name and attribute
    umount /mnt
    attach
}

cd /mnt
same "an empty root" "$(ls -A)" ""

# Contents: short and long, overwritten, appended to, truncated, and with a hole.
echo one >a
echo two >>a
same "appended" "$(cat a)" "one
two"
dd if=/dev/urandom of=/tmp/long bs=64k count=80 2>/dev/null
cp /tmp/long long
cmp /tmp/long long
for file in long /tmp/long; do
    dd if=/dev/zero of=$file bs=1000 seek=777 count=3 conv=notrunc 2>/dev/null
done
truncate -s 5000001 long /tmp/long
dd if=/tmp/long of=hole bs=4096 seek=100 count=1 2>/dev/null
same "size with a hole" "$(stat -c %s hole)" 413696
sync

# Names: moved, replaced, linked, symbolic, long, with every kind of byte.
mkdir -p d/e/f
mv a d/e/f/b
[ ! -e a ] || fail "the old name is there"
echo old >d/old
mv d/e/f/b d/old
same "replaced" "$(head -n 1 d/old)" one
ln d/old linked
same "links" "$(stat -c %h d/old)" 2
same "one inode" "$(stat -c %i d/old)" "$(stat -c %i linked)"
ln -s d/old symbolic
same "through a link" "$(tail -n 1 symbolic)" two
long_name=$(printf '%0255d' 7)
echo n >"$long_name"
refused touch "${long_name}8"
odd=$(printf 'a\001b\377 *\nc')
echo odd >"$odd"
refused mkdir d
refused rmdir d
refused mv d d/e/below
mkfifo pipe
mknod node c 1 3
same "a device" "$(stat -c '%F %t:%T' node)" "character special file 1:3"

# Attributes.
chmod 4750 linked
chown 1001:65534 linked
same "mode and owner" "$(stat -c '%a %u %g' d/old)" "750 1001 65534"
chmod 6755 linked
same "set-id" "$(stat -c %a linked)" 6755
touch -d '2001-02-03 04:05:06' linked
same "time" "$(stat -c %Y linked)" "$(date -d '2001-02-03 04:05:06' +%s)"

# An open file without a name stays usable.
exec 3<>hidden
echo still >&3
rm hidden
same "without a name" "$(cat /proc/self/fd/3)" still
exec 3>&-
same "nothing is left of it" "$(ls -A | grep -c '^\.nfs')" 0

# A directory that takes many READDIRs.
mkdir many
i=0
while [ $i -lt 1500 ]; do
    : >"many/a name that is not very short $i"
    i=$((i + 1))
done
same "entries" "$(ls many | wc -l)" 1500

# The server checks permissions.
mkdir -m 700 private
echo secret >private/file
su nobody -c 'cat /mnt/private/file' 2>/dev/null && fail "a user reads a private file"
su nobody -c 'touch /mnt/mine' 2>/dev/null && fail "a user writes to the root"
mkdir -m 1777 shared
su nobody -c 'echo mine >/mnt/shared/mine'
same "the owner" "$(stat -c %u shared/mine)" 65534
su tests -c 'rm -f /mnt/shared/mine' 2>/dev/null && fail "another user removes from a sticky directory"

# Everything again with cold caches.
cd /
reattach
cd /mnt
cmp /tmp/long long
same "size with a hole, again" "$(stat -c %s hole)" 413696
dd if=/tmp/long of=/tmp/block bs=4096 count=1 2>/dev/null
dd if=hole bs=4096 skip=100 2>/dev/null | cmp - /tmp/block
same "replaced, again" "$(head -n 1 d/old)" one
same "long name" "$(cat "$long_name")" n
same "odd name" "$(cat "$odd")" odd
same "symbolic link" "$(readlink symbolic)" d/old
when=$(date -d '2001-02-03 04:05:06' +%s)
same "mode and owner, again" "$(stat -c '%a %u %g %Y' linked)" "6755 1001 65534 $when"
same "entries, again" "$(ls many | wc -l)" 1500
rm -r many d
[ ! -e d ] || fail "removed and still there"
[ "$(df -P /mnt | tail -n 1 | awk '{print $2}')" -gt 100000 ] || fail "df"

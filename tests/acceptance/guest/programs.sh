# Programs that demand much of a file system. Arguments: operations of fsx and transactions of SQLite.

fsx_operations=$1
transactions=$2
cd /mnt

for seed in 1 2; do
    fsx -f /fsx.toml -S $seed -N "$fsx_operations" -P /tmp "/mnt/fsx-$seed"
done

# A database in each journal mode that needs no shared memory.
for mode in DELETE TRUNCATE PERSIST; do
    {
        echo "PRAGMA journal_mode=$mode; CREATE TABLE entry (id INTEGER PRIMARY KEY, data);"
        i=0
        while [ $i -lt "$transactions" ]; do
            echo "INSERT INTO entry VALUES ($i, randomblob(abs(random()) % 3000));"
            i=$((i + 1))
        done
    } | sqlite3 $mode.db >/dev/null
done

# A repository: commits, a branch, a merge, packs, a clone.
export GIT_CONFIG_NOSYSTEM=1 GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b
export GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
ln -s git /bin/git-upload-pack
git init -q -b main --template= tree
cd tree
for commit in 1 2 3 4 5; do
    mkdir -p "d$commit"
    for file in 1 2 3 4 5 6 7 8; do
        echo "$commit $file" >"d$commit/$file"
    done
    git add .
    git commit -q -m "$commit"
done
git checkout -q -b side HEAD~2
echo side >side
git add side
git commit -q -m side
git checkout -q main
git merge -q -m merge side
git gc -q
git clone -q --template= /mnt/tree /mnt/clone

# Everything again with cold caches.
cd /
umount /mnt
attach
for mode in DELETE TRUNCATE PERSIST; do
    found=$(sqlite3 /mnt/$mode.db 'PRAGMA integrity_check; SELECT count(*) FROM entry;' | tr '\n' ' ')
    [ "$found" = "ok $transactions " ] || { echo "FAILED: $mode: $found"; exit 1; }
done
for repository in tree clone; do
    cd /mnt/$repository
    git fsck --strict
    [ -z "$(git status --porcelain)" ] || { echo "FAILED: $repository has changed"; exit 1; }
    [ "$(git ls-files | wc -l)" = 41 ] || { echo "FAILED: $repository has lost files"; exit 1; }
done

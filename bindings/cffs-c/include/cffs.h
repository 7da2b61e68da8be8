/*
 * Files in a C-FFS image, without mounting it, or in a mounted volume through its server (cffs_attach).
 *
 * Link with -lcffs (pkg-config --cflags --libs cffs). Functions return 0 unless their comment says otherwise. A
 * function that fails returns a negative errno, and cffs_error returns the error message. Paths are strings with
 * / between names, relative to the volume's root. Symbolic links are followed within the volume, also at the end
 * of a path unless the function says otherwise. In an image, permissions are not checked: a program that can
 * open it can do anything in it. Changes stay in memory until cffs_fsync, cffs_sync or, for an image, cffs_close
 * makes them durable; if one of these fails, they may be lost. Several threads may call all functions at the
 * same time, with two exceptions: only one thread at a time may read a directory, and a handle in use must not
 * be closed.
 */

#ifndef CFFS_H
#define CFFS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

// Creates the file if it does not exist.
#define CFFS_CREATE 1

// With CFFS_CREATE: fails with EEXIST if it exists.
#define CFFS_EXCLUSIVE 2

// Truncates the file to no bytes.
#define CFFS_TRUNCATE 4

// A directory that is being read. Its entries are those that it had when it was opened.
typedef struct cffs_dir cffs_dir;

// A regular file that is open for reading and writing. It continues to exist while it is open, even if its
// last name is removed.
typedef struct cffs_file cffs_file;

// An open volume. Meanwhile another program can open it only for reading, and only if this one opened it for
// reading. An attached volume is open at its server.
typedef struct cffs_volume cffs_volume;

// Options for opening a volume. Zero in every field except `size` selects the defaults. A later version of
// the library may add fields at the end.
typedef struct {
    // sizeof(cffs_options) in the caller. Fields beyond it count as zero.
    size_t size;
    // 1 to open the volume read-only; other programs may then read it at the same time.
    uint32_t read_only;
    // 1 to leave the access times of files unchanged when they are read.
    uint32_t no_atime;
    // Size of the read cache in bytes; 0 for 256 MiB.
    uint64_t cache_bytes;
    // Maximum memory for unwritten changes, in bytes, beyond which they are written immediately; 0 for 64
    // MiB.
    uint64_t dirty_bytes;
} cffs_options;

// Sizes of a volume, in bytes and inodes.
typedef struct {
    // Total space for files, in bytes.
    uint64_t bytes;
    // Free space, in bytes.
    uint64_t free_bytes;
    // The part of the free space that files can use, in bytes.
    uint64_t available_bytes;
    // Inodes in use.
    uint64_t inodes;
} cffs_statvfs_t;

// A time.
typedef struct {
    // Seconds since 1970-01-01 00:00 UTC.
    int64_t seconds;
    // Nanoseconds past the second, below 1,000,000,000.
    uint32_t nanoseconds;
} cffs_time;

// The attributes of a file.
typedef struct {
    // The inode number.
    uint64_t ino;
    // Distinguishes this file from earlier files with the same inode number.
    uint32_t generation;
    // Type and permissions, as in st_mode.
    uint32_t mode;
    // Number of names.
    uint32_t nlink;
    // Owner.
    uint32_t uid;
    // Owning group.
    uint32_t gid;
    // Size of the contents in bytes.
    uint64_t size;
    // Space that the file occupies on the volume, in bytes.
    uint64_t allocated_bytes;
    // The device number: major << 32 | minor.
    uint64_t device;
    // Last access.
    cffs_time atime;
    // Last change of the contents.
    cffs_time mtime;
    // Last change of the inode.
    cffs_time ctime;
    // Creation.
    cffs_time btime;
} cffs_stat_t;

// An entry of a directory.
typedef struct {
    // The name; valid until the next call for this directory.
    const char *name;
    // The attributes, which are read together with the name.
    cffs_stat_t stat;
} cffs_dirent;

// Receives a file from cffs_read_many: its position in the list of paths, and its contents, which are valid
// until this function returns. If the file could not be read, `error` is a negative errno, the contents are
// absent, and cffs_error gives the reason. `data` is the caller's. Several threads may call this function at
// the same time.
typedef void (*cffs_visit)(void *data, size_t position, int error, const uint8_t *contents, size_t count);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The error message of the last failed call in this thread; valid until the next call fails.
const char *cffs_error(void);

// The version of the library.
const char *cffs_version(void);

// Creates an image of `size_bytes` bytes, which must not exist yet. `label` may be NULL. `cffs mkfs` has
// more options.
int cffs_mkfs(const char *image, uint64_t size_bytes, const char *label);

// Opens an image or a block device and sets *volume. `options` may be NULL. A volume that was not closed
// cleanly is recovered first.
int cffs_open(const char *image, const cffs_options *options, cffs_volume **volume);

// Attaches to a directory of a mounted volume, and sets *volume: the directory is the root of all paths,
// and the volume's server carries out the calls without the kernel. The program has the rights of its user,
// as through the mount, which shows its changes at once. Threads wait for each other. Access times stay.
// `options` may be NULL; of its fields, read_only alone counts: with it, the mount may be read-only.
//
// Fails with EOPNOTSUPP if the directory is in no mounted volume, or the server refuses the program; then
// cffs_error gives the reason. After the volume's server was restarted, and in a child after fork, calls
// fail with ENOTCONN. cffs_close ends the session and makes nothing durable; before that, the volume cannot
// be unmounted.
int cffs_attach(const char *directory, const cffs_options *options, cffs_volume **volume);

// Makes all changes durable.
int cffs_sync(const cffs_volume *volume);

// Gets the sizes of a volume.
int cffs_statvfs(const cffs_volume *volume, cffs_statvfs_t *sizes);

// Makes all changes durable and closes the volume; NULL is allowed. The handle is invalid afterwards even if
// this fails; then changes since the last sync may be lost. Calls on files and directories that are still
// open fail from then on; they must still be closed.
int cffs_close(cffs_volume *volume);

// Creates a directory, with `mode` as for mkdir(2): on a mounted volume the umask applies, and the
// set-group-ID bit is that of the directory above.
int cffs_mkdir(const cffs_volume *volume, const char *path, uint32_t mode);

// Creates a directory and its missing ancestors, with mode 0755.
int cffs_mkdir_all(const cffs_volume *volume, const char *path);

// Removes an empty directory.
int cffs_rmdir(const cffs_volume *volume, const char *path);

// Removes a name of a file that is not a directory.
int cffs_unlink(const cffs_volume *volume, const char *path);

// Renames a file, replacing an existing file with the new name.
int cffs_rename(const cffs_volume *volume, const char *path, const char *new_path);

// Gives a file another name.
int cffs_link(const cffs_volume *volume, const char *path, const char *new_path);

// Creates a symbolic link.
int cffs_symlink(const cffs_volume *volume, const char *target, const char *path);

// Copies the target of a symbolic link to `target`, followed by a zero byte, and returns its length without
// that byte. Fails with ERANGE if it does not fit into `count` bytes.
int64_t cffs_readlink(const cffs_volume *volume, const char *path, char *target, size_t count);

// Gets the attributes of a file; follows a symbolic link.
int cffs_stat(const cffs_volume *volume, const char *path, cffs_stat_t *stat);

// Gets the attributes of a file; of a symbolic link, those of the link itself.
int cffs_lstat(const cffs_volume *volume, const char *path, cffs_stat_t *stat);

// Sets the lower 12 bits of a mode.
int cffs_chmod(const cffs_volume *volume, const char *path, uint32_t mode);

// Sets owner and group; (uid_t)-1 and (gid_t)-1 leave the current one.
int cffs_chown(const cffs_volume *volume, const char *path, uint32_t uid, uint32_t gid);

// Sets the times of the last access and of the last change of the contents; NULL leaves the current one.
int cffs_utimens(const cffs_volume *volume, const char *path, const cffs_time *atime, const cffs_time *mtime);

// Copies an extended attribute to `value`, a buffer of `count` bytes, and returns its length. With `count` 0
// it only returns the length. Fails with ERANGE if the buffer is too small.
int64_t cffs_getxattr(const cffs_volume *volume,
                      const char *path,
                      const char *name,
                      void *value,
                      size_t count);

// Copies the names of a file's extended attributes to `names`, each followed by a zero byte. `count` and the
// result are as for cffs_getxattr.
int64_t cffs_listxattr(const cffs_volume *volume, const char *path, void *names, size_t count);

// Sets an extended attribute.
int cffs_setxattr(const cffs_volume *volume,
                  const char *path,
                  const char *name,
                  const void *value,
                  size_t count);

// Removes an extended attribute.
int cffs_removexattr(const cffs_volume *volume, const char *path, const char *name);

// Opens a directory and sets *directory. The entries are in the order of their creation, without . and ..
int cffs_opendir(const cffs_volume *volume, const char *path, cffs_dir **directory);

// Sets *entry to the next entry and returns 1; returns 0 at the end.
int cffs_readdir(cffs_dir *directory, cffs_dirent *entry);

// Closes a directory; NULL is allowed.
void cffs_closedir(cffs_dir *directory);

// Opens a file and sets *file. `flags` is 0 or a combination of CFFS_CREATE, CFFS_EXCLUSIVE and
// CFFS_TRUNCATE; `mode` is the mode of a file that is created.
int cffs_file_open(const cffs_volume *volume,
                   const char *path,
                   uint32_t flags,
                   uint32_t mode,
                   cffs_file **file);

// Reads up to `count` bytes from `offset` on, and returns their number, which is less than `count` only at
// the end of the file.
int64_t cffs_pread(const cffs_file *file, void *buffer, size_t count, uint64_t offset);

// Writes `count` bytes at `offset` and returns `count`; the file grows as needed. After an error, part of
// the bytes may have been written.
int64_t cffs_pwrite(const cffs_file *file, const void *buffer, size_t count, uint64_t offset);

// Writes `count` bytes at the end of the file and returns `count`. Several threads may append at the same
// time: the bytes of each call stay together (with cffs_attach, each MiB of them), and do not overwrite
// those of another. After an error, part of the bytes may have been written.
int64_t cffs_append(const cffs_file *file, const void *buffer, size_t count);

// Truncates an open file, or extends it by a hole.
int cffs_ftruncate(const cffs_file *file, uint64_t size_bytes);

// Makes a file's contents and attributes durable.
int cffs_fsync(const cffs_file *file);

// Gets the attributes of an open file.
int cffs_fstat(const cffs_file *file, cffs_stat_t *stat);

// Closes a file; NULL is allowed. Closing makes nothing durable.
void cffs_file_close(cffs_file *file);

// Reads a whole file and sets *contents, which the caller must free with cffs_free, and *count.
int cffs_read_file(const cffs_volume *volume, const char *path, uint8_t **contents, size_t *count);

// Frees the contents that cffs_read_file has set, given with their count; NULL is allowed.
void cffs_free(uint8_t *contents, size_t count);

// Creates a file with these contents, or replaces the contents of an existing file.
int cffs_write_file(const cffs_volume *volume, const char *path, const void *contents, size_t count);

// Truncates the file at a path, or extends it by a hole.
int cffs_truncate(const cffs_volume *volume, const char *path, uint64_t size_bytes);

// Reads whole files in device order. For many files in another order, this is many times as fast as reading
// them one by one. Calls `visit` once per file, in any order, from `threads` threads (0 means one). For a
// file that cannot be read, `visit` gets the error.
int cffs_read_many(const cffs_volume *volume,
                   const char *const *paths,
                   size_t count,
                   size_t threads,
                   cffs_visit visit,
                   void *data);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* CFFS_H */

// The defaults: cffs_options options = CFFS_OPTIONS_INIT; or, with other fields, .size = sizeof(cffs_options).
#define CFFS_OPTIONS_INIT { .size = sizeof(cffs_options) }

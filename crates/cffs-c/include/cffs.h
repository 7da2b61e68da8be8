/*
 * Files in a C-FFS image, without mounting it.
 *
 * Link with -lcffs (pkg-config --cflags --libs cffs). Functions return 0, or what they document; one that fails
 * returns a negative errno, and cffs_error says why in words. Paths are strings with / between names and begin at
 * the volume's root; symbolic links in them are followed within the volume, at the end of a path too unless the
 * function says otherwise. Permissions are not checked: a program that may open an image may do anything
 * in it. What a call has changed is in memory: cffs_fsync, cffs_sync or cffs_close make it durable, and where
 * one of these fails it may be lost. All functions may be called by several threads at once, except that a
 * directory is read by one at a time, and that nothing in use may be closed.
 */

#ifndef CFFS_H
#define CFFS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

// Makes the file if it does not exist.
#define CFFS_CREATE 1

// With CFFS_CREATE: fails with EEXIST if it exists.
#define CFFS_EXCLUSIVE 2

// Empties the file.
#define CFFS_TRUNCATE 4

// A directory that is being read: its entries as of when it was opened.
typedef struct cffs_dir cffs_dir;

// A regular file that is open, to read and to write. It goes on to exist if its last name is removed.
typedef struct cffs_file cffs_file;

// A volume that is open. Another program cannot open it meanwhile, but to read if this one only reads too.
typedef struct cffs_volume cffs_volume;

// How a volume is opened; all zeros but for `size` for the defaults. A later version of the library may add
// fields at the end.
typedef struct {
    // sizeof(cffs_options) of the caller. The fields beyond it are taken as zero.
    size_t size;
    // 1: changes are refused, and other programs may read at the same time.
    uint32_t read_only;
    // 1: reading a file does not set its time of access.
    uint32_t no_atime;
    // Size of the read cache in bytes; 0 for 256 MiB.
    uint64_t cache_bytes;
    // Bytes of memory for changes, beyond which they are written at once; 0 for 64 MiB.
    uint64_t dirty_bytes;
} cffs_options;

// Sizes of a volume, in bytes and inodes.
typedef struct {
    // Bytes that files can have in all.
    uint64_t bytes;
    // Bytes that no file has.
    uint64_t free_bytes;
    // Those of them that files can have.
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
    // The number of the inode.
    uint64_t ino;
    // Distinguishes this file from earlier ones of the same number.
    uint32_t generation;
    // Type and permissions, as st_mode has them.
    uint32_t mode;
    // Count of names.
    uint32_t nlink;
    // Owner.
    uint32_t uid;
    // Owning group.
    uint32_t gid;
    // Bytes of the contents.
    uint64_t size;
    // Bytes of the volume that the file occupies.
    uint64_t allocated_bytes;
    // The number of a device, major << 32 | minor.
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
    // The attributes: they come with the name, and cost nothing more.
    cffs_stat_t stat;
} cffs_dirent;

// Gets a file that cffs_read_many has read: its position in the list of paths, and its contents, which are
// valid until this returns; or a negative errno in `error` and no contents, and cffs_error says why. `data`
// is what the caller gave. Several threads call this at once.
typedef void (*cffs_visit)(void *data, size_t position, int error, const uint8_t *contents, size_t count);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Why the last function of this thread failed, in words; valid until the next one fails.
const char *cffs_error(void);

// The version of the library.
const char *cffs_version(void);

// Makes an image of a size in bytes, which must not exist yet. `label` may be NULL. `cffs mkfs` knows more
// options.
int cffs_mkfs(const char *image, uint64_t size_bytes, const char *label);

// Opens an image or a block device and sets *volume. `options` may be NULL. A volume that was not left clean
// is recovered first.
int cffs_open(const char *image, const cffs_options *options, cffs_volume **volume);

// Makes everything durable.
int cffs_sync(const cffs_volume *volume);

// The sizes of a volume.
int cffs_statvfs(const cffs_volume *volume, cffs_statvfs_t *sizes);

// Makes everything durable and closes the volume; NULL is allowed. The handle is gone in any case: if this
// fails, changes since the last sync may be lost. Files and directories that are still open fail from
// then on, and are closed as always.
int cffs_close(cffs_volume *volume);

// Makes a directory.
int cffs_mkdir(const cffs_volume *volume, const char *path, uint32_t mode);

// Makes a directory and those above it, as far as they are missing, with mode 0755.
int cffs_mkdir_all(const cffs_volume *volume, const char *path);

// Removes an empty directory.
int cffs_rmdir(const cffs_volume *volume, const char *path);

// Removes a name that is not a directory's.
int cffs_unlink(const cffs_volume *volume, const char *path);

// Renames, and replaces what had the new name.
int cffs_rename(const cffs_volume *volume, const char *path, const char *new_path);

// Gives a file another name.
int cffs_link(const cffs_volume *volume, const char *path, const char *new_path);

// Makes a symbolic link.
int cffs_symlink(const cffs_volume *volume, const char *target, const char *path);

// Copies the target of a symbolic link to `target`, with a zero byte at its end, and returns its length
// without that; ERANGE if `count` bytes are not enough room.
int64_t cffs_readlink(const cffs_volume *volume, const char *path, char *target, size_t count);

// The attributes of what a path leads to.
int cffs_stat(const cffs_volume *volume, const char *path, cffs_stat_t *stat);

// The attributes of what a path names, also if that is a symbolic link.
int cffs_lstat(const cffs_volume *volume, const char *path, cffs_stat_t *stat);

// Sets the lower 12 bits of a mode.
int cffs_chmod(const cffs_volume *volume, const char *path, uint32_t mode);

// Sets owner and group; (uid_t)-1 and (gid_t)-1 leave one as it is.
int cffs_chown(const cffs_volume *volume, const char *path, uint32_t uid, uint32_t gid);

// Sets the times of access and of the last change of the contents; NULL leaves one as it is.
int cffs_utimens(const cffs_volume *volume, const char *path, const cffs_time *atime, const cffs_time *mtime);

// Copies an extended attribute to `value`, which has room for `count` bytes, and returns its length. With
// `count` 0 it returns the length alone; ERANGE if there is not enough room.
int64_t cffs_getxattr(const cffs_volume *volume,
                      const char *path,
                      const char *name,
                      void *value,
                      size_t count);

// Copies the names of a file's extended attributes to `names`, each with a zero byte at its end, as
// cffs_getxattr does a value.
int64_t cffs_listxattr(const cffs_volume *volume, const char *path, void *names, size_t count);

// Sets an extended attribute.
int cffs_setxattr(const cffs_volume *volume,
                  const char *path,
                  const char *name,
                  const void *value,
                  size_t count);

// Removes an extended attribute.
int cffs_removexattr(const cffs_volume *volume, const char *path, const char *name);

// Opens a directory and sets *directory. Entries come in the order in which they were made, without . and ..
int cffs_opendir(const cffs_volume *volume, const char *path, cffs_dir **directory);

// Sets *entry to the next entry and returns 1; returns 0 at the end.
int cffs_readdir(cffs_dir *directory, cffs_dirent *entry);

// Closes a directory; NULL is allowed.
void cffs_closedir(cffs_dir *directory);

// Opens a file and sets *file. `flags` are CFFS_CREATE and so on, or 0; `mode` is that of a file that is
// made.
int cffs_file_open(const cffs_volume *volume,
                   const char *path,
                   uint32_t flags,
                   uint32_t mode,
                   cffs_file **file);

// Reads up to `count` bytes from `offset` on, and returns how many: fewer only at the end of the file.
int64_t cffs_pread(const cffs_file *file, void *buffer, size_t count, uint64_t offset);

// Writes `count` bytes at `offset`, all of them or fewer with an error; the file grows as needed. Returns
// `count`.
int64_t cffs_pwrite(const cffs_file *file, const void *buffer, size_t count, uint64_t offset);

// Writes `count` bytes at the end of the file, all of them or fewer with an error. What several threads
// append is never overwritten, and stays in one piece each. Returns `count`.
int64_t cffs_append(const cffs_file *file, const void *buffer, size_t count);

// Cuts a file off, or makes it longer by a hole.
int cffs_ftruncate(const cffs_file *file, uint64_t size_bytes);

// Makes a file's contents and attributes durable.
int cffs_fsync(const cffs_file *file);

// The attributes of a file that is open.
int cffs_fstat(const cffs_file *file, cffs_stat_t *stat);

// Closes a file; NULL is allowed. Nothing is made durable by this.
void cffs_file_close(cffs_file *file);

// Reads a whole file and sets *contents, which cffs_free gives back, and *count.
int cffs_read_file(const cffs_volume *volume, const char *path, uint8_t **contents, size_t *count);

// Gives the contents back that cffs_read_file has set, with their count; NULL is allowed.
void cffs_free(uint8_t *contents, size_t count);

// Makes a file with these contents, or gives them to the one that is there.
int cffs_write_file(const cffs_volume *volume, const char *path, const void *contents, size_t count);

// Cuts a file off, or makes it longer by a hole, by its path.
int cffs_truncate(const cffs_volume *volume, const char *path, uint64_t size_bytes);

// Reads whole files in the order in which they lie on the device, which for many files in another order is
// many times as fast as one by one. `visit` gets them one by one, in no certain order, from as many threads
// as asked for; 0 for one. A file that cannot be read is given to `visit` with its error.
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

/*
 * Directories and files in a chosen group, on ext4 and XFS.
 *
 * After Nugent and Arpaci-Dusseau, "Controlling your PLACE in the File System" (USENIX 2003). Files and
 * directories are made in a tree of directories, one in each group, which place_init or `place init` makes.
 * Group 0 is the outermost group of a disk. A call that fails leaves nothing behind.
 *
 * Link with -lplace. Functions that fail return NULL or -1, and place_error gives the reason.
 */
#ifndef PLACE_H
#define PLACE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A tree, locked for this process as long as it is open. May be used by one thread at a time. */
typedef struct place_tree place_tree;

/* Makes a tree in a directory, or its missing parts, and opens it. */
place_tree *place_init(const char *directory);

/* Opens the tree that serves a path, which need not exist: that of the nearest directory above it that has a
 * tree of this user. Waits while another process has it open. */
place_tree *place_open(const char *path);

/* Closes it; NULL is allowed. */
void place_close(place_tree *tree);

/* The number of groups. */
int64_t place_groups(const place_tree *tree);

/* The group of a file or directory. */
int64_t place_group_of(const place_tree *tree, const char *path);

/* Stores the free bytes of each group in free_bytes, which has room for `count`. Returns the number of
 * groups. */
int64_t place_free_bytes(const place_tree *tree, uint64_t *free_bytes, size_t count);

/* The size of the largest file that can be placed in a group now. Allocates it for a moment. */
int64_t place_largest(const place_tree *tree, uint64_t group);

/* Added to the number of a group: if that group is full, the nearest one that is not. place_group_of returns
 * the group that was used. */
#define PLACE_NEARBY ((uint64_t)1 << 63)

/* Makes a directory in a group. */
int place_create_dir(const place_tree *tree, const char *path, mode_t mode, uint64_t group);

/* Makes an empty file in a group. On ext4, its later contents are in the group only if they have room. */
int place_create_file(const place_tree *tree, const char *path, mode_t mode, uint64_t group);

/* The same, and allocates space in the group for this many bytes that will be written later. */
int place_create_file_with_room(const place_tree *tree, const char *path, mode_t mode, uint64_t group,
                                uint64_t room);

/* Copies a file or a tree into a group, with its contents. */
int place_copy_file(const place_tree *tree, const char *from, const char *to, uint64_t group);

/* The same, and removes the original. Fails and removes nothing if another program changes it meanwhile. A write
 * immediately before the removal may be lost. */
int place_move(const place_tree *tree, const char *from, const char *to, uint64_t group);

/* Why the last call of this thread failed; valid until the next call. */
const char *place_error(void);

#ifdef __cplusplus
}
#endif

#endif

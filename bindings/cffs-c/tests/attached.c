/* Uses a directory of a mounted volume through its server. */
#include <cffs.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(is_so)                                                                                         \
    do {                                                                                                     \
        if (!(is_so)) {                                                                                      \
            fprintf(stderr, "%s:%d: not so: %s (%s)\n", __FILE__, __LINE__, #is_so, cffs_error());            \
            exit(EXIT_FAILURE);                                                                              \
        }                                                                                                    \
    } while (0)

static void add(void *data, size_t position, int error, const uint8_t *contents, size_t count)
{
    (void)position, (void)contents;
    *(long *)data += error == 0 ? (long)count : error;
}

int main(int argc, char **argv)
{
    cffs_volume *volume;
    cffs_statvfs_t sizes;
    char value[8];
    CHECK(argc == 2);
    CHECK(cffs_attach("/proc", NULL, &volume) == -EOPNOTSUPP && strstr(cffs_error(), "not in a mounted") != NULL);
    CHECK(cffs_attach("/missing", NULL, &volume) == -ENOENT);
    CHECK(cffs_attach(argv[1], NULL, NULL) == -EINVAL);
    cffs_options options = CFFS_OPTIONS_INIT;
    options.read_only = 1;
    CHECK(cffs_attach(argv[1], &options, &volume) == 0);
    CHECK(cffs_mkdir(volume, "/d", 0755) == -EROFS);
    CHECK(cffs_close(volume) == 0);
    CHECK(cffs_attach(argv[1], NULL, &volume) == 0);

    CHECK(cffs_mkdir_all(volume, "/d/e") == 0);
    CHECK(cffs_write_file(volume, "/d/one", "contents", 8) == 0);
    CHECK(cffs_setxattr(volume, "/d/one", "user.a", "value", 5) == 0);
    CHECK(cffs_getxattr(volume, "/d/one", "user.a", value, sizeof value) == 5);
    CHECK(cffs_rename(volume, "/d/one", "/d/e/two") == 0);
    CHECK(cffs_unlink(volume, "/d/one") == -ENOENT);

    const char *paths[] = {"/d/e/two", "/missing", "/by kernel"};
    long sum = 0;
    CHECK(cffs_read_many(volume, paths, 3, 2, add, &sum) == 0 && sum == 8 - ENOENT + 6);

    cffs_dir *directory;
    cffs_dirent entry;
    CHECK(cffs_opendir(volume, "/d/e", &directory) == 0);
    CHECK(cffs_readdir(directory, &entry) == 1 && strcmp(entry.name, "two") == 0 && entry.stat.size == 8);
    CHECK(cffs_readdir(directory, &entry) == 0);
    cffs_closedir(directory);

    cffs_file *file;
    CHECK(cffs_file_open(volume, "/d/file", CFFS_CREATE, 0600, &file) == 0);
    CHECK(cffs_append(file, "123", 3) == 3 && cffs_pread(file, value, sizeof value, 1) == 2);
    CHECK(cffs_fsync(file) == 0);
    cffs_file_close(file);
    CHECK(cffs_statvfs(volume, &sizes) == 0 && sizes.free_bytes > 0);
    CHECK(cffs_sync(volume) == 0);

    pid_t child = fork();
    if (child == 0)
        _exit(cffs_rmdir(volume, "/d/e") == -ENOTCONN && cffs_close(volume) == 0 ? 0 : 1);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(cffs_rmdir(volume, "/d/e") == -ENOTEMPTY);
    CHECK(cffs_close(volume) == 0);
    return EXIT_SUCCESS;
}

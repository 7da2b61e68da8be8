/* Calls every function of cffs.h once correctly and, if it can fail, once incorrectly. */
#include <cffs.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(is_so)                                                                                         \
    do {                                                                                                     \
        if (!(is_so)) {                                                                                      \
            fprintf(stderr, "%s:%d: not so: %s (%s)\n", __FILE__, __LINE__, #is_so, cffs_error());            \
            exit(EXIT_FAILURE);                                                                              \
        }                                                                                                    \
    } while (0)

/* A call fails with this number and message; cffs_error returns the message until the next failure. */
#define REFUSED(call, number, words)                                                                         \
    do {                                                                                                     \
        CHECK((call) == -(number));                                                                          \
        if (strcmp(cffs_error(), words) != 0) {                                                              \
            fprintf(stderr, "%s:%d: '%s' instead of '%s'\n", __FILE__, __LINE__, cffs_error(), words);       \
            exit(EXIT_FAILURE);                                                                              \
        }                                                                                                    \
    } while (0)

static void names(cffs_volume *volume)
{
    char target[16];
    cffs_stat_t stat;
    CHECK(cffs_mkdir(volume, "/d", 0750) == 0);
    REFUSED(cffs_mkdir(volume, "/d", 0750), EEXIST, "file exists");
    CHECK(cffs_stat(volume, "/d", &stat) == 0 && stat.mode == 0040750);
    CHECK(cffs_mkdir_all(volume, "/d/e/f") == 0);
    REFUSED(cffs_rmdir(volume, "/d/e"), ENOTEMPTY, "directory not empty");
    CHECK(cffs_rmdir(volume, "/d/e/f") == 0);
    CHECK(cffs_write_file(volume, "/d/file", "contents", 8) == 0);
    CHECK(cffs_link(volume, "/d/file", "/d/second") == 0);
    CHECK(cffs_stat(volume, "/d/second", &stat) == 0 && stat.nlink == 2 && stat.size == 8);
    CHECK(cffs_symlink(volume, "file", "/d/link") == 0);
    CHECK(cffs_lstat(volume, "/d/link", &stat) == 0 && stat.mode == 0120777);
    CHECK(cffs_stat(volume, "/d/link", &stat) == 0 && stat.mode == 0100644);
    CHECK(cffs_readlink(volume, "/d/link", target, sizeof target) == 4 && strcmp(target, "file") == 0);
    REFUSED(cffs_readlink(volume, "/d/link", target, 4), ERANGE, "result or argument does not fit");
    REFUSED(cffs_readlink(volume, "/d/file", target, sizeof target), EINVAL,
            "invalid argument: not a symbolic link");
    CHECK(cffs_rename(volume, "/d/second", "/d/e/third") == 0);
    REFUSED(cffs_stat(volume, "/d/second", &stat), ENOENT, "no such file or directory");
    REFUSED(cffs_unlink(volume, "/d/e"), EISDIR, "is a directory");
    CHECK(cffs_unlink(volume, "/d/e/third") == 0);
}

/* Errors that no other part of this test causes. */
static void refusals(cffs_volume *volume)
{
    char name[300] = "/";
    memset(name + 1, 'x', 256);
    REFUSED(cffs_mkdir(volume, name, 0755), ENAMETOOLONG, "file name too long");
    REFUSED(cffs_link(volume, "/d", "/second"), EPERM, "operation not permitted");
    REFUSED(cffs_truncate(volume, "/d/file", (uint64_t)1 << 62), EFBIG, "file too large");
    REFUSED(cffs_rename(volume, "/d", "/d/e/d"), EINVAL,
            "invalid argument: a directory cannot move below itself");
    CHECK(cffs_symlink(volume, "loop", "/loop") == 0);
    REFUSED(cffs_read_file(volume, "/loop", NULL, NULL), EINVAL,
            "invalid argument: the pointer for the result is NULL");
    cffs_stat_t stat;
    REFUSED(cffs_stat(volume, "/loop", &stat), ELOOP, "too many symbolic links in the path");
    REFUSED(cffs_stat(NULL, "/", &stat), EINVAL, "invalid argument: a handle is NULL");
    REFUSED(cffs_stat(volume, NULL, &stat), EINVAL, "invalid argument: a string is NULL");
    REFUSED(cffs_write_file(volume, "/d/file", NULL, 1), EINVAL,
            "invalid argument: the buffer is NULL or too large");
    CHECK(cffs_unlink(volume, "/loop") == 0);
}

static void full(const char *image)
{
    cffs_volume *volume;
    size_t count = 16 << 20;
    void *large = calloc(1, count);
    CHECK(cffs_mkfs(image, count, NULL) == 0 && cffs_open(image, NULL, &volume) == 0);
    REFUSED(cffs_write_file(volume, "/large", large, count), ENOSPC, "no space left on the volume");
    free(large);
    CHECK(cffs_close(volume) == 0 && remove(image) == 0);
}

static void *fail_elsewhere(void *volume)
{
    cffs_stat_t stat;
    REFUSED(cffs_stat(volume, "/d/file/x", &stat), ENOTDIR, "not a directory");
    return NULL;
}

/* Each thread has its own message, which stays until its next failure. */
static void words(cffs_volume *volume)
{
    pthread_t other;
    cffs_stat_t stat;
    REFUSED(cffs_stat(volume, "/missing", &stat), ENOENT, "no such file or directory");
    CHECK(pthread_create(&other, NULL, fail_elsewhere, volume) == 0 && pthread_join(other, NULL) == 0);
    CHECK(cffs_stat(volume, "/d", &stat) == 0);
    CHECK(strcmp(cffs_error(), "no such file or directory") == 0);
}

static void attributes(cffs_volume *volume)
{
    char value[8];
    cffs_stat_t stat;
    cffs_time time = {12345, 678};
    CHECK(cffs_chmod(volume, "/d/file", 0600) == 0);
    CHECK(cffs_chown(volume, "/d/file", 7, (uint32_t)-1) == 0);
    CHECK(cffs_utimens(volume, "/d/file", NULL, &time) == 0);
    CHECK(cffs_stat(volume, "/d/file", &stat) == 0);
    CHECK(stat.mode == 0100600 && stat.uid == 7 && stat.gid != (uint32_t)-1);
    CHECK(stat.mtime.seconds == 12345 && stat.mtime.nanoseconds == 678);
    time.nanoseconds = 1000000000;
    REFUSED(cffs_utimens(volume, "/d/file", NULL, &time), EINVAL,
            "invalid argument: a time has a second's nanoseconds or more");

    CHECK(cffs_setxattr(volume, "/d/file", "user.a", "12345", 5) == 0);
    CHECK(cffs_setxattr(volume, "/d/file", "user.b", NULL, 0) == 0);
    CHECK(cffs_getxattr(volume, "/d/file", "user.a", NULL, 0) == 5);
    REFUSED(cffs_getxattr(volume, "/d/file", "user.a", value, 4), ERANGE, "result or argument does not fit");
    CHECK(cffs_getxattr(volume, "/d/file", "user.a", value, 8) == 5 && memcmp(value, "12345", 5) == 0);
    REFUSED(cffs_getxattr(volume, "/d/file", "user.none", value, 8), ENODATA, "no such attribute");
    CHECK(cffs_listxattr(volume, "/d/file", NULL, 0) == 14);
    CHECK(cffs_removexattr(volume, "/d/file", "user.b") == 0);
    REFUSED(cffs_removexattr(volume, "/d/file", "user.b"), ENODATA, "no such attribute");
}

static void contents(cffs_volume *volume)
{
    cffs_file *file, *missing = NULL;
    cffs_stat_t stat;
    char buffer[16];
    uint8_t *whole;
    size_t count;
    CHECK(cffs_file_open(volume, "/new", 0, 0, &missing) == -ENOENT && missing == NULL);
    CHECK(cffs_file_open(volume, "/new", CFFS_CREATE | CFFS_EXCLUSIVE, 0640, &file) == 0);
    REFUSED(cffs_file_open(volume, "/new", CFFS_CREATE | CFFS_EXCLUSIVE, 0640, &missing), EEXIST,
            "file exists");
    REFUSED(cffs_file_open(volume, "/new", 8, 0640, &missing), EINVAL,
            "invalid argument: flags that cffs_file_open does not know");
    REFUSED(cffs_file_open(volume, "/d", 0, 0, &missing), EISDIR, "is a directory");
    CHECK(cffs_pwrite(file, "0123456789", 10, 100000) == 10);
    CHECK(cffs_pread(file, buffer, sizeof buffer, 100005) == 5 && memcmp(buffer, "56789", 5) == 0);
    CHECK(cffs_pread(file, buffer, sizeof buffer, 200000) == 0);
    CHECK(cffs_fstat(file, &stat) == 0 && stat.size == 100010 && stat.mode == 0100640);
    CHECK(cffs_ftruncate(file, 3) == 0);
    CHECK(cffs_fsync(file) == 0);
    CHECK(cffs_unlink(volume, "/new") == 0);
    CHECK(cffs_pread(file, buffer, sizeof buffer, 0) == 3 && buffer[2] == 0);
    cffs_file_close(file);

    CHECK(cffs_truncate(volume, "/d/file", 3) == 0);
    CHECK(cffs_read_file(volume, "/d/file", &whole, &count) == 0 && count == 3);
    CHECK(memcmp(whole, "con", 3) == 0);
    cffs_free(whole, count);
    CHECK(cffs_write_file(volume, "/empty", NULL, 0) == 0);
    CHECK(cffs_read_file(volume, "/empty", &whole, &count) == 0 && count == 0);
    cffs_free(whole, count);
    CHECK(cffs_file_open(volume, "/d/file", CFFS_TRUNCATE, 0, &file) == 0);
    CHECK(cffs_fstat(file, &stat) == 0 && stat.size == 0);
    cffs_file_close(file);
}

/* Regression: concurrent appends overwrote each other, because they read the size before they wrote. */
enum { APPENDERS = 4, LINES = 300, LINE = 3000 };

static void *append_lines(void *data)
{
    static const char letters[] = "abcdefgh";
    cffs_volume *volume = data;
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static size_t started;
    char line[LINE];
    cffs_file *file;
    pthread_mutex_lock(&lock);
    memset(line, letters[started++ % 8], sizeof line);
    pthread_mutex_unlock(&lock);
    line[LINE - 1] = '\n';
    CHECK(cffs_file_open(volume, "/log", CFFS_CREATE, 0644, &file) == 0);
    for (int i = 0; i < LINES; i++)
        CHECK(cffs_append(file, line, sizeof line) == LINE);
    CHECK(cffs_append(file, NULL, 0) == 0);
    cffs_file_close(file);
    return NULL;
}

static void appending(cffs_volume *volume)
{
    pthread_t threads[APPENDERS];
    uint8_t *log;
    size_t count;
    for (int i = 0; i < APPENDERS; i++)
        CHECK(pthread_create(&threads[i], NULL, append_lines, volume) == 0);
    for (int i = 0; i < APPENDERS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(cffs_read_file(volume, "/log", &log, &count) == 0 && count == APPENDERS * LINES * LINE);
    for (size_t at = 0; at < count; at += LINE)
        CHECK(log[at + LINE - 1] == '\n' && memcmp(log + at, log + at + 1, LINE - 2) == 0);
    cffs_free(log, count);
    CHECK(cffs_unlink(volume, "/log") == 0);
}

struct seen {
    pthread_mutex_t lock;
    size_t bytes, errors;
};

static void see(void *data, size_t position, int error, const uint8_t *contents, size_t count)
{
    struct seen *seen = data;
    CHECK(error == 0 ? count == position && (count == 0 || contents[count - 1] == 'x') : error == -ENOENT);
    CHECK(error == 0 || strcmp(cffs_error(), "no such file or directory") == 0);
    pthread_mutex_lock(&seen->lock);
    seen->bytes += count;
    seen->errors += error != 0;
    pthread_mutex_unlock(&seen->lock);
}

enum { MANY = 300 };

static void many(cffs_volume *volume)
{
    static char text[MANY];
    char *paths[MANY + 1];
    struct seen seen = {PTHREAD_MUTEX_INITIALIZER, 0, 0};
    cffs_dir *directory;
    cffs_dirent entry;
    size_t listed = 0;
    memset(text, 'x', sizeof text);
    CHECK(cffs_mkdir(volume, "/many", 0755) == 0);
    for (size_t i = 0; i <= MANY; i++) {
        paths[i] = malloc(32);
        snprintf(paths[i], 32, "/many/%zu", i);
        if (i < MANY)
            CHECK(cffs_write_file(volume, paths[i], text, i) == 0);
    }
    CHECK(cffs_read_many(volume, (const char *const *)paths, MANY + 1, 4, see, &seen) == 0);
    CHECK(seen.bytes == MANY * (MANY - 1) / 2 && seen.errors == 1);
    REFUSED(cffs_read_many(volume, NULL, 1, 1, see, &seen), EINVAL,
            "invalid argument: the list of paths is NULL");
    REFUSED(cffs_read_many(volume, (const char *const *)paths, 1, 1, NULL, NULL), EINVAL,
            "invalid argument: the function to call is NULL");
    CHECK(cffs_read_many(volume, NULL, 0, 1, see, &seen) == 0);
    CHECK(cffs_opendir(volume, "/many", &directory) == 0);
    while (cffs_readdir(directory, &entry) == 1) {
        CHECK(strcmp(entry.name, paths[listed] + 6) == 0 && entry.stat.size == listed);
        listed++;
    }
    CHECK(listed == MANY && cffs_readdir(directory, &entry) == 0);
    cffs_closedir(directory);
    REFUSED(cffs_opendir(volume, "/empty", &directory), ENOTDIR, "not a directory");
    for (size_t i = 0; i <= MANY; i++)
        free(paths[i]);
}

static void *write_files(void *volume)
{
    char path[32];
    for (int i = 0; i < 200; i++) {
        snprintf(path, sizeof path, "/thread-%lx-%d", (unsigned long)pthread_self(), i);
        CHECK(cffs_write_file(volume, path, path, strlen(path)) == 0);
    }
    return NULL;
}

#define OPTIONS(...) (cffs_options){.size = sizeof(cffs_options), __VA_ARGS__}

// The options said neither their size nor a version, so that no field could be added.
static void versions(const char *image)
{
    struct {
        cffs_options known;
        uint64_t added;
    } later = {.known = {.size = sizeof later}, .added = 0};
    struct {
        size_t size;
        uint32_t read_only;
    } earlier = {.size = sizeof earlier, .read_only = 1};
    cffs_options defaults = CFFS_OPTIONS_INIT;
    cffs_volume *volume = NULL, *second = NULL;
    CHECK(cffs_open(image, &(cffs_options){.read_only = 1}, &volume) == -EINVAL);
    CHECK(strstr(cffs_error(), "CFFS_OPTIONS_INIT") != NULL);
    CHECK(cffs_open(image, &later.known, &volume) == 0 && cffs_close(volume) == 0);
    later.added = 1;
    CHECK(cffs_open(image, &later.known, &volume) == -EINVAL);
    CHECK(cffs_open(image, (const cffs_options *)&earlier, &volume) == 0);
    CHECK(cffs_open(image, (const cffs_options *)&earlier, &second) == 0);
    CHECK(cffs_close(volume) == 0 && cffs_close(second) == 0);
    CHECK(cffs_open(image, &defaults, &volume) == 0 && cffs_close(volume) == 0);
}

int main(int argc, char **argv)
{
    cffs_volume *volume, *second = NULL;
    cffs_file *late;
    cffs_statvfs_t sizes;
    pthread_t threads[4];
    CHECK(argc == 2 && strlen(cffs_version()) > 0);
    CHECK(cffs_mkfs(argv[1], 100, NULL) < 0 && strlen(cffs_error()) > 0);
    remove(argv[1]);
    full(argv[1]);
    CHECK(cffs_mkfs(argv[1], 64 << 20, "label") == 0);
    REFUSED(cffs_mkfs(argv[1], 64 << 20, NULL), EEXIST, "file exists");
    CHECK(cffs_open("/missing/image", NULL, &second) == -ENOENT && second == NULL);
    CHECK(cffs_open(NULL, NULL, &second) == -EINVAL && cffs_open(argv[1], NULL, NULL) == -EINVAL);
    CHECK(cffs_open(argv[1], &OPTIONS(.no_atime = 1, .cache_bytes = 1 << 20), &volume) == 0);
    CHECK(cffs_open(argv[1], NULL, &second) == -EBUSY);

    names(volume);
    attributes(volume);
    contents(volume);
    appending(volume);
    refusals(volume);
    words(volume);
    many(volume);
    for (int i = 0; i < 4; i++)
        CHECK(pthread_create(&threads[i], NULL, write_files, volume) == 0);
    for (int i = 0; i < 4; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(cffs_statvfs(volume, &sizes) == 0 && sizes.free_bytes < sizes.bytes && sizes.inodes > 1100);

    CHECK(cffs_stat(NULL, "/", NULL) == -EINVAL && cffs_stat(volume, NULL, NULL) == -EINVAL);
    CHECK(cffs_sync(volume) == 0);
    CHECK(cffs_file_open(volume, "/d/file", 0, 0, &late) == 0);
    CHECK(cffs_close(volume) == 0 && cffs_close(NULL) == 0);
    CHECK(cffs_open(argv[1], NULL, &volume) == 0 && cffs_close(volume) == 0);
    REFUSED(cffs_ftruncate(late, 1), ESTALE, "stale file handle");
    cffs_file_close(late);
    cffs_file_close(NULL);
    cffs_closedir(NULL);
    cffs_free(NULL, 0);

    CHECK(cffs_open(argv[1], &OPTIONS(.read_only = 1), &volume) == 0);
    CHECK(cffs_open(argv[1], &OPTIONS(.read_only = 1), &second) == 0);
    REFUSED(cffs_write_file(volume, "/more", "", 0), EROFS, "the volume is read-only");
    CHECK(cffs_close(second) == 0 && cffs_close(volume) == 0);
    versions(argv[1]);
    return EXIT_SUCCESS;
}

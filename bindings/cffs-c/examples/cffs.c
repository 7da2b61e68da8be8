/*
 * Creates an image with a few small files, reads them all in device order, and lists them.
 *
 *     cc example.c $(pkg-config --cflags --libs cffs) -o example && ./example tree.cffs
 */
#include <cffs.h>
#include <stdio.h>
#include <stdlib.h>

static int fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, cffs_error());
    return EXIT_FAILURE;
}

static void add(void *data, size_t position, int error, const uint8_t *contents, size_t count)
{
    (void)position, (void)contents;
    if (error == 0)
        *(size_t *)data += count;
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: %s IMAGE\n", argv[0]);
        return 2;
    }
    cffs_volume *volume;
    if (cffs_mkfs(argv[1], 64 << 20, "example") != 0)
        return fail("cffs_mkfs");
    if (cffs_open(argv[1], NULL, &volume) != 0)
        return fail("cffs_open");

    const char *paths[] = {"/notes/one", "/notes/two", "/notes/three"};
    if (cffs_mkdir_all(volume, "/notes") != 0)
        return fail("cffs_mkdir_all");
    for (int i = 0; i < 3; i++)
        if (cffs_write_file(volume, paths[i], "small", 5) != 0)
            return fail(paths[i]);

    size_t bytes = 0;
    if (cffs_read_many(volume, paths, 3, 1, add, &bytes) != 0)
        return fail("cffs_read_many");
    printf("%zu bytes in\n", bytes);

    cffs_dir *directory;
    if (cffs_opendir(volume, "/notes", &directory) != 0)
        return fail("cffs_opendir");
    cffs_dirent entry;
    while (cffs_readdir(directory, &entry) == 1)
        printf("%s, %llu bytes\n", entry.name, (unsigned long long)entry.stat.size);
    cffs_closedir(directory);

    /* Only cffs_close ensures that everything is in the image. */
    if (cffs_close(volume) != 0)
        return fail("cffs_close");
    return EXIT_SUCCESS;
}

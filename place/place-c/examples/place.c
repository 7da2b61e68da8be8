/*
 * Makes a directory in the emptiest group, copies a file into it, makes a file with room for later writes, and
 * renames the directory. All paths are below a given directory.
 *
 *     cc example.c -lplace -o example && ./example DIRECTORY FILE
 */
#include <place.h>
#include <stdio.h>
#include <stdlib.h>

static int fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, place_error());
    return EXIT_FAILURE;
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: %s DIRECTORY FILE\n", argv[0]);
        return 2;
    }
    place_tree *tree = place_init(argv[1]);
    if (tree == NULL)
        return fail("place_init");

    int64_t groups = place_groups(tree);
    uint64_t *free_bytes = calloc((size_t)groups, sizeof *free_bytes);
    if (free_bytes == NULL || place_free_bytes(tree, free_bytes, (size_t)groups) < 0)
        return fail("place_free_bytes");
    int64_t emptiest = 0;
    for (int64_t group = 1; group < groups; group++)
        if (free_bytes[group] > free_bytes[emptiest])
            emptiest = group;
    free(free_bytes);

    if (place_largest(tree, (uint64_t)emptiest) < 1 << 20)
        return fail("place_largest");

    char directory[4096], file[4200], journal[4200], named[4096];
    snprintf(directory, sizeof directory, "%s/unfinished", argv[1]);
    snprintf(journal, sizeof journal, "%s/journal", directory);
    snprintf(named, sizeof named, "%s/placed", argv[1]);
    snprintf(file, sizeof file, "%s/copy", directory);
    if (place_create_dir(tree, directory, 0755, (uint64_t)emptiest) != 0)
        return fail("place_create_dir");
    if (place_copy_file(tree, argv[2], file, (uint64_t)emptiest) != 0)
        return fail("place_copy_file");
    if (place_create_file_with_room(tree, journal, 0644, (uint64_t)emptiest | PLACE_NEARBY, 1 << 20) != 0)
        return fail("place_create_file_with_room");
    if (place_move(tree, directory, named, (uint64_t)emptiest | PLACE_NEARBY) != 0)
        return fail("place_move");
    snprintf(file, sizeof file, "%s/copy", named);
    int64_t group = place_group_of(tree, file);
    printf("%s is in group %lld of %lld, as asked for: %s\n", file, (long long)group,
           (long long)groups, group == emptiest ? "yes" : "no");
    place_close(tree);
    return EXIT_SUCCESS;
}

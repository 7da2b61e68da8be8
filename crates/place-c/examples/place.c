/*
 * Makes a directory in the emptiest group below a directory, and copies a file into it.
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

    char directory[4096], file[4200];
    snprintf(directory, sizeof directory, "%s/placed", argv[1]);
    snprintf(file, sizeof file, "%s/copy", directory);
    if (place_create_dir(tree, directory, 0755, (uint64_t)emptiest) != 0)
        return fail("place_create_dir");
    if (place_copy_file(tree, argv[2], file, (uint64_t)emptiest) != 0)
        return fail("place_copy_file");
    int64_t group = place_group_of(tree, file);
    printf("%s is in group %lld of %lld, as asked for: %s\n", file, (long long)group,
           (long long)groups, group == emptiest ? "yes" : "no");
    place_close(tree);
    return EXIT_SUCCESS;
}

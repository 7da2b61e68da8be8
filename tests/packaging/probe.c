/*
 * Identifies an image by the probe in packaging/libblkid, without the rest of libblkid: declares the part of
 * its interface that the probe uses, includes the probe, and prints the fields that it sets.
 *
 * usage: probe IMAGE
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define le32_to_cpu(x) (x) /* packages are tested on little-endian machines */
#define BLKID_PROBE_OK 0
#define BLKID_PROBE_NONE 1
#define BLKID_USAGE_FILESYSTEM 2

typedef struct {
	uint8_t start[4096];
} *blkid_probe;

struct blkid_idmag {
	const char *magic;
	unsigned int len;
	long kboff;
	unsigned int sboff;
};

struct blkid_idinfo {
	const char *name;
	int usage;
	int minsz;
	int (*probefunc)(blkid_probe pr, const struct blkid_idmag *mag);
	struct blkid_idmag magics[4];
};

#define blkid_probe_get_sb(pr, mag, type) ((const type *) ((pr)->start + (mag)->kboff * 1024))

/* The same polynomial and conventions as libblkid: its callers invert. */
static uint32_t crc32c(uint32_t crc, const void *bytes, size_t count)
{
	const uint8_t *next = bytes;

	while (count--) {
		crc ^= *next++;
		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78 : 0);
	}
	return crc;
}

static int blkid_probe_verify_csum(blkid_probe pr, uint64_t computed, uint64_t expected)
{
	return computed == expected;
}

static void blkid_probe_set_label(blkid_probe pr, const uint8_t *label, size_t bytes)
{
	printf("LABEL=%.*s\n", (int) bytes, label);
}

static void blkid_probe_set_uuid(blkid_probe pr, const uint8_t *uuid)
{
	printf("UUID=");
	for (int i = 0; i < 16; i++)
		printf("%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
	printf("\n");
}

static void blkid_probe_set_block_size(blkid_probe pr, unsigned int bytes)
{
	printf("BLOCK_SIZE=%u\n", bytes);
}

#define blkid_probe_sprintf_version(pr, ...) (printf("VERSION=" __VA_ARGS__), printf("\n"))

#include "cffs.c"

int main(int argc, char **argv)
{
	static uint8_t start[4096];
	FILE *image = argc == 2 ? fopen(argv[1], "rb") : NULL;

	if (!image || fread(start, sizeof(start), 1, image) != 1) {
		fprintf(stderr, "usage: probe IMAGE\n");
		return 2;
	}
	for (const struct blkid_idmag *mag = cffs_idinfo.magics; mag->magic; mag++)
		if (!memcmp(start + mag->kboff * 1024 + mag->sboff, mag->magic, mag->len)
		    && cffs_idinfo.probefunc((blkid_probe) start, mag) == BLKID_PROBE_OK) {
			printf("TYPE=%s\n", cffs_idinfo.name);
			return 0;
		}
	return 1;
}

/*
 * An NFS client on the raw, asynchronous interface of libnfs, with many calls in progress on one connection.
 *
 * usage: libnfs PORT make FILES    makes, writes, commits, lists and reads files; prints what "check" takes
 *        libnfs PORT check FILES VERIFIER HANDLE
 *                                  reads them again from a server that was started since
 *
 * It ends with 1, and says why, at the first answer that is not as RFC 1813 has it.
 */
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

#include <nfsc/libnfs.h>
#include <nfsc/libnfs-raw.h>
#include <nfsc/libnfs-raw-mount.h>
#include <nfsc/libnfs-raw-nfs.h>

enum { IN_FLIGHT = 24, PIECE = 5000, PIECES = 3, FILES_MAX = 1000, HANDLE_MAX = 64 };

#define CHECK(what) \
	do { \
		if (!(what)) { \
			fprintf(stderr, "libnfs.c:%d: not so: %s\n", __LINE__, #what); \
			exit(1); \
		} \
	} while (0)

struct handle {
	unsigned len;
	char bytes[HANDLE_MAX];
};

struct file {
	char name[32];
	struct handle handle;
	unsigned listed;
};

static struct rpc_context *rpc;
static struct handle root;
static struct file files[FILES_MAX];
static unsigned file_count;
static unsigned under_way, under_way_max;
static char verifier[NFS3_WRITEVERFSIZE];
static int has_verifier;
static char piece_of[PIECES][PIECE];

/* Runs one call at a time, and counts it. */
static void begun(int failed)
{
	CHECK(!failed);
	if (++under_way > under_way_max)
		under_way_max = under_way;
}

static void answered(int status)
{
	CHECK(status == RPC_STATUS_SUCCESS);
	under_way--;
}

/* Processes the connection until at most `calls` calls are in progress. */
static void settle(unsigned calls)
{
	while (under_way > calls) {
		struct pollfd fd = { .fd = rpc_get_fd(rpc), .events = rpc_which_events(rpc) };

		CHECK(poll(&fd, 1, 30000) == 1);
		CHECK(rpc_service(rpc, fd.revents) >= 0);
	}
}

static struct nfs_fh3 fh(struct handle *handle)
{
	struct nfs_fh3 fh = { .data = { .data_len = handle->len, .data_val = handle->bytes } };

	return fh;
}

static void take(struct handle *handle, unsigned len, const char *bytes)
{
	CHECK(len > 0 && len <= HANDLE_MAX);
	handle->len = len;
	memcpy(handle->bytes, bytes, len);
}

static int is_same(const struct handle *handle, const struct nfs_fh3 *fh)
{
	return handle->len == fh->data.data_len && !memcmp(handle->bytes, fh->data.data_val, handle->len);
}

/* All verifiers of one run are those of one server. */
static void take_verifier(const char *of_reply)
{
	if (!has_verifier)
		memcpy(verifier, of_reply, sizeof verifier);
	has_verifier = 1;
	CHECK(!memcmp(verifier, of_reply, sizeof verifier));
}

static void on_connected(struct rpc_context *r, int status, void *data, void *private_data)
{
	(void)r, (void)data, (void)private_data;
	answered(status);
}

static void on_mounted(struct rpc_context *r, int status, void *data, void *private_data)
{
	mountres3 *reply = data;

	(void)r, (void)private_data;
	answered(status);
	CHECK(reply->fhs_status == MNT3_OK);
	take(&root, reply->mountres3_u.mountinfo.fhandle.fhandle3_len,
	     reply->mountres3_u.mountinfo.fhandle.fhandle3_val);
}

static void connect_and_mount(int port)
{
	rpc = rpc_init_context();
	CHECK(rpc);
	begun(rpc_connect_port_async(rpc, "127.0.0.1", port, NFS_PROGRAM, NFS_V3, on_connected, NULL));
	settle(0);
	begun(rpc_mount3_mnt_async(rpc, on_mounted, "/", NULL));
	settle(0);
}

/* EXCLUSIVE create: the verifier decides whether it is the same call. */

struct exclusive {
	enum nfsstat3 status;
	struct handle handle;
};

static void on_exclusive(struct rpc_context *r, int status, void *data, void *private_data)
{
	CREATE3res *reply = data;
	struct exclusive *result = private_data;

	(void)r;
	answered(status);
	result->status = reply->status;
	if (reply->status == NFS3_OK) {
		post_op_fh3 *made = &reply->CREATE3res_u.resok.obj;

		CHECK(made->handle_follows);
		take(&result->handle, made->post_op_fh3_u.handle.data.data_len,
		     made->post_op_fh3_u.handle.data.data_val);
	}
}

static struct exclusive create_exclusive(const char *create_verifier)
{
	struct exclusive result = { 0 };
	CREATE3args args = { .where = { .dir = fh(&root), .name = "exclusive" },
			     .how = { .mode = EXCLUSIVE } };

	memcpy(args.how.createhow3_u.verf, create_verifier, NFS3_CREATEVERFSIZE);
	begun(rpc_nfs3_create_async(rpc, on_exclusive, &args, &result));
	settle(0);
	return result;
}

static void check_exclusive(void)
{
	struct exclusive first = create_exclusive("verifier");
	struct exclusive again = create_exclusive("verifier");
	struct exclusive other = create_exclusive("another.");

	CHECK(first.status == NFS3_OK && again.status == NFS3_OK);
	CHECK(first.handle.len == again.handle.len);
	CHECK(!memcmp(first.handle.bytes, again.handle.bytes, first.handle.len));
	CHECK(other.status == NFS3ERR_EXIST);
}

/* Files, many at a time. */

static void on_created(struct rpc_context *r, int status, void *data, void *private_data)
{
	CREATE3res *reply = data;
	struct file *file = private_data;
	post_op_fh3 *made = &reply->CREATE3res_u.resok.obj;

	(void)r;
	answered(status);
	CHECK(reply->status == NFS3_OK && made->handle_follows);
	take(&file->handle, made->post_op_fh3_u.handle.data.data_len, made->post_op_fh3_u.handle.data.data_val);
}

static void on_written(struct rpc_context *r, int status, void *data, void *private_data)
{
	WRITE3res *reply = data;

	(void)r, (void)private_data;
	answered(status);
	CHECK(reply->status == NFS3_OK && reply->WRITE3res_u.resok.count == PIECE);
	take_verifier(reply->WRITE3res_u.resok.verf);
}

static void on_committed(struct rpc_context *r, int status, void *data, void *private_data)
{
	COMMIT3res *reply = data;

	(void)r, (void)private_data;
	answered(status);
	CHECK(reply->status == NFS3_OK);
	take_verifier(reply->COMMIT3res_u.resok.verf);
}

static void make_files(void)
{
	for (unsigned i = 0; i < file_count; i++) {
		CREATE3args args = { .where = { .dir = fh(&root), .name = files[i].name },
				     .how = { .mode = GUARDED } };

		settle(IN_FLIGHT - 1);
		begun(rpc_nfs3_create_async(rpc, on_created, &args, &files[i]));
	}
	settle(0);
	for (unsigned i = 0; i < file_count; i++) {
		/* From the end to the beginning. */
		for (unsigned piece = PIECES; piece-- > 0;) {
			WRITE3args args = { .file = fh(&files[i].handle), .offset = piece * PIECE,
					    .count = PIECE, .stable = UNSTABLE,
					    .data = { .data_len = PIECE, .data_val = piece_of[piece] } };

			settle(IN_FLIGHT - 1);
			begun(rpc_nfs3_write_async(rpc, on_written, &args, NULL));
		}
	}
	settle(0);
	for (unsigned i = 0; i < file_count; i++) {
		COMMIT3args args = { .file = fh(&files[i].handle) };

		settle(IN_FLIGHT - 1);
		begun(rpc_nfs3_commit_async(rpc, on_committed, &args, NULL));
	}
	settle(0);
}

static void on_read(struct rpc_context *r, int status, void *data, void *private_data)
{
	READ3res *reply = data;
	READ3resok *read = &reply->READ3res_u.resok;
	unsigned piece = (unsigned)(uintptr_t)private_data;

	(void)r;
	answered(status);
	CHECK(reply->status == NFS3_OK && read->data.data_len == PIECE);
	CHECK(!memcmp(read->data.data_val, piece_of[piece], PIECE));
	CHECK(!read->eof == (piece + 1 < PIECES));
}

static void read_file(struct handle *handle)
{
	for (unsigned piece = 0; piece < PIECES; piece++) {
		READ3args args = { .file = fh(handle), .offset = piece * PIECE, .count = PIECE };

		settle(IN_FLIGHT - 1);
		begun(rpc_nfs3_read_async(rpc, on_read, &args, (void *)(uintptr_t)piece));
	}
}

static void on_found(struct rpc_context *r, int status, void *data, void *private_data)
{
	LOOKUP3res *reply = data;
	struct file *file = private_data;
	nfs_fh3 *found = &reply->LOOKUP3res_u.resok.object;

	(void)r;
	answered(status);
	CHECK(reply->status == NFS3_OK);
	take(&file->handle, found->data.data_len, found->data.data_val);
}

static void look_all_up(void)
{
	for (unsigned i = 0; i < file_count; i++) {
		LOOKUP3args args = { .what = { .dir = fh(&root), .name = files[i].name } };

		settle(IN_FLIGHT - 1);
		begun(rpc_nfs3_lookup_async(rpc, on_found, &args, &files[i]));
	}
	settle(0);
}

/* READDIRPLUS, in small pieces: each begins after the end of the previous reply. */

struct listing {
	cookie3 cookie;
	cookieverf3 cookie_verifier;
	int is_end;
	unsigned replies, names;
	/* A cookie from the middle, and the number of names after it. */
	cookie3 middle;
	unsigned after_middle;
};

static void take_entry(const entryplus3 *entry, struct listing *listing)
{
	const fattr3 *attributes = &entry->name_attributes.post_op_attr_u.attributes;

	listing->cookie = entry->cookie;
	for (unsigned i = 0; i < file_count; i++) {
		if (strcmp(files[i].name, entry->name))
			continue;
		files[i].listed++;
		listing->names++;
		CHECK(entry->name_attributes.attributes_follow && entry->name_handle.handle_follows);
		CHECK(attributes->size == PIECE * PIECES && attributes->fileid == entry->fileid);
		CHECK(is_same(&files[i].handle, &entry->name_handle.post_op_fh3_u.handle));
		if (listing->names == file_count / 2)
			listing->middle = entry->cookie;
		else if (listing->names > file_count / 2)
			listing->after_middle++;
	}
}

static void on_listed(struct rpc_context *r, int status, void *data, void *private_data)
{
	READDIRPLUS3res *reply = data;
	READDIRPLUS3resok *listed = &reply->READDIRPLUS3res_u.resok;
	struct listing *listing = private_data;

	(void)r;
	answered(status);
	CHECK(reply->status == NFS3_OK);
	CHECK(listed->reply.eof || listed->reply.entries);
	memcpy(listing->cookie_verifier, listed->cookieverf, sizeof listing->cookie_verifier);
	for (entryplus3 *entry = listed->reply.entries; entry; entry = entry->nextentry)
		take_entry(entry, listing);
	listing->is_end = listed->reply.eof;
	listing->replies++;
}

static void list(struct listing *listing)
{
	while (!listing->is_end) {
		READDIRPLUS3args args = { .dir = fh(&root), .cookie = listing->cookie,
					  .dircount = 1024, .maxcount = 4096 };

		memcpy(args.cookieverf, listing->cookie_verifier, sizeof args.cookieverf);
		begun(rpc_nfs3_readdirplus_async(rpc, on_listed, &args, listing));
		settle(0);
	}
}

static void check_listing(void)
{
	struct listing whole = { 0 }, rest = { 0 };

	list(&whole);
	for (unsigned i = 0; i < file_count; i++)
		CHECK(files[i].listed == 1);
	CHECK(whole.replies > 2);
	/* A cookie stays valid after the listing has continued. */
	rest.cookie = whole.middle;
	memcpy(rest.cookie_verifier, whole.cookie_verifier, sizeof rest.cookie_verifier);
	list(&rest);
	CHECK(rest.names == whole.after_middle);
}

static void print_hex(const char *bytes, unsigned len)
{
	while (len--)
		printf("%02x", (unsigned char)*bytes++);
}

static unsigned from_hex(const char *text, char *bytes, unsigned max)
{
	unsigned len = strlen(text) / 2;

	CHECK(len <= max);
	for (unsigned i = 0; i < len; i++) {
		unsigned value;

		CHECK(sscanf(text + 2 * i, "%2x", &value) == 1);
		bytes[i] = value;
	}
	return len;
}

static void check_after_restart(const char *old_verifier, const char *old_handle)
{
	char old[NFS3_WRITEVERFSIZE];
	struct handle handle;
	COMMIT3args args;

	/* A handle from the previous server. */
	handle.len = from_hex(old_handle, handle.bytes, sizeof handle.bytes);
	CHECK(handle.len == files[0].handle.len && !memcmp(handle.bytes, files[0].handle.bytes, handle.len));
	read_file(&handle);
	args = (COMMIT3args){ .file = fh(&handle) };
	begun(rpc_nfs3_commit_async(rpc, on_committed, &args, NULL));
	settle(0);
	CHECK(from_hex(old_verifier, old, sizeof old) == sizeof old);
	CHECK(memcmp(old, verifier, sizeof old));
}

int main(int argc, char **argv)
{
	int is_check = argc == 6 && !strcmp(argv[2], "check");

	if (!is_check && !(argc == 4 && !strcmp(argv[2], "make"))) {
		fprintf(stderr, "usage: libnfs PORT make FILES | libnfs PORT check FILES VERIFIER HANDLE\n");
		return 2;
	}
	file_count = strtoul(argv[3], NULL, 10);
	CHECK(file_count > 1 && file_count <= FILES_MAX);
	for (unsigned i = 0; i < file_count; i++)
		snprintf(files[i].name, sizeof files[i].name, "file %u", i);
	for (unsigned i = 0; i < sizeof piece_of; i++)
		((char *)piece_of)[i] = (char)(i * i >> 7);
	connect_and_mount(atoi(argv[1]));
	if (is_check) {
		look_all_up();
		check_after_restart(argv[4], argv[5]);
	} else {
		check_exclusive();
		make_files();
	}
	check_listing();
	for (unsigned i = 0; i < file_count; i++)
		read_file(&files[i].handle);
	settle(0);
	CHECK(under_way_max == IN_FLIGHT);
	print_hex(verifier, sizeof verifier);
	printf(" ");
	print_hex(files[0].handle.bytes, files[0].handle.len);
	printf("\n");
	rpc_destroy_context(rpc);
	return 0;
}

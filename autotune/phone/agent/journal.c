/* The result: records that are added one after the other, and survive a restart of the machine at any moment. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include "detached.h"
#include "protocol.h"

#define MOST_TORN 4096 /* bytes of a result whose first record was not written completely */

static int journal = -1;

static uint32_t checksum(uint32_t before, const uint8_t *from, size_t bytes) {
    static uint32_t table[256];
    uint32_t sum = ~before, i;
    if (!table[1])
        for (i = 0; i < 256; i++) {
            uint32_t value = i, bit;
            for (bit = 0; bit < 8; bit++)
                value = value & 1 ? value >> 1 ^ 0xedb88320u : value >> 1;
            table[i] = value;
        }
    while (bytes--)
        sum = sum >> 8 ^ table[(sum ^ *from++) & 0xff];
    return ~sum;
}

int next_record(struct cursor *file, uint8_t *kind, struct cursor *payload) {
    uint32_t bytes = read_u32(file);
    if (bytes < 1 || bytes > MAX_FRAME_BYTES)
        return 0;
    *kind = read_u8(file);
    payload->at = read_bytes(file, bytes - 1);
    payload->left = bytes - 1;
    payload->is_short = 0;
    return payload->at != NULL;
}

/* Returns the bytes of the complete records at the start. */
static size_t take_all(struct cursor file, void (*take)(uint8_t kind, struct cursor payload)) {
    const uint8_t *start = file.at;
    size_t complete = 0;
    uint8_t kind;
    struct cursor payload, sum;
    while (next_record(&file, &kind, &payload) && payload.left >= 4) {
        payload.left -= 4;
        sum.at = payload.at + payload.left;
        sum.left = 4;
        sum.is_short = 0;
        if (read_u32(&sum) != checksum(checksum(0, &kind, 1), payload.at, payload.left))
            break;
        take(kind, payload);
        complete = (size_t)(file.at - start);
    }
    return complete;
}

int open_journal(const char *path, void (*take)(uint8_t kind, struct cursor payload)) {
    off_t size, complete = 0;
    journal = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (journal >= 0 && flock(journal, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK) {
        fprintf(stderr, "autotune agent: %s is in use by another run.sh\n", path);
        exit(1);
    }
    size = journal < 0 ? -1 : lseek(journal, 0, SEEK_END);
    if (size > 0) {
        struct cursor file;
        file.at = mmap(NULL, (size_t)size, PROT_READ, MAP_SHARED, journal, 0);
        file.left = (size_t)size;
        file.is_short = 0;
        if (file.at == MAP_FAILED)
            return 0;
        complete = (off_t)take_all(file, take);
        munmap((void *)file.at, (size_t)size);
    }
    if (size > MOST_TORN && !complete)
        return 0; /* something else */
    return size >= 0 && !ftruncate(journal, complete) && lseek(journal, complete, SEEK_SET) == complete;
}

static void append(const uint8_t *from, size_t bytes) {
    while (bytes) {
        ssize_t count = write(journal, from, bytes);
        if (count < 0 && errno == EINTR)
            continue;
        if (count <= 0) {
            perror("autotune agent: the result cannot be written");
            exit(1);
        }
        from += count;
        bytes -= (size_t)count;
    }
}

void record(uint8_t kind, const void *head, size_t head_bytes, const void *body, size_t bytes, int is_safe) {
    uint8_t header[5], end[4];
    put_u32(header, (uint32_t)(1 + head_bytes + bytes + 4));
    header[4] = kind;
    put_u32(end, checksum(checksum(checksum(0, &kind, 1), head, head_bytes), body, bytes));
    append(header, sizeof header);
    append(head, head_bytes);
    append(body, bytes);
    append(end, sizeof end);
    if (is_safe && fsync(journal) && errno != EINTR) {
        perror("autotune agent: the result cannot be written");
        exit(1);
    }
}

void close_journal(void) { close(journal); }

#include "frames.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "protocol.h"

struct shared *shared;
int from_host, to_host;

uint64_t clock_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint32_t clock_ms(void) {
    uint32_t now = (uint32_t)(clock_ns() / 1000000u);
    return now ? now : 1;
}

const uint8_t *read_bytes(struct cursor *cursor, size_t count) {
    const uint8_t *at = cursor->at;
    if (count > cursor->left || cursor->is_short) {
        cursor->is_short = 1;
        return NULL;
    }
    cursor->at += count;
    cursor->left -= count;
    return at;
}

static uint64_t read_number(struct cursor *cursor, size_t bytes) {
    const uint8_t *at = read_bytes(cursor, bytes);
    uint64_t value = 0;
    while (at && bytes--)
        value = value << 8 | at[bytes];
    return value;
}

uint8_t read_u8(struct cursor *cursor) { return (uint8_t)read_number(cursor, 1); }

uint32_t read_u32(struct cursor *cursor) { return (uint32_t)read_number(cursor, 4); }

uint64_t read_u64(struct cursor *cursor) { return read_number(cursor, 8); }

void put_u32(uint8_t *at, uint32_t value) {
    int i;
    for (i = 0; i < 4; i++)
        at[i] = (uint8_t)(value >> 8 * i);
}

void put_u64(uint8_t *at, uint64_t value) {
    put_u32(at, (uint32_t)value);
    put_u32(at + 4, (uint32_t)(value >> 32));
}

void refuse_frame(const char *why) {
    fprintf(stderr, "autotune agent: a frame is refused: %s\n", why);
    _exit(2);
}

/* Returns 0 if the input ends before the first byte. */
static int fill(uint8_t *into, size_t bytes) {
    size_t done = 0;
    while (done < bytes) {
        ssize_t count = read(from_host, into + done, bytes - done);
        if (count > 0)
            done += (size_t)count;
        else if (count == 0 || errno != EINTR)
            break;
    }
    if (done && done < bytes)
        _exit(0); /* the host ended within a frame */
    return done == bytes;
}

uint8_t next_frame(struct cursor *payload) {
    static uint8_t *buffer;
    static size_t capacity;
    uint8_t header[5];
    struct cursor cursor = {header, sizeof header, 0};
    size_t bytes;
    if (!fill(header, sizeof header))
        return 0;
    bytes = read_u32(&cursor);
    if (bytes < 1 || bytes > MAX_FRAME_BYTES)
        refuse_frame("its size is out of range");
    bytes -= 1;
    if (bytes > capacity) {
        free(buffer);
        buffer = malloc(bytes);
        capacity = bytes;
        if (!buffer)
            refuse_frame("there is no memory for it");
    }
    if (bytes && !fill(buffer, bytes))
        _exit(0);
    payload->at = buffer;
    payload->left = bytes;
    payload->is_short = 0;
    if (!header[4])
        refuse_frame("it has no command");
    return header[4];
}

static void write_all(const uint8_t *from, size_t bytes) {
    while (bytes) {
        ssize_t count = write(to_host, from, bytes);
        if (count < 0 && errno == EINTR)
            continue;
        if (count <= 0)
            _exit(0); /* the host is gone */
        from += count;
        bytes -= (size_t)count;
        shared->owed_bytes -= (uint32_t)count;
    }
}

void write_frame(uint8_t kind, const void *head, size_t head_bytes, const void *body, size_t body_bytes) {
    static const uint8_t complete = 1;
    uint8_t small[4096];
    size_t before = 5 + head_bytes;
    if (before > sizeof small || body_bytes > MAX_FRAME_BYTES - sizeof small)
        refuse_frame("its answer would be too large");
    put_u32(small, (uint32_t)(1 + head_bytes + body_bytes + 1));
    small[4] = kind;
    if (head_bytes)
        memcpy(small + 5, head, head_bytes);
    shared->owed_bytes = (uint32_t)(before + body_bytes + 1);
    if (body_bytes < sizeof small - before) {
        if (body_bytes)
            memcpy(small + before, body, body_bytes);
        small[before + body_bytes] = complete;
        write_all(small, before + body_bytes + 1);
    } else {
        write_all(small, before);
        write_all(body, body_bytes);
        write_all(&complete, 1);
    }
}

/* Which device of the machine is used, and what its driver says of it. */
#include "choice.h"

#include <stdio.h>
#include <string.h>

#include "detached.h"
#include "protocol.h"
#include "work.h"

#define LIMIT_MS 60000
#define MOST_DEVICES 64
#define TYPE_OF_DEVICE 0x1000
#define NAME_OF_DEVICE 0x102B
#define VENDOR_OF_DEVICE 0x102C
#define VERSION_OF_DEVICE 0x102F

uint32_t chosen[2] = {NO_HANDLE, NO_HANDLE};
int keeps_programs;
static struct peer peer = {-1, -1, LIMIT_MS, 0};
static int has_name, has_vendor;

static int has_word(const uint8_t *text, size_t bytes, const char *word) {
    size_t length = strlen(word);
    for (; bytes >= length; text++, bytes--)
        if (!memcmp(text, word, length))
            return 1;
    return 0;
}

void note_driver(uint32_t query, const uint8_t *told, size_t bytes) {
    if (query == VERSION_OF_DEVICE || query == VENDOR_OF_DEVICE)
        keeps_programs |= has_word(told, bytes, "PoCL") || has_word(told, bytes, "pocl") || has_word(told, bytes, "NVIDIA");
}

static int count_of(uint8_t command, const uint8_t *body, size_t bytes) {
    struct reply reply = ask_peer(&peer, command, body, bytes, LIMIT_MS);
    uint32_t count = reply.kind == ANSWER ? read_u32(&reply.payload) : 0;
    return (int)(count < MOST_DEVICES ? count : MOST_DEVICES);
}

/* Asks a query about a device or platform and records the answer. Returns its first number. */
static uint64_t query(uint32_t platform, uint32_t device, uint32_t code, int is_recorded) {
    uint8_t body[12];
    struct reply reply;
    put_u32(body, platform);
    put_u32(body + 4, device);
    put_u32(body + 8, code);
    if (peer.to < 0 && !start_peer(&peer)) /* the query before has ended it */
        return 0;
    reply = ask_peer(&peer, INFO, body, sizeof body, LIMIT_MS);
    if (reply.kind != ANSWER)
        return 0;
    has_name |= code == NAME_OF_DEVICE;
    has_vendor |= code == VENDOR_OF_DEVICE;
    note_driver(code, reply.payload.at, reply.payload.left);
    if (is_recorded)
        record(TOLD, body, sizeof body, reply.payload.at, reply.payload.left, 0);
    return read_u64(&reply.payload);
}

/* Records what the driver says of the device. Returns 0 if not even what it is. */
static int tell_device(void) {
    static const char path[] = "/proc/cpuinfo";
    struct cursor queries = work.queries;
    uint32_t of_platform;
    uint8_t head[9];
    struct reply reply;
    read_u32(&queries);
    of_platform = read_u32(&queries);
    while (queries.left >= 4) {
        query(chosen[0], of_platform ? NO_HANDLE : chosen[1], read_u32(&queries), 1);
        of_platform -= of_platform > 0;
    }
    if (!has_name || !has_vendor)
        return 0;
    reply = ask_peer(&peer, READ_FILE, (const uint8_t *)path, sizeof path - 1, LIMIT_MS);
    put_u32(head, chosen[0]);
    put_u32(head + 4, chosen[1]);
    head[8] = peer.size_t_bytes;
    record(CHOSEN, head, sizeof head, reply.payload.at, reply.kind == ANSWER ? reply.payload.left : 0, 1);
    return 1;
}

int choose_device(void) {
    struct cursor queries = work.queries;
    uint32_t types = read_u32(&queries), platform, device;
    int is_told;
    uint32_t platforms = start_peer(&peer) ? (uint32_t)count_of(PLATFORMS, NULL, 0) : 0;
    for (platform = 0; platform < platforms; platform++) {
        uint8_t body[4];
        uint32_t devices;
        put_u32(body, platform);
        devices = (uint32_t)count_of(DEVICES, body, sizeof body);
        for (device = 0; device < devices; device++)
            if (query(platform, device, TYPE_OF_DEVICE, 0) & types) {
                chosen[0] = platform;
                chosen[1] = device;
                is_told = tell_device();
                end_peer(&peer);
                if (!is_told)
                    fputs("autotune agent: the driver does not tell what the device is; start it again\n", stderr);
                return is_told;
            }
    }
    end_peer(&peer);
    fprintf(stderr, "autotune agent: %s\n", platforms ? "there is no device of the wanted kind" : "OpenCL cannot be used");
    return 0;
}

/* Reading and writing frames, and the numbers in them. */
#ifndef AUTOTUNE_FRAMES_H
#define AUTOTUNE_FRAMES_H

#include <stddef.h>
#include <stdint.h>

/* Shared by supervisor and runner; every member is written by the runner only and fits one machine word. */
struct shared {
    volatile uint32_t limit_ms;
    volatile uint32_t deadline_ms; /* by `clock_ms`; 0 while no command runs */
    volatile uint32_t command;     /* in flight, 0 if none */
    volatile uint32_t owed_bytes;  /* of the frame that is being written */
};

extern struct shared *shared;
extern int from_host, to_host;

/* A payload that is being read. Past its end, numbers are 0 and `is_short` is set. */
struct cursor {
    const uint8_t *at;
    size_t left;
    int is_short;
};

uint64_t clock_ns(void);
uint32_t clock_ms(void); /* never 0 */

uint8_t read_u8(struct cursor *cursor);
uint32_t read_u32(struct cursor *cursor);
uint64_t read_u64(struct cursor *cursor);
const uint8_t *read_bytes(struct cursor *cursor, size_t count); /* NULL past the end */

void put_u32(uint8_t *at, uint32_t value);
void put_u64(uint8_t *at, uint64_t value);

/* Reads the next frame into memory that the next call reuses; returns its command, or 0 at the end of the input.
 * Ends the process where that is no frame. */
uint8_t next_frame(struct cursor *payload);

/* Writes a frame whose payload has two parts. Ends the process when the host is gone. */
void write_frame(uint8_t kind, const void *head, size_t head_bytes, const void *body, size_t body_bytes);

/* Ends the process because of a frame that no host of this version sends. */
void refuse_frame(const char *why);

#endif

/* Work without a host: an agent as seen by its host, the result on disk, and the racing rule. */
#ifndef AUTOTUNE_DETACHED_H
#define AUTOTUNE_DETACHED_H

#include "frames.h"

/* What an agent answered: ANSWER or ERROR with a payload, END with how it ended, 0 if it is late or gone. */
struct reply {
    uint8_t kind;
    struct cursor payload;
};

struct peer {
    int to, from; /* -1 while there is none */
    uint32_t limit_ms;
    uint8_t size_t_bytes;
};

extern volatile int is_interrupted; /* the user wants it to stop */

/* Starts an agent in a process of its own and greets it. Returns 0 if it does not answer. */
int start_peer(struct peer *peer);
void end_peer(struct peer *peer);
/* Sends a command. A peer that is gone is noticed by the next `ask_peer`. */
void tell_peer(struct peer *peer, uint8_t command, const void *head, size_t head_bytes, const void *body, size_t bytes);
/* Waits for an answer, whose payload the next call overwrites; ends a peer that is late. */
struct reply await_peer(struct peer *peer, uint32_t limit_ms);
/* Sends a command and waits for its answer. */
struct reply ask_peer(struct peer *peer, uint8_t command, const void *body, size_t bytes, uint32_t limit_ms);

/* Opens the result, whose complete records it passes to `take`; what is behind them is cut off. Returns 0 on error.
 * Exits if another process has it open. */
int open_journal(const char *path, void (*take)(uint8_t kind, struct cursor payload));
/* Adds a record. Exits if the disk does not take it. With `is_safe` it is on the disk when this returns. */
void record(uint8_t kind, const void *head, size_t head_bytes, const void *body, size_t bytes, int is_safe);
void close_journal(void); /* in a child process */

/* The next frame of a file in memory; returns 0 at its end, or where there is none. */
int next_record(struct cursor *file, uint8_t *kind, struct cursor *payload);

/* Carries out the work in a file and adds to the result in another. Returns the exit status. */
int work_alone(const char *work, const char *result);

/* In supervisor.c: an agent on standard input and output. Returns its exit status. */
int run_agent(void);

#endif

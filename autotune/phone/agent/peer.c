/* The host's side of the protocol: starts agents, sends them commands, and waits for answers no longer than allowed. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "detached.h"
#include "protocol.h"

#define GREETING_LIMIT_MS 30000
#define MOST_FILES 256 /* more than the host ever has open */
#define PATIENCE_MS 10000 /* beyond its own limit, with an agent that reads nothing */

volatile int is_interrupted;

static void become_agent(int *commands, int *answers) {
    int other;
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    signal(SIGHUP, SIG_DFL);
    close_journal();
    if (dup2(commands[0], 0) < 0 || dup2(answers[1], 1) < 0)
        _exit(1);
    for (other = 3; other < MOST_FILES; other++) /* with the links of other agents, which end when these are closed */
        close(other);
    _exit(run_agent());
}

int start_peer(struct peer *peer) {
    static const char greeting[] = PROTOCOL_MAGIC PROTOCOL_DIGEST;
    uint8_t hello[sizeof greeting + 3];
    int commands[2], answers[2];
    struct reply reply;
    pid_t child;
    if (pipe(commands) || pipe(answers))
        return 0;
    child = fork();
    if (child == 0)
        become_agent(commands, answers);
    close(commands[0]);
    close(answers[1]);
    fcntl(commands[1], F_SETFL, O_NONBLOCK);
    peer->to = commands[1];
    peer->from = answers[0];
    memcpy(hello, greeting, sizeof greeting - 1);
    put_u32(hello + sizeof greeting - 1, peer->limit_ms);
    reply = ask_peer(peer, HELLO, hello, sizeof hello, GREETING_LIMIT_MS);
    if (reply.kind != ANSWER || reply.payload.left != sizeof greeting)
        return 0;
    peer->size_t_bytes = reply.payload.at[sizeof greeting - 1];
    return 1;
}

void end_peer(struct peer *peer) {
    if (peer->to >= 0) {
        close(peer->to);
        close(peer->from);
    }
    peer->to = peer->from = -1;
    while (waitpid(-1, NULL, WNOHANG) > 0)
        ;
}

/* Returns whether a peer reads on; ends one that a driver holds so that not even its supervisor can end it. */
static int awaits_more(struct peer *peer) {
    uint32_t deadline_ms = clock_ms() + peer->limit_ms + PATIENCE_MS;
    struct pollfd link;
    int32_t left_ms;
    link.fd = peer->to;
    link.events = POLLOUT;
    while (!is_interrupted && (left_ms = (int32_t)(deadline_ms - clock_ms())) > 0)
        if (poll(&link, 1, left_ms) > 0)
            return 1;
    if (!is_interrupted)
        end_peer(peer);
    return 0;
}

static void send_all(struct peer *peer, const uint8_t *from, size_t bytes) {
    while (bytes && peer->to >= 0) {
        ssize_t count = write(peer->to, from, bytes);
        if (count < 0 && ((errno == EINTR && !is_interrupted) || (errno == EAGAIN && awaits_more(peer))))
            continue;
        if (count <= 0)
            return; /* the next answer says why */
        from += count;
        bytes -= (size_t)count;
    }
}

void tell_peer(struct peer *peer, uint8_t command, const void *head, size_t head_bytes, const void *body, size_t bytes) {
    uint8_t header[5];
    put_u32(header, (uint32_t)(1 + head_bytes + bytes));
    header[4] = command;
    send_all(peer, header, sizeof header);
    send_all(peer, head, head_bytes);
    send_all(peer, body, bytes);
}

/* Returns whether that many bytes came before the deadline. */
static int receive(struct peer *peer, uint8_t *into, size_t bytes, uint32_t deadline_ms) {
    while (bytes) {
        struct pollfd link;
        int32_t left_ms = (int32_t)(deadline_ms - clock_ms());
        ssize_t count;
        if (peer->from < 0 || left_ms <= 0 || is_interrupted)
            return 0;
        link.fd = peer->from;
        link.events = POLLIN;
        link.revents = 0;
        if (poll(&link, 1, left_ms) <= 0)
            continue;
        count = read(peer->from, into, bytes);
        if (count == 0 || (count < 0 && errno != EINTR))
            return 0;
        into += count > 0 ? count : 0;
        bytes -= count > 0 ? (size_t)count : 0;
    }
    return 1;
}

static uint8_t *room(size_t bytes) {
    static uint8_t *memory;
    static size_t capacity;
    if (bytes > capacity) {
        free(memory);
        memory = malloc(bytes);
        capacity = memory ? bytes : 0;
    }
    return memory;
}

/* Reads one frame; what is no frame of an agent counts as none. */
static struct reply next_reply(struct peer *peer, uint32_t deadline_ms) {
    struct reply reply = {0, {NULL, 0, 0}};
    uint8_t header[5], *payload, kind;
    struct cursor cursor = {header, sizeof header, 0};
    size_t bytes;
    if (!receive(peer, header, sizeof header, deadline_ms))
        return reply;
    bytes = read_u32(&cursor);
    kind = header[4];
    payload = bytes > 1 && bytes <= MAX_FRAME_BYTES ? room(bytes - 1) : NULL;
    if (!payload || !receive(peer, payload, bytes - 1, deadline_ms))
        return reply;
    reply.payload.at = payload;
    reply.payload.left = bytes - (kind == END ? 1 : 2); /* others end with a mark */
    if (kind == END ? bytes == 7 : (kind == ANSWER || kind == ERROR) && payload[bytes - 2] == 1)
        reply.kind = kind;
    else if (kind == ANSWER || kind == ERROR)
        return next_reply(peer, deadline_ms); /* the agent did not live to complete it */
    return reply;
}

struct reply await_peer(struct peer *peer, uint32_t limit_ms) {
    struct reply reply = next_reply(peer, clock_ms() + limit_ms);
    if (reply.kind != ANSWER && reply.kind != ERROR)
        end_peer(peer);
    return reply;
}

struct reply ask_peer(struct peer *peer, uint8_t command, const void *body, size_t bytes, uint32_t limit_ms) {
    tell_peer(peer, command, NULL, 0, body, bytes);
    return await_peer(peer, limit_ms);
}

/* Trials without a host: an agent carries out their commands, and the result tells what they have shown. */
#include "trials.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "choice.h"
#include "detached.h"
#include "heat.h"
#include "outputs.h"
#include "protocol.h"

#define LIMIT_MS 90000       /* of a command, by the agent itself */
#define SAMPLE_NS 5e6
#define SAMPLES 3
#define MOST_CALLS 2000
#define FAR_SLOWER 3.0       /* than the best: one sample is enough, and no place in the race */
#define FAR_TOO_SLOW 60.0    /* than the best: not run in full, unless it takes no longer than this: */
#define WORTH_REFUSING_NS 50e6
#define LONGEST_NS 5e9
#define SIGNIFICANT_NS 1e6   /* of a part, to foresee the whole from */
#define MOST_STARTS 5        /* of an agent in a row that does not even open the device */

uint64_t spent_before_ms;
uint32_t in_hand = NO_HANDLE;
static struct peer peer = {-1, -1, LIMIT_MS, 0}, builder = {-1, -1, LIMIT_MS, 0};
static struct trial *ahead; /* which the builder builds */
static uint32_t started_ms;

/* What the commands of the trial in hand have shown. */
static struct {
    struct trial *trial, *next;
    const struct problem *problem;
    uint64_t build_ns, limit, private_bytes;
    uint8_t check, outputs;
    int is_finalist, differs;
    uint64_t groups;  /* of the last part */
    double part_ns, foreseen_ns;
} now;

uint64_t spent_ms(void) {
    if (!started_ms)
        started_ms = clock_ms();
    return spent_before_ms + (clock_ms() - started_ms);
}

void leave(void) {
    uint8_t head[8];
    end_peer(&peer);
    end_peer(&builder);
    put_u32(head, in_hand);
    if (in_hand != NO_HANDLE)
        record(DROPPED, head, 4, NULL, 0, 0);
    put_u64(head, spent_ms());
    record(SPENT, head, sizeof head, NULL, 0, 1);
    exit(UNFINISHED);
}

void begin(struct trial *trial) {
    uint8_t head[8];
    rest_if_hot();
    if (is_interrupted)
        leave();
    put_u64(head, spent_ms());
    record(SPENT, head, sizeof head, NULL, 0, 0);
    put_u32(head, trial->number);
    record(BEGUN, head, 4, NULL, 0, 1);
    in_hand = trial->number;
    memset(&now, 0, sizeof now);
    now.trial = trial;
    now.problem = problem_of(trial->number);
}

/* Records why a trial failed, which ends it. */
static int failed(uint8_t why, uint8_t how, uint8_t command, int32_t number, const uint8_t *text, size_t bytes) {
    uint8_t head[11];
    if (is_interrupted)
        leave();
    put_u32(head, now.trial->number);
    head[4] = why;
    head[5] = how;
    head[6] = command;
    put_u32(head + 7, (uint32_t)number);
    record(FAILED, head, sizeof head, text, bytes, 1);
    if (why == FAILED_DIFFERS || (why == FAILED_REFUSED && command != BUILD && command != KERNELS))
        end_peer(&peer); /* its memory may be overwritten, its context broken */
    now.trial->state = OUT;
    in_hand = NO_HANDLE;
    return 0;
}

int fail_lost(uint32_t trial) {
    now.trial = &work.trials[trial];
    return failed(FAILED_LOST, 0, 0, 0, NULL, 0);
}

/* Waits for what an agent answers to the trial in hand. Returns whether it did; otherwise the trial has failed. */
static int await(struct peer *asked, uint8_t command, struct reply *reply) {
    int is_build = command == BUILD || command == KERNELS || command == FACTS; /* when some drivers generate code */
    uint32_t limit_ms = is_build ? BUILD_LIMIT_MS : RUN_LIMIT_MS;
    *reply = await_peer(asked, limit_ms);
    if (reply->kind == ANSWER || (reply->kind == ERROR && command == FACTS)) /* which a driver may refuse to tell */
        return 1;
    if (reply->kind == ERROR) {
        int32_t status = (int32_t)read_u32(&reply->payload);
        return failed(FAILED_REFUSED, 0, command, status, reply->payload.at, reply->payload.left);
    }
    if (reply->kind == END) {
        uint8_t how = read_u8(&reply->payload);
        int32_t number = (int32_t)read_u32(&reply->payload);
        uint8_t why = how == ENDED_BY_LIMIT && is_busy() ? FAILED_BUSY : FAILED_ENDED;
        return failed(why, how, read_u8(&reply->payload), number, NULL, 0);
    }
    return failed(is_busy() ? FAILED_BUSY : FAILED_LATE, 0, command, (int32_t)limit_ms, NULL, 0);
}

static int ask(uint8_t command, const uint8_t *body, size_t bytes, struct reply *reply) {
    tell_peer(&peer, command, NULL, 0, body, bytes);
    return await(&peer, command, reply);
}

/* The agents */

static int open_device(struct peer *opening) {
    uint8_t body[9];
    put_u32(body, chosen[0]);
    put_u32(body + 4, chosen[1]);
    body[8] = 1; /* events tell times */
    return ask_peer(opening, OPEN, body, sizeof body, BUILD_LIMIT_MS).kind == ANSWER;
}

int need_agent(void) {
    int starts;
    if (peer.to >= 0)
        return 0;
    for (starts = 0; peer.to < 0 && starts < MOST_STARTS; starts++) {
        if (is_interrupted)
            leave();
        if (!start_peer(&peer) || !open_device(&peer))
            end_peer(&peer);
    }
    if (peer.to < 0) {
        fputs("autotune agent: the device cannot be opened any more; restart the machine and go on\n", stderr);
        leave();
    }
    return 1;
}

/* Building ahead */

struct trial *built_ahead(void) { return ahead; }

void stop_building(void) {
    end_peer(&builder);
    ahead = NULL;
}

static void build_ahead(struct trial *trial) {
    struct cursor setup = trial->setup, payload;
    uint8_t command;
    if (builder.to < 0 && (!start_peer(&builder) || !open_device(&builder))) {
        end_peer(&builder);
        return;
    }
    if (next_record(&setup, &command, &payload) && command == BUILD) {
        tell_peer(&builder, BUILD, NULL, 0, payload.at, payload.left);
        ahead = trial;
    }
}

/* Takes what the builder has built of the trial in hand. Returns 0 if it has failed, and sets `is_loaded`. */
static int take_built(struct cursor payload, int *is_loaded) {
    struct cursor whole = payload;
    const uint8_t *handle = read_bytes(&payload, 4);
    size_t head = 8 + (size_t)read_u32(&payload);
    struct reply reply;
    ahead = NULL;
    if (!await(&builder, BUILD, &reply))
        return 0;
    if (!keeps_programs && handle && head <= whole.left) {
        reply = ask_peer(&builder, BINARY, handle, 4, RUN_LIMIT_MS);
        if (reply.kind == ANSWER && reply.payload.left) {
            tell_peer(&peer, LOAD, whole.at, head, reply.payload.at, reply.payload.left);
            *is_loaded = await_peer(&peer, BUILD_LIMIT_MS).kind == ANSWER;
        }
    }
    if (handle)
        tell_peer(&builder, RELEASE, NULL, 0, handle, 4);
    return 1;
}

/* Commands of a trial */

/* Runs launches a number of times. Returns 0 if the trial has failed. */
static int run(struct cursor payload, uint32_t times, uint64_t *host_ns, uint64_t *event_ns) {
    uint8_t *body = malloc(payload.left + 5);
    struct reply reply;
    uint64_t start, end;
    int is_right;
    if (!body || payload.left < 5) {
        free(body);
        return failed(FAILED_REFUSED, 0, RUN, 0, NULL, 0);
    }
    memcpy(body, payload.at, payload.left);
    put_u32(body, times);
    body[4] = event_ns != NULL;
    is_right = ask(RUN, body, payload.left, &reply);
    free(body);
    if (!is_right)
        return 0;
    start = read_u64(&reply.payload);
    *host_ns = read_u64(&reply.payload) - start;
    if (event_ns)
        *event_ns = 0;
    while (event_ns && reply.payload.left >= 16) {
        start = read_u64(&reply.payload);
        end = read_u64(&reply.payload);
        if (!start || end < start) {
            *event_ns = 0; /* one that is not told makes the rest useless */
            break;
        }
        *event_ns += end - start;
    }
    return 1;
}

/* Runs a part of a launch, unless the parts before have shown how long the whole takes. */
static int run_part(struct cursor payload) {
    uint64_t groups = read_u64(&payload), whole = read_u64(&payload), host_ns;
    double best = best_ns(now.problem), limit_ns = best ? FAR_TOO_SLOW * best : LONGEST_NS, per_group_ns;
    int is_another = groups < now.groups || !now.groups, is_repeated = groups == now.groups;
    limit_ns = limit_ns < WORTH_REFUSING_NS ? WORTH_REFUSING_NS : limit_ns > LONGEST_NS ? LONGEST_NS : limit_ns;
    if (is_another)
        now.foreseen_ns = 0;
    if (now.foreseen_ns) {
        now.groups = groups;
        return 1;
    }
    if (!run(payload, 1, &host_ns, NULL))
        return 0;
    if (!is_another && !is_repeated && groups > now.groups) {
        per_group_ns = ((double)host_ns - now.part_ns) / (double)(groups - now.groups);
        if ((double)host_ns >= SIGNIFICANT_NS && per_group_ns * (double)groups >= 0.5 * (double)host_ns)
            now.foreseen_ns = (double)host_ns + per_group_ns * (double)(whole - groups);
    }
    now.groups = groups;
    now.part_ns = (double)host_ns;
    if (now.foreseen_ns > limit_ns)
        return failed(FAILED_SLOW, 0, RUN, (int32_t)(now.foreseen_ns / 1e6 < 2e9 ? now.foreseen_ns / 1e6 : 2e9), NULL, 0);
    return 1;
}

static void write_data(struct cursor payload) {
    const uint8_t *head = read_bytes(&payload, 12);
    uint32_t number = read_u32(&payload);
    if (head && !payload.is_short && number < now.problem->data_count)
        tell_peer(&peer, WRITE, head, 12, now.problem->data[number].at, now.problem->data[number].left);
}

static void take_facts(struct cursor payload) {
    uint64_t limit = read_u64(&payload), private_bytes = read_u64(&payload);
    if (!now.limit || limit < now.limit)
        now.limit = limit;
    if (private_bytes > now.private_bytes)
        now.private_bytes = private_bytes;
}

/* Carries out one command. Returns 0 if the trial has failed. */
static int carry_out_one(uint8_t command, struct cursor payload) {
    struct reply reply;
    uint64_t start_ns = clock_ns();
    int is_loaded = 0;
    if (command == PART)
        return run_part(payload);
    if (command == BUILD && now.trial == ahead) {
        if (!take_built(payload, &is_loaded))
            return 0;
        now.build_ns += clock_ns() - start_ns;
        if (is_loaded)
            return 1;
        start_ns = clock_ns();
    }
    if (command == WRITE_DATA) {
        write_data(payload);
    } else if (command >= ALLOCATE) {
        tell_peer(&peer, command, NULL, 0, payload.at, payload.left);
    } else {
        if (!ask(command, payload.at, payload.left, &reply))
            return 0;
        if (command == BUILD || command == KERNELS)
            now.build_ns += clock_ns() - start_ns;
        if (command == KERNELS && now.next)
            build_ahead(now.next);
        if (command == FACTS && reply.kind == ANSWER)
            take_facts(reply.payload);
        if (command == READ)
            now.differs |= !keep_output(now.trial, now.check, now.outputs++, reply.payload.at, reply.payload.left,
                                        now.is_finalist);
    }
    return 1;
}

/* Carries out a section; of TIME, all but its last command, which `last` becomes. */
static int carry_out(struct cursor section, struct cursor *last) {
    struct cursor payload;
    uint8_t command;
    while (next_record(&section, &command, &payload)) {
        if (last && !section.left) {
            *last = payload;
            return 1;
        }
        if (!carry_out_one(command, payload))
            return 0;
    }
    return 1;
}

/* Carries out the first checks of the trial in hand. */
static int check(uint8_t count) {
    for (now.check = 0; now.check < count; now.check++) {
        now.outputs = 0;
        if (!carry_out(now.trial->checks[now.check], NULL))
            return 0;
    }
    return now.differs ? failed(FAILED_DIFFERS, 0, READ, 0, NULL, 0) : 1;
}

int set_up(struct trial *trial, int is_finalist, struct trial *next) {
    uint8_t head[28];
    struct reply reply;
    begin(trial);
    now.next = next;
    now.is_finalist = is_finalist;
    if (!carry_out(trial->setup, NULL))
        return 0;
    put_u32(head, trial->number);
    put_u64(head + 4, now.build_ns);
    put_u64(head + 12, now.limit);
    put_u64(head + 20, now.private_bytes);
    record(BUILT, head, sizeof head, NULL, 0, 0);
    /* FINISH tells an error that the agent has kept, which would otherwise be the next trial's. */
    return check(1 + is_finalist) && carry_out(trial->time, &trial->launches) && ask(FINISH, NULL, 0, &reply);
}

void put_aside(const struct trial *trial) {
    uint8_t head[4];
    put_u32(head, trial->number);
    record(CHECKED, head, sizeof head, NULL, 0, 0);
    in_hand = NO_HANDLE;
}

int check_again(struct trial *trial) {
    begin(trial);
    now.is_finalist = 1;
    if (!check(2))
        return 0;
    put_aside(trial);
    return 1;
}

void clear(struct trial *trial) {
    if (peer.to < 0)
        return;
    tell_peer(&peer, RELEASE, NULL, 0, trial->clear.at, trial->clear.left);
    ask_peer(&peer, FINISH, NULL, 0, RUN_LIMIT_MS); /* and what this trial left unsaid is not the next one's error */
}

int time_trial(struct trial *trial, uint32_t round, double *time_ns) {
    uint8_t told[12 + 16 * SAMPLES];
    uint64_t host_ns, event_ns;
    double times[SAMPLES], best = best_ns(now.problem);
    uint32_t calls = 1;
    int samples = SAMPLES, i;
    if (!round) { /* the first call after the check is often slow */
        if (!run(trial->launches, 1, &host_ns, NULL))
            return 0;
        trial->call_ns = host_ns ? (double)host_ns : 1.0;
    }
    if (best && trial->call_ns > FAR_SLOWER * best && trial->call_ns > SAMPLE_NS)
        samples = 1;
    else if (trial->call_ns < SAMPLE_NS)
        calls = trial->call_ns * MOST_CALLS > SAMPLE_NS ? (uint32_t)(SAMPLE_NS / trial->call_ns) + 1 : MOST_CALLS;
    put_u32(told, trial->number);
    put_u32(told + 4, round);
    put_u32(told + 8, calls);
    for (i = 0; i < samples; i++) {
        if (!run(trial->launches, calls, &host_ns, &event_ns))
            return 0;
        put_u64(told + 12 + 16 * i, host_ns);
        put_u64(told + 20 + 16 * i, event_ns);
        times[i] = time_of(host_ns, event_ns, calls);
        if (host_ns)
            trial->call_ns = (double)host_ns / calls;
    }
    record(TIMED, told, 12 + 16 * (size_t)samples, NULL, 0, 0);
    in_hand = NO_HANDLE;
    *time_ns = median_of(times, (uint32_t)samples);
    return 1;
}

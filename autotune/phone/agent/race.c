/* The racing rule: one trial after the other for most of a problem's time, then the fastest in turns until it is up. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "choice.h"
#include "detached.h"
#include "outputs.h"
#include "protocol.h"
#include "trials.h"

#define SEARCH_SHARE 0.6  /* of a problem's time */
#define FAR_SLOWER 3.0    /* than the best: no place in the race, unless it is the default */
#define LEAST_ROUNDS 9    /* before those leave the race that are slower than the best by: */
#define LEAVING 1.1
#define MOST_FINALISTS 16
#define CHECKS 10         /* of the fastest, twice as many runs, after the race */
#define CHECKING_SHARE 0.1 /* of a problem's time that they may take */

static int has_name, has_note, has_device;

static void search(struct problem *problem, uint64_t deadline_ms) {
    struct trial *trial;
    while (spent_ms() < deadline_ms && (trial = built_ahead() ? built_ahead() : next_trial(problem, NULL))) {
        need_agent();
        if (set_up(trial, trial->kind == KIND_REFERENCE, next_trial(problem, trial)) &&
            time_trial(trial, 0, &trial->time_ns))
            trial->state = RIGHT;
        clear(trial);
    }
    stop_building();
}

/* Returns the number of the trials in the race: the default, then the fastest. */
static uint32_t choose_finalists(struct problem *problem, struct trial **finalists) {
    uint32_t i, j, count = 0, most = problem->finalists < MOST_FINALISTS ? problem->finalists : MOST_FINALISTS;
    double best = best_ns(problem);
    for (i = 0; i < problem->count && count < MOST_FINALISTS; i++)
        if (problem->trials[i].kind == KIND_DEFAULT && problem->trials[i].state == RIGHT)
            finalists[count++] = &problem->trials[i];
    while (count < most) {
        struct trial *next = NULL;
        for (i = 0; i < problem->count; i++) {
            struct trial *trial = &problem->trials[i];
            for (j = 0; j < count && finalists[j] != trial; j++)
                ;
            if (j == count && trial->state == RIGHT && trial->time_ns <= FAR_SLOWER * best &&
                (!next || trial->time_ns < next->time_ns))
                next = trial;
        }
        if (!next)
            break;
        finalists[count++] = next;
    }
    return count;
}

/* Sets up those that are still in. Returns how many these are. */
static uint32_t set_up_all(struct trial **finalists, uint32_t count) {
    uint32_t i, kept = 0;
    for (i = 0; i < count; i++) {
        if (need_agent() && kept) { /* the agent ended, and with it what was set up: begin anew */
            kept = 0;
            i = (uint32_t)-1;
            continue;
        }
        if (finalists[i]->state != RIGHT)
            continue; /* the agent holds nothing of it */
        if (set_up(finalists[i], 1, NULL)) {
            put_aside(finalists[i]);
            kept++;
        } else {
            clear(finalists[i]);
        }
    }
    return kept;
}

static double median(const struct trial *trial) { return median_of(trial->rounds, trial->round_count); }

static int has_left(const struct trial *trial, struct trial **finalists, uint32_t count) {
    double best = 0, of_one;
    uint32_t i;
    if (trial->state != RIGHT)
        return 1;
    if (trial->kind == KIND_DEFAULT || trial->round_count < LEAST_ROUNDS)
        return 0;
    for (i = 0; i < count; i++) {
        of_one = finalists[i]->state == RIGHT ? median(finalists[i]) : 0;
        if (of_one && (!best || of_one < best))
            best = of_one;
    }
    return median(trial) > LEAVING * best;
}

static void race(struct problem *problem, uint64_t deadline_ms, uint64_t ends_ms) {
    struct trial *finalists[MOST_FINALISTS], *fastest = NULL;
    uint32_t count = choose_finalists(problem, finalists), round = 0, turn, i, left = count;
    for (i = 0; i < count; i++)
        round = finalists[i]->round_count > round ? finalists[i]->round_count : round;
    if (!count || (round && spent_ms() >= deadline_ms))
        return;
    need_agent();
    set_up_all(finalists, count);
    for (; round < MOST_ROUNDS && left && (!round || spent_ms() < deadline_ms); round++) {
        for (left = turn = 0; turn < count; turn++) {
            struct trial *trial = finalists[(turn + round) % count];
            double time_ns;
            if (has_left(trial, finalists, count))
                continue;
            if (need_agent()) /* the last turn ended the agent */
                set_up_all(finalists, count);
            if (trial->state != RIGHT)
                continue;
            begin(trial);
            if (time_trial(trial, round + 1, &time_ns) && trial->round_count < MOST_ROUNDS)
                trial->rounds[trial->round_count++] = time_ns;
            left++;
        }
    }
    for (i = 0; i < count; i++)
        if (finalists[i]->state == RIGHT && (!fastest || median(finalists[i]) < median(fastest)))
            fastest = finalists[i];
    for (i = 0; i < CHECKS && fastest && (!i || spent_ms() < ends_ms) && !need_agent(); i++)
        if (!check_again(fastest))
            break;
    for (i = 0; i < count; i++)
        clear(finalists[i]);
}

static void solve_all(void) {
    uint64_t weights = 0, now_ms, share_ms;
    uint32_t i;
    for (i = 0; i < work.problem_count; i++)
        weights += work.problems[i].is_solved ? 0 : work.problems[i].weight;
    for (i = 0; i < work.problem_count; i++) {
        struct problem *problem = &work.problems[i];
        uint8_t head[4];
        if (problem->is_solved)
            continue;
        now_ms = spent_ms();
        share_ms = now_ms < work.budget_ms ? (work.budget_ms - now_ms) * problem->weight / weights : 0;
        search(problem, now_ms + (uint64_t)(SEARCH_SHARE * (double)share_ms));
        race(problem, now_ms + (uint64_t)((1 - CHECKING_SHARE) * (double)share_ms), now_ms + share_ms);
        weights -= problem->weight;
        put_u32(head, i);
        record(SOLVED, head, sizeof head, NULL, 0, 1);
        fprintf(stderr, "%u of %u problems, %u s\n", i + 1, work.problem_count, (unsigned)(spent_ms() / 1000));
    }
}

/* An earlier start's result */

static void recall_times(struct cursor payload, struct trial *trial) {
    uint32_t round = read_u32(&payload), calls = read_u32(&payload), count = 0;
    double times[MOST_ROUNDS], time_ns;
    for (; calls && payload.left >= 16 && count < MOST_ROUNDS; count++) {
        uint64_t host_ns = read_u64(&payload), event_ns = read_u64(&payload);
        times[count] = time_of(host_ns, event_ns, calls);
        trial->call_ns = (double)host_ns / calls;
    }
    if (!count)
        return;
    time_ns = median_of(times, count);
    in_hand = NO_HANDLE;
    if (round && trial->round_count < MOST_ROUNDS) {
        trial->rounds[trial->round_count++] = time_ns;
    } else if (!round) {
        trial->time_ns = time_ns;
        trial->state = RIGHT;
    }
}

static void recall(uint8_t kind, struct cursor payload) {
    struct cursor whole = payload;
    uint32_t number = read_u32(&payload);
    struct trial *trial = number < work.trial_count ? &work.trials[number] : NULL;
    if (kind == RESULT) {
        const uint8_t *name = whole.left < 24 + sizeof work.name ? NULL : whole.at + 24;
        has_name = name && !memcmp(name, work.name, sizeof work.name);
    } else if (kind == NOTE) {
        has_note = 1;
    } else if (kind == CHOSEN) {
        chosen[0] = number;
        chosen[1] = read_u32(&payload);
        has_device = 1;
    } else if (kind == TOLD) {
        read_u32(&payload);
        number = read_u32(&payload);
        note_driver(number, payload.at, payload.left);
    } else if (kind == SPENT) {
        spent_before_ms = read_u64(&whole);
    } else if (kind == SOLVED && number < work.problem_count) {
        work.problems[number].is_solved = 1;
    } else if (kind == BEGUN && trial) {
        in_hand = number;
    } else if (kind == DROPPED || kind == CHECKED) {
        in_hand = NO_HANDLE;
    } else if (kind == TIMED && trial) {
        recall_times(payload, trial);
    } else if (kind == FAILED && trial) {
        trial->state = OUT;
        in_hand = NO_HANDLE;
    } else if (kind == OUTPUT) {
        recall_output(whole);
    }
}

/* Records what the result is of, as far as an earlier start has not. */
static void begin_result(void) {
    static const char told[] = PROTOCOL_MAGIC PROTOCOL_DIGEST;
    uint8_t names[sizeof work.name + 8];
    struct timespec begun;
    if (has_name < 0) {
        clock_gettime(CLOCK_REALTIME, &begun);
        memcpy(names, work.name, sizeof work.name);
        put_u64(names + sizeof work.name, (uint64_t)begun.tv_sec * 1000000000u + (uint64_t)begun.tv_nsec);
        record(RESULT, told, sizeof told - 1, names, sizeof names, 0);
    }
    if (!has_note)
        record(NOTE, NULL, 0, work.note.at, work.note.left, 1);
}

static void interrupt(int number) {
    (void)number;
    is_interrupted = 1;
}

int work_alone(const char *path, const char *result) {
    struct sigaction action;
    uint32_t lost;
    memset(&action, 0, sizeof action);
    action.sa_handler = interrupt;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
    signal(SIGPIPE, SIG_IGN);
    if (!read_work(path))
        return 1;
    has_name = -1;
    if (!open_journal(result, recall) || !has_name) {
        fprintf(stderr, "autotune agent: %s cannot be used, or is the result of other work\n", result);
        return 1;
    }
    begin_result();
    lost = in_hand;
    if (lost != NO_HANDLE)
        fail_lost(lost);
    if (!has_device && !choose_device())
        return 1;
    solve_all();
    return 0;
}

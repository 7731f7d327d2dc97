/* A work file in memory: problems, their trials, and the sections of these. */
#ifndef AUTOTUNE_WORK_H
#define AUTOTUNE_WORK_H

#include "frames.h"

#define MOST_ROUNDS 60

enum state { UNTRIED, RIGHT, OUT };

struct trial {
    uint32_t number;
    uint8_t kind, algorithm;
    struct cursor place, setup, checks[2], time, clear;
    struct cursor launches;     /* payload of the RUN to be timed, once the trial was set up */
    enum state state;
    double time_ns;             /* by the search */
    double call_ns;             /* a call by the host's clock, for the length of samples */
    double rounds[MOST_ROUNDS]; /* times in the race */
    uint32_t round_count;
};

struct problem {
    uint32_t weight, finalists;
    uint64_t output_bytes, compared_bytes;
    uint8_t element;
    struct cursor *data;
    uint32_t data_count;
    struct trial *trials;
    uint32_t first, count;      /* trials among those of all problems */
    int is_solved;
};

struct work {
    uint8_t name[16];
    uint64_t budget_ms;
    struct cursor note, queries;
    struct problem *problems;
    struct trial *trials;
    uint32_t problem_count, trial_count;
};

extern struct work work;

/* Reads a work file, which stays in memory. Returns 0 after a message if it is none. */
int read_work(const char *path);

struct problem *problem_of(uint32_t trial);

/* Returns the time of a call by events, where these are possible. */
double time_of(uint64_t host_ns, uint64_t event_ns, uint32_t calls);

/* Returns the median of at most MOST_ROUNDS values, 0 of none. */
double median_of(const double *values, uint32_t count);

/* Returns the trial to be measured next, other than the one given; NULL when there is none. */
struct trial *next_trial(struct problem *problem, const struct trial *given);

/* Returns the time of the fastest trial that is right so far, 0 without one. */
double best_ns(const struct problem *problem);

#endif

#include "work.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "detached.h"
#include "protocol.h"

#define SPREAD_EVERY 4 /* every so many trials, one is not chosen by the times of others */
#define NEAR 32.0      /* of the sum of differences of places, each at most 255 */
#define FAR 512.0
#define CURIOSITY 0.25 /* how much faster, as a power of two, a trial far from all others is hoped to be */
#define FAILURE 3.0    /* how much slower a failed trial counts */

struct work work;

/* Returns memory with room for one more than `count`. */
static void *grown(void *memory, uint32_t count, size_t size) {
    if (count == 0)
        return malloc(size);
    return count & (count - 1) ? memory : realloc(memory, 2 * (size_t)count * size);
}

static int read_head(struct cursor *file) {
    static const char told[] = PROTOCOL_MAGIC PROTOCOL_DIGEST;
    struct cursor payload;
    const uint8_t *greeting, *name;
    uint8_t kind;
    if (!next_record(file, &kind, &payload) || kind != WORK)
        return 0;
    greeting = read_bytes(&payload, sizeof told - 1);
    name = read_bytes(&payload, sizeof work.name);
    work.budget_ms = read_u64(&payload);
    if (payload.is_short || memcmp(greeting, told, sizeof told - 1))
        return 0;
    memcpy(work.name, name, sizeof work.name);
    return next_record(file, &kind, &work.note) && kind == NOTE && next_record(file, &kind, &work.queries) &&
           kind == QUERIES;
}

/* Reads what follows a TRIAL, until its CLEAR. */
static int read_sections(struct cursor *file, struct trial *trial) {
    struct cursor *section = &trial->setup, payload;
    uint8_t kind = 0;
    section->at = file->at;
    for (;;) {
        const uint8_t *before = file->at;
        if (!next_record(file, &kind, &payload))
            return 0;
        if (kind != CHECK && kind != TIME && kind != CLEAR)
            continue;
        section->left = (size_t)(before - section->at);
        if (kind == CLEAR) {
            trial->clear = payload;
            return section == &trial->checks[1];
        }
        section = kind == TIME ? &trial->time : trial->checks[0].at ? &trial->checks[1] : &trial->checks[0];
        section->at = file->at;
    }
}

static int add_problem(struct cursor payload) {
    struct problem *added;
    work.problems = grown(work.problems, work.problem_count, sizeof *work.problems);
    if (!work.problems)
        return 0;
    added = &work.problems[work.problem_count++];
    memset(added, 0, sizeof *added);
    added->weight = read_u32(&payload);
    added->finalists = read_u32(&payload);
    added->output_bytes = read_u64(&payload);
    added->element = read_u8(&payload);
    added->compared_bytes = read_u64(&payload);
    added->first = work.trial_count;
    return !payload.is_short && added->weight && added->finalists;
}

static int add_data(struct cursor payload) {
    struct problem *of = work.problem_count ? &work.problems[work.problem_count - 1] : NULL;
    if (!of)
        return 0;
    of->data = grown(of->data, of->data_count, sizeof *of->data);
    if (!of->data)
        return 0;
    of->data[of->data_count++] = payload;
    return 1;
}

static int add_trial(struct cursor payload, struct cursor *file) {
    struct trial *added;
    work.trials = grown(work.trials, work.trial_count, sizeof *work.trials);
    if (!work.trials || !work.problem_count)
        return 0;
    added = &work.trials[work.trial_count];
    memset(added, 0, sizeof *added);
    added->number = work.trial_count++;
    added->kind = read_u8(&payload);
    added->algorithm = read_u8(&payload);
    added->place = payload;
    work.problems[work.problem_count - 1].count++;
    return !payload.is_short && read_sections(file, added);
}

static int read_all(struct cursor file) {
    struct cursor payload;
    uint8_t kind;
    uint32_t i;
    if (!read_head(&file))
        return 0;
    while (file.left) {
        if (!next_record(&file, &kind, &payload))
            return 0;
        if (kind == PROBLEM ? !add_problem(payload) : kind == DATA ? !add_data(payload) : kind != TRIAL ||
            !add_trial(payload, &file))
            return 0;
    }
    for (i = 0; i < work.problem_count; i++)
        work.problems[i].trials = work.trials + work.problems[i].first;
    return work.trial_count > 0;
}

int read_work(const char *path) {
    struct cursor file = {NULL, 0, 0};
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    off_t size = descriptor < 0 ? 0 : lseek(descriptor, 0, SEEK_END);
    if (size > 0) {
        file.at = mmap(NULL, (size_t)size, PROT_READ, MAP_PRIVATE, descriptor, 0);
        file.left = (size_t)size;
    }
    if (size > 0 && file.at != MAP_FAILED && read_all(file))
        return 1;
    fprintf(stderr, "autotune agent: %s is no work for this agent\n", path);
    return 0;
}

struct problem *problem_of(uint32_t trial) {
    uint32_t i = 0;
    while (trial >= work.problems[i].first + work.problems[i].count)
        i++;
    return &work.problems[i];
}

double best_ns(const struct problem *problem) {
    double best = 0;
    uint32_t i;
    for (i = 0; i < problem->count; i++)
        if (problem->trials[i].state == RIGHT && (!best || problem->trials[i].time_ns < best))
            best = problem->trials[i].time_ns;
    return best;
}

double time_of(uint64_t host_ns, uint64_t event_ns, uint32_t calls) {
    int is_possible = event_ns > 0 && (double)event_ns <= 1.05 * (double)host_ns + 2000.0 * calls;
    return (double)(is_possible ? event_ns : host_ns) / calls;
}

double median_of(const double *values, uint32_t count) {
    double sorted[MOST_ROUNDS];
    uint32_t i, j;
    for (i = 0; i < count; i++) {
        for (j = i; j > 0 && sorted[j - 1] > values[i]; j--)
            sorted[j] = sorted[j - 1];
        sorted[j] = values[i];
    }
    return count ? sorted[count / 2] : 0;
}

/* The binary logarithm of a positive number, linear between powers of two. */
static double logarithm(double value) {
    union {
        double value;
        uint64_t bits;
    } as;
    as.value = value;
    return (double)as.bits / 4503599627370496.0 - 1023.0;
}

static double distance(const struct trial *one, const struct trial *other) {
    double sum = 0;
    size_t i;
    for (i = 0; i < one->place.left && i < other->place.left; i++)
        sum += one->place.at[i] < other->place.at[i] ? other->place.at[i] - one->place.at[i]
                                                     : one->place.at[i] - other->place.at[i];
    return sum;
}

/* Returns the hoped for logarithm of a trial's time: the mean of those of its algorithm, the near ones first. */
static double hoped(const struct problem *problem, const struct trial *trial, double best) {
    double sum = 0, weights = 0, nearest = FAR;
    uint32_t i;
    for (i = 0; i < problem->count; i++) {
        const struct trial *other = &problem->trials[i];
        double far, weight;
        if (other->state == UNTRIED || other->algorithm != trial->algorithm)
            continue;
        far = distance(trial, other);
        weight = 1.0 / ((far + NEAR) * (far + NEAR));
        sum += weight * (other->state == RIGHT ? logarithm(other->time_ns) : best + FAILURE);
        weights += weight;
        nearest = far < nearest ? far : nearest;
    }
    return (weights ? sum / weights : best) - CURIOSITY * nearest / FAR;
}

struct trial *next_trial(struct problem *problem, const struct trial *given) {
    double best = best_ns(problem), least = 0;
    struct trial *found = NULL;
    uint32_t i, tried = 0;
    for (i = 0; i < problem->count; i++)
        tried += problem->trials[i].state != UNTRIED;
    best = best ? logarithm(best) : 0;
    for (i = 0; i < problem->count; i++) {
        struct trial *trial = &problem->trials[i];
        double value;
        if (trial->state != UNTRIED || trial == given)
            continue;
        if (trial->kind != KIND_OTHER || tried % SPREAD_EVERY == 0)
            return trial;
        value = hoped(problem, trial, best);
        if (!found || value < least) {
            least = value;
            found = trial;
        }
    }
    return found;
}

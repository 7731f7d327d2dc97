#include "outputs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "detached.h"
#include "protocol.h"

#define MOST_DIFFERING 4 /* outputs of one trial, check and number that come along */
#define MUST_SHARE 3     /* times the bytes of a problem's outputs, for those that must come along */
#define DIFFERENT 0.0025 /* of the sum of squares: 5% of the norm */

struct kept {
    uint64_t digest;
    uint32_t problem, trial;
    uint8_t check, number;
};

static struct kept *kept;
static uint32_t kept_count;
static uint64_t kept_bytes;
static uint32_t bytes_of; /* the problem that `kept_bytes` and `reference` are of */
static uint8_t *reference;

/* The digest of Fowler, Noll and Vo, of words instead of bytes. */
static uint64_t digest_of(const uint8_t *at, size_t bytes) {
    uint64_t digest = 14695981039346656037u, word;
    for (; bytes >= 8; bytes -= 8, at += 8) {
        memcpy(&word, at, 8);
        digest = (digest ^ word) * 1099511628211u;
        digest ^= digest >> 32;
    }
    while (bytes--)
        digest = (digest ^ *at++) * 1099511628211u;
    return digest;
}

static int is_kept(const struct kept *one) {
    uint32_t i;
    for (i = 0; i < kept_count; i++)
        if (kept[i].digest == one->digest && kept[i].problem == one->problem && kept[i].check == one->check &&
            kept[i].number == one->number)
            return 1;
    return 0;
}

/* Returns whether an output is too many: of its trial, or of all. */
static int is_too_much(const struct kept *one, size_t bytes, uint64_t most) {
    uint32_t i, count = 0;
    for (i = 0; i < kept_count; i++)
        count += kept[i].trial == one->trial && kept[i].check == one->check && kept[i].number == one->number;
    return count >= MOST_DIFFERING || kept_bytes + bytes > most;
}

static void note(const struct trial *trial, const struct kept *one, const uint8_t *at, size_t bytes) {
    const struct problem *problem = problem_of(trial->number);
    struct kept *grown = realloc(kept, (kept_count + 1) * sizeof *kept);
    if (grown) {
        kept = grown;
        kept[kept_count++] = *one;
    }
    if (bytes_of != one->problem + 1) {
        bytes_of = one->problem + 1;
        kept_bytes = 0;
        free(reference);
        reference = NULL;
    }
    kept_bytes += bytes;
    if (trial->kind <= KIND_DEFAULT && !one->check && !one->number && bytes >= problem->compared_bytes && !reference) {
        reference = malloc((size_t)problem->compared_bytes + 1);
        if (reference)
            memcpy(reference, at, (size_t)problem->compared_bytes);
    }
}

static double half_value(uint16_t half) {
    double value = (half & 0x3ff) + (half & 0x7c00 ? 0x400 : 0);
    int exponent = (half >> 10 & 31) ? (half >> 10 & 31) - 25 : -24;
    if ((half & 0x7c00) == 0x7c00)
        value = half & 0x3ff ? NAN : 1e300;
    for (; exponent < 0; exponent++)
        value /= 2;
    for (; exponent > 0; exponent--)
        value *= 2;
    return half & 0x8000 ? -value : value;
}

static double element(uint8_t kind, const uint8_t *at) {
    float single;
    double wide;
    int32_t whole;
    uint16_t half;
    switch (kind) {
    case ELEMENT_FLOAT32: memcpy(&single, at, 4); return single;
    case ELEMENT_FLOAT16: memcpy(&half, at, 2); return half_value(half);
    case ELEMENT_FLOAT64: memcpy(&wide, at, 8); return wide;
    case ELEMENT_INT32: memcpy(&whole, at, 4); return whole;
    default: return (int8_t)*at;
    }
}

static int is_far(const struct problem *problem, const uint8_t *at) {
    static const size_t sizes[] = {4, 2, 8, 1, 4};
    double differences = 0, squares = 0;
    size_t i, bytes = (size_t)problem->compared_bytes;
    if (problem->element >= ELEMENT_OTHER)
        return memcmp(at, reference, bytes) != 0;
    for (i = 0; i + sizes[problem->element] <= bytes; i += sizes[problem->element]) {
        double one = element(problem->element, at + i), other = element(problem->element, reference + i);
        if (one == other || (one != one && other != other))
            continue;
        differences += (one - other) * (one - other);
        squares += other * other;
    }
    return !(differences <= DIFFERENT * squares) && differences != 0;
}

int keep_output(const struct trial *trial, uint8_t check, uint8_t number, const uint8_t *at, size_t bytes, int must) {
    const struct problem *problem = problem_of(trial->number);
    uint8_t head[14];
    struct kept one;
    uint64_t most = problem->output_bytes;
    one.digest = digest_of(at, bytes);
    one.problem = (uint32_t)(problem - work.problems);
    one.trial = trial->number;
    one.check = check;
    one.number = number;
    put_u32(head, trial->number);
    head[4] = check;
    head[5] = number;
    put_u64(head + 6, one.digest);
    if (bytes_of != one.problem + 1)
        kept_bytes = 0;
    if (trial->kind <= KIND_DEFAULT || most > UINT64_MAX / MUST_SHARE)
        most = UINT64_MAX - kept_bytes; /* what others are compared with */
    else if (must)
        most *= MUST_SHARE;
    if (is_kept(&one) || is_too_much(&one, bytes, most)) {
        record(OUTPUT, head, sizeof head, NULL, 0, 0);
    } else {
        record(OUTPUT, head, sizeof head, at, bytes, 0);
        note(trial, &one, at, bytes);
    }
    return check || number || !reference || bytes < problem->compared_bytes || bytes_of != one.problem + 1 ||
           !is_far(problem, at);
}

void recall_output(struct cursor payload) {
    struct kept one;
    uint32_t trial = read_u32(&payload);
    one.check = read_u8(&payload);
    one.number = read_u8(&payload);
    one.digest = read_u64(&payload);
    if (payload.is_short || trial >= work.trial_count || !payload.left)
        return;
    one.problem = (uint32_t)(problem_of(trial) - work.problems);
    one.trial = trial;
    note(&work.trials[trial], &one, payload.at, payload.left);
}

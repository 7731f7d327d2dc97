"""Templates for the C text of a header; `${find}`, `${prefix}` and `${device}` begin or end its names."""

from string import Template

MATCH = """\
#ifndef AUTOTUNE_MATCH
#define AUTOTUNE_MATCH 1
/* What an answer rests on. */
enum autotune_match {
    AUTOTUNE_INVALID = 0,   /* these sizes are none: nothing was written */
    AUTOTUNE_EXACT = 1,     /* this problem was measured on this device */
    AUTOTUNE_PREDICTED = 2, /* chosen by size, by a model of what was measured on this device */
    AUTOTUNE_NEAREST = 3,   /* the nearest measured one whose configuration is valid for this one too */
    AUTOTUNE_SIBLING = 4,   /* what another device here of the same architecture would use */
    AUTOTUNE_VENDOR = 5,    /* what another device here of the same maker would use */
    AUTOTUNE_DEFAULT = 6    /* nothing measured serves: chosen by rule from the sizes and the device's limits */
};
#endif
"""

TYPES = Template("""\
#ifndef ${macro}_TYPES_CHECKSUM
#define ${macro}_TYPES_CHECKSUM ${checksum}
${text}#elif ${macro}_TYPES_CHECKSUM != ${checksum}
#error "these headers come from different versions of autotune: export them again"
#endif
""")

SHARED = Template("""\
enum ${prefix}_algorithm {
${algorithms}
};

/* Parameters and types that are words; NO_WORD where an algorithm has no such parameter. */
enum ${prefix}_word {
    ${macro}_NO_WORD = 0,
${words}
};

struct ${prefix}_problem {
${fields}
};

/* Parameters that the algorithm does not have are 0. */
struct ${prefix}_configuration {
    enum ${prefix}_algorithm algorithm;
${parameters}
};

struct ${prefix}_entry {
    struct ${prefix}_problem problem;
    struct ${prefix}_configuration configuration;
};

/* What may become the default, with what is known of it to estimate its time. */
struct ${prefix}_candidate {
    struct ${prefix}_configuration configuration;
${numbers}
};

typedef int ${prefix}_check(const struct ${prefix}_problem *, const struct ${prefix}_configuration *);

/* Fills in what is 0; returns 0 for sizes that are none. */
static inline int ${prefix}_complete(struct ${prefix}_problem *p) {
${complete}}

static inline int ${prefix}_is_same(const struct ${prefix}_problem *a, const struct ${prefix}_problem *b) {
    return ${same};
}

/* Tables are searched by it. */
static inline unsigned ${prefix}_hash(const struct ${prefix}_problem *p) {
    unsigned long long hash = 0;
${hash}
    return (unsigned)(hash >> 32);
}

static inline int ${prefix}_is_comparable(const struct ${prefix}_problem *a, const struct ${prefix}_problem *b) {
    (void)a, (void)b; /* of problems of one kind */
    return ${same_kind};
}

static inline double ${prefix}_ratio(long long a, long long b) {
    return a > b ? (double)a / (double)b : (double)b / (double)a;
}

static inline double ${prefix}_distance(const struct ${prefix}_problem *a, const struct ${prefix}_problem *b) {
    double distance = 1.0;
${ratios}
    return distance;
}
""")

VALID = Template("""\
/* ${title} */

/* Whether a configuration of a table may be used for a problem on this device. */
static inline int ${prefix}_is_valid_${device}(
        const struct ${prefix}_problem *p, const struct ${prefix}_configuration *c) {
    (void)p;
    switch (c->algorithm) {
${cases}    }
    return 0;
}
""")

# An exact match; then a prediction; else the nearest valid entry, the first of equally near ones.
SEARCH = Template("""\
/* What was measured on ${device} tells a device that may be another; AUTOTUNE_INVALID when it tells nothing, and then
   `declined` where the default is known to do better. */
static inline enum autotune_match ${prefix}_search_${device}(
        const struct ${prefix}_problem *p, ${prefix}_check *is_valid, long long compute_units, int is_own,
        struct ${prefix}_configuration *configuration, int *declined) {
${table}    (void)compute_units;
    (void)is_own;
    *declined = 0;
${exact}${predicted}${nearest}    return AUTOTUNE_INVALID;
}
""")

TABLE = Template("""\
    static const struct ${prefix}_entry table[] = {
${entries}
    };
    /* Numbers of entries, from 1 on. */
    static const int slots[] = {
        ${slots}
    };
    unsigned slot;
    int number, best = -1;
    double best_distance = 0.0, farthest = ${factor}; /* where the default by rule was not beaten by a farther one */
""")

EXACT = Template("""\
    for (slot = ${prefix}_hash(p) & ${last_slot}U; slots[slot]; slot = (slot + 1) & ${last_slot}U) {
        const struct ${prefix}_entry *const entry = &table[slots[slot] - 1];
        if (!${prefix}_is_same(&entry->problem, p) || !is_valid(p, &entry->configuration)) continue;
        *configuration = entry->configuration;
        return AUTOTUNE_EXACT;
    }
""")

NEAREST = Template("""\
${far}    for (number = 0; number < ${count}; number++) {
        double distance;
        if (!${prefix}_is_comparable(&table[number].problem, p)) continue;
        distance = ${prefix}_distance(&table[number].problem, p);
        if (distance > farthest) continue;
        if (best >= 0 && distance >= best_distance) continue;
        if (!is_valid(p, &table[number].configuration)) continue;
        best = number;
        best_distance = distance;
    }
    if (best >= 0) {
        *configuration = table[best].configuration;
        return AUTOTUNE_NEAREST;
    }
""")

DEVICE = Template("""\
/* The time of the busiest compute unit; it only ranks. */
static inline long long ${prefix}_estimate_${device}(
        const struct ${prefix}_problem *p, const struct ${prefix}_candidate *c) {
${meanings}    (void)p;
    return ${estimate};
}

/* The candidate of the least estimate that is valid, of equal ones the first; else the plainest configuration. */
static inline void ${prefix}_default_${device}(
        const struct ${prefix}_problem *p, struct ${prefix}_configuration *configuration) {
    static const struct ${prefix}_configuration baseline = ${baseline};
${candidates}}

/* What to use for any problem; fields that are 0 are filled in. */
static inline enum autotune_match ${find}_problem_${device}(
        const struct ${prefix}_problem *problem, struct ${prefix}_configuration *configuration) {
    struct ${prefix}_problem p = *problem;
    if (!${prefix}_complete(&p)) return AUTOTUNE_INVALID;
${searches}    ${prefix}_default_${device}(&p, configuration);
    return AUTOTUNE_DEFAULT;
}

/* The same for the plain problem of these sizes. */
static inline enum autotune_match ${find}_${device}(
        ${arguments}, struct ${prefix}_configuration *configuration) {
    const struct ${prefix}_problem problem = {${plain_problem}};
    return ${find}_problem_${device}(&problem, configuration);
}
""")

CANDIDATES = Template("""\
    static const struct ${prefix}_candidate candidates[] = {
${candidates}
    };
    long long estimate, least = -1;
    int number;
    *configuration = baseline;
    for (number = 0; number < ${count}; number++) {
        estimate = ${prefix}_estimate_${device}(p, &candidates[number]);
        if (estimate < 0 || (least >= 0 && estimate >= least)) continue;
        if (!${prefix}_is_valid_${device}(p, &candidates[number].configuration)) continue;
        least = estimate;
        *configuration = candidates[number].configuration;
    }
""")

OWN_SEARCH = Template("""\
    {
        int ${variables};
${steps}    }
""")

OWN_STEP = Template("""\
        const enum autotune_match match = ${prefix}_search_${device}(
            &p, ${prefix}_is_valid_${device}, ${units}LL, 1, configuration, &declined);
        if (match) return match;
""")

RELATIVE_STEP = Template("""\
        if (${declined}${prefix}_search_${other}(
                &p, ${prefix}_is_valid_${device}, ${units}LL, 0, configuration, &theirs)) return AUTOTUNE_${match};
""")

PLANNER = Template("""\
static void ${name}(
        const struct ${prefix}_problem *p, const struct ${prefix}_configuration *c, struct autotune_plan *plan) {
${body}}
""")

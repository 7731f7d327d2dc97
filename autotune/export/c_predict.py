"""C code of predictors, which computes exactly the numbers of `autotune.lookup.predictor`."""

from collections.abc import Callable, Iterable, Sequence
from string import Template

from autotune.lookup.predictor import Costs, Predictor
from autotune.model.configuration import Configuration

# Shared by all devices; one for each family.
SHARED = Template("""\
#ifndef ${macro}_PREDICTS
#define ${macro}_PREDICTS 1
#include <math.h> /* link with -lm */

/* The number of the least, of equal ones the first. */
static inline int ${prefix}_least(const double *scores, int count) {
    double least = scores[0];
    int best = 0, number;
    for (number = 1; number < count; number++) {
        const int is_less = scores[number] < least;
        best = is_less ? number : best;
        least = is_less ? scores[number] : least;
    }
    return best;
}
#endif
""")

# A score for each configuration: the least is the best. Sums must round as in Python: by default GCC contracts
# multiplications and additions into fused ones, but not with -std=c99; Clang does so with -std=c99 too.
_FUNCTION = Template("""\
static inline void ${name}(const struct ${prefix}_problem *p, long long compute_units, double *scores) {
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#endif
${body}}
""")

# Whatever does not depend on the size is computed at export, so that the compiler knows the divisors. (n + 1/2) / d is
# never nearer than 1 / 2d to a whole number, so below 2^51 rounding cannot carry it across one: the numbers of rounds
# and waves are exact without a division.
_COSTS = Template("""\
    static const struct { int groups, depth, base; double one_at_once, weights[3]; } terms[] = {
${terms}
    };
    const double bytes = ${bytes}, outputs = ${outputs};
    const double one_unit = 1.0 / (double)(compute_units > 1 ? compute_units : 1);
    const long long depth = ${depth};
    const long long parts[] = {
${parts}
    };
    const long long groups[] = {
${groups}
    };
    const double depths[] = {
${depths}
    };
    const double bases[] = {
${bases}
    };
    double rounds[${count}];
    int number;
    for (number = 0; number < ${count}; number++)
        rounds[number] = (double)(long long)(((double)groups[number] - 0.5) * one_unit) + 1.0;
    for (number = 0; number < ${choices}; number++) {
        const double *const weights = terms[number].weights, round = rounds[terms[number].groups];
        const double wave = (double)(long long)((round - 0.5) * terms[number].one_at_once) + 1.0;
        const double own_depth = depths[terms[number].depth];
        scores[number] = bases[terms[number].base] + weights[0] * round + weights[1] * (round * own_depth)
            + weights[2] * (wave * own_depth);
    }
""")

_USE = Template("""\
    if (${condition}) {
        static const struct ${prefix}_configuration choices[] = {
${choices}
        };
        /* What each asks of multiples, on any device: at ragged sizes many are out by that alone. */
        static const int needs[] = {${needs}};
        const int holds[] = {
${holds}
        };
        double scores[${count}];
        int tried, best_choice;
        ${name}(p, compute_units, scores);
        for (tried = 0; tried < ${count}; tried++)
            if (!holds[needs[tried]]) scores[tried] = HUGE_VAL;
        for (tried = 0; tried < ${count}; tried++) {
            best_choice = ${prefix}_least(scores, ${count});
            if (is_valid(p, &choices[best_choice])) {
                *configuration = choices[best_choice];
                return AUTOTUNE_PREDICTED;
            }
            scores[best_choice] = HUGE_VAL;
        }
    }
""")

_DECLINE = Template("""\
    if (${condition}) {
        *declined = 1;
        return AUTOTUNE_INVALID;
    }
""")


def shared(prefix: str, macro: str) -> str:
    return SHARED.substitute(prefix=prefix, macro=macro)


def ranking_function(predictor: Predictor, name: str, prefix: str, sizes: Sequence[str], bytes_moved: str) -> str:
    """Return a C function `name` that scores the predictor's configurations for ``*p``.

    `sizes` are fields of the problem, `bytes_moved` is a C expression of type double.
    """
    body = _costs(predictor.model, sizes, bytes_moved)
    return _FUNCTION.substitute(name=name, prefix=prefix, body=body)


def use(
    predictor: Predictor,
    name: str,
    prefix: str,
    condition: str,
    configuration: Callable[[Configuration], str],
    multiples: Callable[[Configuration], str],
) -> str:
    """Return C code that uses the predictor for problems that meet a condition.

    The callables return C: `configuration` an initializer, `multiples` the condition under which a configuration's
    loads and tiles divide the problem evenly.
    """
    needed = [multiples(c) for c in predictor.configurations]
    distinct = list(dict.fromkeys(needed))
    return _USE.substitute(
        name=name,
        prefix=prefix,
        condition=condition,
        choices=",\n".join(f"            {configuration(c)}" for c in predictor.configurations),
        needs=", ".join(str(distinct.index(text)) for text in needed),
        holds=",\n".join(f"            {text}" for text in distinct),
        count=len(predictor.configurations),
    )


def decline(condition: str) -> str:
    """Return C code that leaves the answer to the default."""
    return _DECLINE.substitute(condition=condition)


def _costs(costs: Costs, sizes: Sequence[str], bytes_moved: str) -> str:
    plan = costs.plan
    fields = [f"p->{name}" for name in sizes]
    unshared = [field for axis, field in enumerate(fields) if axis not in plan.shared]
    parts = [_rounded_up(fields[axis], part) for axis, part in plan.parts]
    return _COSTS.substitute(
        terms=_rows(
            f"{{{groups}, {depth}, {base}, {1.0 / at_once!r}, {_numbers(weights)}}}"
            for groups, at_once, depth, base, *weights in plan.rows
        ),
        bytes=bytes_moved,
        outputs=" * ".join(f"(double){fields[axis]}" for axis in plan.shared) or "1.0",
        depth=" * ".join(unshared) or "1",
        parts=_rows([*parts, "1"]),
        groups=_rows(f"parts[{i}] * parts[{j}] * parts[{k}] * {split}LL" for i, j, k, split in plan.groups),
        depths=_rows(f"(double)({_rounded_up('depth', share)} * {step}LL)" for share, step in plan.depths),
        bases=_rows(f"{one!r} + {u!r} * bytes + {v!r} * outputs" for one, u, v in plan.bases),
        count=len(plan.groups),
        choices=len(plan.rows),
    )


def _rounded_up(number: str, part: int) -> str:
    """Return a C expression for `number` divided by `part`, rounded up."""
    return f"({number} + {part - 1}LL) / {part}LL"


def _rows(rows: Iterable[str]) -> str:
    """Join rows, each a complete initializer with any braces."""
    return ",\n".join(f"        {row}" for row in rows)


def _numbers(values: Sequence[float]) -> str:
    return f"{{{', '.join(repr(float(value)) for value in values)}}}"

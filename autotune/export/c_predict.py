"""C code of predictors: what `autotune.lookup.predictor` does, number for number.

Distances are summed up in long double, since Python's are right to the last bit and equal ones must stay equal.
"""

from collections.abc import Callable, Iterable, Sequence
from math import log2
from string import Template

from autotune.lookup.predictor import Costs, Linear, Neighbours, Predictor, Tree

# What all devices share; of a family. `order` gets the numbers of the configurations, best first.
SHARED = Template("""\
#ifndef ${macro}_PREDICTS
#define ${macro}_PREDICTS 1
#include <math.h> /* link with -lm */

static inline void ${prefix}_logarithms(const struct ${prefix}_problem *p, double *logs) {
${logs}}

/* Equal ones stay in their order. */
static inline void ${prefix}_sort(const double *values, int count, int *order) {
    int number, place;
    for (number = 0; number < count; number++) {
        for (place = number; place > 0 && values[order[place - 1]] > values[number]; place--)
            order[place] = order[place - 1];
        order[place] = number;
    }
}
#endif
""")

_FUNCTION = Template("""\
static inline void ${name}(const struct ${prefix}_problem *p, long long compute_units, int *order) {
${body}}
""")

_TREE = Template("""\
    static const struct { double exponents[${axes}], threshold; int below, above, leaf; } nodes[] = {
${nodes}
    };
    static const int rankings[][${choices}] = {
${rankings}
    };
    double logs[${axes}], value;
    int node = 0, axis, place;
    (void)compute_units;
    ${prefix}_logarithms(p, logs);
    while (nodes[node].leaf < 0) {
        value = 0.0;
        for (axis = 0; axis < ${axes}; axis++)
            if (nodes[node].exponents[axis] != 0.0) value += nodes[node].exponents[axis] * logs[axis];
        node = value <= nodes[node].threshold ? nodes[node].below : nodes[node].above;
    }
    for (place = 0; place < ${choices}; place++) order[place] = rankings[nodes[node].leaf][place];
""")

_NEIGHBOURS = Template("""\
    static const double places[][${axes}] = {
${places}
    };
    static const double losses[][${choices}] = {
${losses}
    };
    double here[${axes}], distances[${points}], expected[${choices}] = {0.0};
    char is_taken[${points}] = {0};
    int point, axis, choice, count;
    (void)compute_units;
    ${prefix}_logarithms(p, here);
    for (point = 0; point < ${points}; point++) {
        long double sum = 0.0L;
        for (axis = 0; axis < ${axes}; axis++) {
            const long double apart = (long double)(places[point][axis] - here[axis]);
            sum += apart * apart;
        }
        distances[point] = (double)sqrtl(sum);
    }
    for (count = 0; count < ${count}; count++) {
        int nearest = -1;
        double weight;
        for (point = 0; point < ${points}; point++)
            if (!is_taken[point] && (nearest < 0 || distances[point] < distances[nearest])) nearest = point;
        is_taken[nearest] = 1;
        weight = 1.0 / (0.05 + distances[nearest]);
        for (choice = 0; choice < ${choices}; choice++) expected[choice] += weight * losses[nearest][choice];
    }
    ${prefix}_sort(expected, ${choices}, order);
""")

_LINEAR = Template("""\
    static const struct { long long tile[${axes}], split; double weights[6]; } terms[] = {
${terms}
    };
    const long long sizes[${axes}] = {${sizes}};
    const double operations = log2(${operations}), bytes = log2(${bytes});
    const double units = (double)(compute_units > 1 ? compute_units : 1);
    double scores[${choices}];
    int number, axis;
    for (number = 0; number < ${choices}; number++) {
        const double *const weights = terms[number].weights;
        double groups = (double)terms[number].split, whole = 1.0, score = weights[0];
        for (axis = 0; axis < ${axes}; axis++) {
            const long long part = terms[number].tile[axis];
            const long long parts = part ? (sizes[axis] + part - 1) / part : 1;
            if (!part) continue;
            groups *= (double)parts;
            whole *= (double)(parts * part) / (double)sizes[axis];
        }
        score += weights[1] * operations;
        score += weights[2] * bytes;
        score += weights[3] * log2(floor((groups + units - 1.0) / units));
        score += weights[4] * log2(groups);
        score += weights[5] * log2(whole);
        scores[number] = score;
    }
    ${prefix}_sort(scores, ${choices}, order);
""")

_COSTS = Template("""\
    static const struct { long long tile[${axes}], split, step, at_once; double weights[6]; } terms[] = {
${terms}
    };
    const long long sizes[${axes}] = {${sizes}};
    const double bytes = ${bytes};
    const double units = (double)(compute_units > 1 ? compute_units : 1);
    double times[${choices}];
    int number, axis;
    for (number = 0; number < ${choices}; number++) {
        const double *const weights = terms[number].weights, steps = (double)terms[number].step;
        const double share = steps * (double)terms[number].split, at_once = units * (double)terms[number].at_once;
        double groups = (double)terms[number].split, outputs = 1.0, depth = 1.0, rounds, waves;
        for (axis = 0; axis < ${axes}; axis++) {
            const long long part = terms[number].tile[axis];
            if (part) {
                outputs *= (double)sizes[axis];
                groups *= (double)((sizes[axis] + part - 1) / part);
            } else {
                depth *= (double)sizes[axis];
            }
        }
        depth = floor((depth + share - 1.0) / share) * steps;
        rounds = floor((groups + units - 1.0) / units);
        waves = floor((groups + at_once - 1.0) / at_once);
        times[number] = weights[0] + weights[1] * bytes + weights[2] * outputs + weights[3] * rounds
            + weights[4] * (rounds * depth) + weights[5] * (waves * depth);
    }
    ${prefix}_sort(times, ${choices}, order);
""")

_USE = Template("""\
    if (${condition}) {
        static const struct ${prefix}_configuration choices[] = {
${choices}
        };
        int order[${count}], place;
        ${name}(p, compute_units, order);
        for (place = 0; place < ${count}; place++) {
            if (!is_valid(p, &choices[order[place]])) continue;
            *configuration = choices[order[place]];
            return AUTOTUNE_PREDICTED;
        }
    }
""")

_DECLINE = Template("""\
    if (${condition}) {
        *declined = 1;
        return AUTOTUNE_INVALID;
    }
""")


def shared(prefix: str, macro: str, sizes: Sequence[str]) -> str:
    logs = "".join(f"    logs[{axis}] = log2((double)p->{name});\n" for axis, name in enumerate(sizes))
    return SHARED.substitute(prefix=prefix, macro=macro, logs=logs)


def ranking_function(
    predictor: Predictor, name: str, prefix: str, sizes: Sequence[str], operations: str, bytes_moved: str
) -> str:
    """A function that orders the predictor's configurations for ``*p``; the last two are C expressions of doubles."""
    known = {"prefix": prefix, "axes": len(sizes), "choices": len(predictor.configurations)}
    match predictor.model:
        case Tree() as tree:
            body = _tree(tree, known)
        case Neighbours() as neighbours:
            body = _NEIGHBOURS.substitute(
                known,
                places=_rows(_numbers([log2(size) for size in point.sizes]) for point in neighbours.points),
                losses=_rows(_numbers(point.losses) for point in neighbours.points),
                points=len(neighbours.points),
                count=min(neighbours.count, len(neighbours.points)),
            )
        case Linear() as linear:
            body = _LINEAR.substitute(
                known,
                terms=_rows(
                    f"{{{_whole(term.tile)}, {term.split}LL, {_numbers(term.weights)}}}" for term in linear.terms
                ),
                sizes=", ".join(f"p->{size}" for size in sizes),
                operations=operations,
                bytes=bytes_moved,
            )
        case Costs() as costs:
            body = _COSTS.substitute(
                known,
                terms=_rows(
                    f"{{{_whole(t.tile)}, {_listed((t.split, t.step, t.at_once))}, {_numbers(t.weights)}}}"
                    for t in costs.terms
                ),
                sizes=", ".join(f"p->{size}" for size in sizes),
                bytes=bytes_moved,
            )
    return _FUNCTION.substitute(name=name, prefix=prefix, body=body)


def use(predictor: Predictor, name: str, prefix: str, condition: str, configuration: Callable[..., str]) -> str:
    """What asks the predictor, where it is favoured, for problems that meet a condition."""
    return _USE.substitute(
        name=name,
        prefix=prefix,
        condition=condition,
        choices=",\n".join(f"            {configuration(c)}" for c in predictor.configurations),
        count=len(predictor.configurations),
    )


def decline(condition: str) -> str:
    """What leaves the answer to the default."""
    return _DECLINE.substitute(condition=condition)


def _tree(tree: Tree, known: dict[str, object]) -> str:
    nodes: list[str] = []
    rankings: list[str] = []
    axes = known["axes"]
    assert isinstance(axes, int)
    for node in tree.nodes:
        leaf = len(rankings) if node.ranking else -1
        if node.ranking:
            rankings.append(", ".join(map(str, node.ranking)))
        exponents = node.exponents or (0,) * axes
        nodes.append(f"{{{_numbers(exponents)}, {float(node.threshold)!r}, {node.below}, {node.above}, {leaf}}}")
    return _TREE.substitute(known, nodes=_rows(nodes), rankings=_rows(f"{{{r}}}" for r in rankings))


def _rows(rows: Iterable[str]) -> str:
    """Each a whole initializer, braces included."""
    return ",\n".join(f"        {row}" for row in rows)


def _numbers(values: Sequence[float]) -> str:
    return f"{{{', '.join(repr(float(value)) for value in values)}}}"


def _whole(values: Sequence[int]) -> str:
    return f"{{{_listed(values)}}}"


def _listed(values: Sequence[int]) -> str:
    return ", ".join(f"{value}LL" for value in values)

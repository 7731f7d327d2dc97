/* Random numbers from a state of NumPy's PCG64, the same as NumPy draws from it. */
#include "objects.h"
#include "protocol.h"

#define BAND_BYTES 1048576

struct wide {
    uint64_t low, high;
};

struct generator {
    struct wide state, increment;
    uint32_t half;
    int has_half;
};

static struct wide product(uint64_t a, uint64_t b) {
    uint64_t a_low = (uint32_t)a, a_high = a >> 32, b_low = (uint32_t)b, b_high = b >> 32;
    uint64_t low = a_low * b_low, one = a_high * b_low, other = a_low * b_high;
    uint64_t middle = (low >> 32) + (uint32_t)one + (uint32_t)other;
    struct wide found;
    found.low = (uint32_t)low | middle << 32;
    found.high = a_high * b_high + (one >> 32) + (other >> 32) + (middle >> 32);
    return found;
}

/* PCG64 of O'Neill (2014): a linear congruential generator of 128 bits, whose halves are mixed and rotated. */
static uint64_t next_u64(struct generator *from) {
    static const struct wide factor = {4865540595714422341u, 2549297995355413924u};
    struct wide *state = &from->state, next = product(state->low, factor.low);
    uint64_t mixed;
    unsigned turn;
    next.high += state->low * factor.high + state->high * factor.low;
    state->low = next.low + from->increment.low;
    state->high = next.high + from->increment.high + (state->low < next.low);
    mixed = state->high ^ state->low;
    turn = (unsigned)(state->high >> 58);
    return turn ? mixed >> turn | mixed << (64 - turn) : mixed;
}

static uint32_t next_u32(struct generator *from) {
    uint64_t both;
    if (from->has_half) {
        from->has_half = 0;
        return from->half;
    }
    both = next_u64(from);
    from->has_half = 1;
    from->half = (uint32_t)(both >> 32);
    return (uint32_t)both;
}

static float next_float(struct generator *from) {
    return (float)(next_u32(from) >> 8) * (1.0f / 16777216.0f) * 2.0f - 1.0f;
}

/* Rounds to the nearest half-precision number, to even in the middle; for numbers in [-1, 1). */
static uint16_t half_of(float value) {
    union {
        float value;
        uint32_t bits;
    } as;
    uint32_t sign, exponent, fraction, shift, rest, middle, rounded;
    as.value = value;
    sign = as.bits >> 16 & 0x8000u;
    exponent = as.bits >> 23 & 0xffu;
    fraction = (as.bits & 0x7fffffu) | 0x800000u;
    if (exponent < 102)
        return (uint16_t)sign; /* at most half of the least */
    shift = exponent > 112 ? 13 : 126 - exponent;
    rounded = (exponent > 112 ? (exponent - 113) << 10 : 0) + (fraction >> shift);
    rest = fraction & ((1u << shift) - 1);
    middle = 1u << (shift - 1);
    rounded += rest > middle || (rest == middle && rounded & 1);
    return (uint16_t)(sign | rounded);
}

static void draw(struct generator *from, uint8_t kind, uint8_t *into, size_t count) {
    uint32_t two = 0;
    size_t i;
    for (i = 0; i < count; i++) {
        if (kind == DRAW_FLOAT32) {
            union {
                float value;
                uint32_t bits;
            } as;
            as.value = next_float(from);
            put_u32(into + 4 * i, as.bits);
        } else if (kind == DRAW_FLOAT16) {
            uint16_t half = half_of(next_float(from));
            into[2 * i] = (uint8_t)half;
            into[2 * i + 1] = (uint8_t)(half >> 8);
        } else { /* the upper byte of each half of a number; bands have an even size */
            two = i % 2 ? two >> 16 : next_u32(from);
            into[i] = (uint8_t)((two >> 8 & 0xff) - 128);
        }
    }
}

void do_draw(struct cursor *payload) {
    static const size_t sizes[] = {4, 2, 1};
    uint32_t handle = read_u32(payload);
    uint8_t kind = read_u8(payload), *contents;
    uint64_t count = read_u64(payload), offset = 0;
    struct generator from;
    struct object *memory;
    from.state.low = read_u64(payload);
    from.state.high = read_u64(payload);
    from.increment.low = read_u64(payload);
    from.increment.high = read_u64(payload);
    from.half = read_u32(payload);
    from.has_half = from.half != NO_HANDLE;
    expect_end(payload);
    if (kind > DRAW_INT8)
        refuse_frame("it draws numbers of an unknown kind");
    memory = find(handle, BUFFER);
    contents = memory ? scratch(BAND_BYTES) : NULL;
    if (!contents)
        return;
    while (count) {
        size_t part = BAND_BYTES / sizes[kind];
        part = count < part ? (size_t)count : part;
        draw(&from, kind, contents, part);
        if (!write_part(memory, offset, contents, part * sizes[kind]))
            return;
        offset += part * sizes[kind];
        count -= part;
    }
}

/* A configuration planned for one problem: buffers and launches in order. For autotune.c alone. */
#ifndef AUTOTUNE_PLAN_H
#define AUTOTUNE_PLAN_H

enum { AUTOTUNE_MOST_BUFFERS = 8, AUTOTUNE_MOST_LAUNCHES = 4, AUTOTUNE_MOST_ARGUMENTS = 16 };

struct autotune_buffer {
    int operand; /* number of the caller's, or -1 for scratch memory and views */
    int view_of; /* the buffer that an image shows; -1 for none */
    long long bytes;
    long long width, height; /* of an image in pixels; 0 for plain memory */
    long long pitch_bytes;   /* from row to row of what a view shows */
    cl_channel_type pixels;
    int is_zeroed; /* holds zeros before the first call; every call leaves zeros behind */
};

enum autotune_argument_kind { AUTOTUNE_IS_BUFFER, AUTOTUNE_IS_NUMBER, AUTOTUNE_IS_ALPHA, AUTOTUNE_IS_BETA };

struct autotune_argument {
    enum autotune_argument_kind kind;
    int value; /* the number, or that of a buffer */
};

struct autotune_launch {
    const char *kernel;
    cl_uint dimensions;
    size_t global_size[3], local_size[3];
    int has_local_size; /* else the driver chooses */
    int argument_count;
    struct autotune_argument arguments[AUTOTUNE_MOST_ARGUMENTS];
};

struct autotune_plan {
    int buffer_count, launch_count;
    struct autotune_buffer buffers[AUTOTUNE_MOST_BUFFERS];
    struct autotune_launch launches[AUTOTUNE_MOST_LAUNCHES];
    int variant;          /* what the source must know of the sizes; see the planners */
    int scales_are_whole; /* alpha and beta are passed as int */
    int is_too_large;     /* for the 32-bit integers of the kernels */
};

static int autotune_add_buffer(struct autotune_plan *plan, int operand, long long bytes) {
    struct autotune_buffer *buffer = &plan->buffers[plan->buffer_count];
    memset(buffer, 0, sizeof *buffer);
    buffer->operand = operand;
    buffer->view_of = -1;
    buffer->bytes = bytes;
    return plan->buffer_count++;
}

/* For each result, how many of its work-groups have finished; the last of them sets it back. */
static int autotune_add_counters(struct autotune_plan *plan, long long elements) {
    const int number = autotune_add_buffer(plan, -1, 4 * elements);
    plan->buffers[number].is_zeroed = 1;
    return number;
}

static struct autotune_launch *autotune_add_launch(
        struct autotune_plan *plan, const char *kernel, cl_uint dimensions, long long x, long long y, long long z) {
    struct autotune_launch *launch = &plan->launches[plan->launch_count++];
    memset(launch, 0, sizeof *launch);
    launch->kernel = kernel;
    launch->dimensions = dimensions;
    launch->global_size[0] = (size_t)x;
    launch->global_size[1] = (size_t)y;
    launch->global_size[2] = (size_t)z;
    return launch;
}

static void autotune_set_local_size(struct autotune_launch *launch, long long x, long long y) {
    launch->has_local_size = 1;
    launch->local_size[0] = (size_t)x;
    launch->local_size[1] = (size_t)y;
    launch->local_size[2] = 1;
}

static void autotune_pass(struct autotune_launch *launch, enum autotune_argument_kind kind, int value) {
    struct autotune_argument *argument = &launch->arguments[launch->argument_count++];
    argument->kind = kind;
    argument->value = value;
}

static void autotune_pass_number(struct autotune_plan *plan, struct autotune_launch *launch, long long value) {
    if (value > 2147483647LL) plan->is_too_large = 1;
    autotune_pass(launch, AUTOTUNE_IS_NUMBER, (int)value);
}

static long long autotune_round_up(long long value, long long multiple) {
    return (value + multiple - 1) / multiple * multiple;
}

#endif

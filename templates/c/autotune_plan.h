/* A configuration planned for one problem: buffers and launches in order. For autotune.c alone. */
#ifndef AUTOTUNE_PLAN_H
#define AUTOTUNE_PLAN_H

struct autotune_buffer {
    int operand; /* number of the caller's, or -1 for scratch memory and views */
    int view_of; /* the buffer that an image shows; -1 for none */
    int packed;  /* its number among those that hold packed constant operands; -1 for none */
    long long bytes;
    long long width, height; /* of an image in pixels; 0 for plain memory */
    long long pitch_bytes;   /* from row to row of what a view shows */
    cl_channel_order order;
    cl_channel_type pixels;
    int is_line;   /* an image of one dimension */
    int is_zeroed; /* holds zeros before the first call; every call leaves zeros behind */
};

enum autotune_argument_kind { AUTOTUNE_IS_BUFFER, AUTOTUNE_IS_NUMBER, AUTOTUNE_IS_SCALAR, AUTOTUNE_IS_LOCAL };

struct autotune_argument {
    enum autotune_argument_kind kind;
    int value; /* the number, or that of a buffer or of a scalar of the caller, or bytes of local memory */
};

struct autotune_launch {
    const char *kernel;
    cl_uint dimensions;
    size_t global_size[3], local_size[3];
    int has_local_size; /* else the driver chooses */
    int packs;          /* constant operands: not part of a call */
    int argument_count;
    struct autotune_argument arguments[AUTOTUNE_MOST_ARGUMENTS];
};

struct autotune_plan {
    int buffer_count, launch_count;
    struct autotune_buffer buffers[AUTOTUNE_MOST_BUFFERS];
    struct autotune_launch launches[AUTOTUNE_MOST_LAUNCHES];
    int packed_count;     /* buffers of packed constant operands */
    int packing;          /* how they are packed, as a number */
    int variant;          /* what the source must know of the sizes; see the planners */
    int scales_are_whole; /* the scalars of the caller are passed as int */
    int is_too_large;     /* for the 32-bit integers of the kernels */
};

struct autotune_device_entry;

/* What a caller asks for. */
struct autotune_call {
    cl_command_queue queue;
    cl_event *event;
    const double *scalars;
    cl_mem operands[AUTOTUNE_MOST_BUFFERS];
    struct autotune_packed *packed; /* NULL without constant operands */
    int only_packs; /* or, if it unpacks, only that */
    int unpacks;
};

/* What autotune.c must know of a family of kernels. */
struct autotune_family {
    int (*complete)(union autotune_problem *problem);
    int (*is_same)(const union autotune_problem *one, const union autotune_problem *other);
    int (*packs_alike)(const union autotune_problem *one, const union autotune_problem *other); /* or NULL */
    /* By the lookup (attempt 0), the default, or the plainest kernel. Sets the source where it was exported. */
    void (*choose)(
        const struct autotune_device_entry *device, int attempt, const union autotune_problem *problem,
        struct autotune_choice *choice, struct autotune_plan *plan, const char **options);
};

static enum autotune_status prepare_problem(
    struct autotune_library *library, const struct autotune_family *family, union autotune_problem *problem);
static enum autotune_status choose_problem(
    struct autotune_library *library, const struct autotune_family *family, union autotune_problem *problem,
    struct autotune_choice *choice);
static enum autotune_status run_problem(
    struct autotune_library *library, const struct autotune_family *family, union autotune_problem *problem,
    struct autotune_call *call);
#ifdef AUTOTUNE_HAS_CONSTANTS
static enum autotune_status pack_problem(
    struct autotune_library *library, const struct autotune_family *family, union autotune_problem *problem,
    struct autotune_call *call, struct autotune_packed **packed);
#endif

static inline int autotune_add_buffer(struct autotune_plan *plan, int operand, long long bytes, int is_zeroed) {
    struct autotune_buffer *buffer = &plan->buffers[plan->buffer_count];
    memset(buffer, 0, sizeof *buffer);
    buffer->operand = operand;
    buffer->view_of = buffer->packed = -1;
    buffer->bytes = bytes;
    buffer->is_zeroed = is_zeroed;
    return plan->buffer_count++;
}

static inline int autotune_add_packed(struct autotune_plan *plan, long long bytes) {
    const int number = autotune_add_buffer(plan, -1, bytes, 0);
    plan->buffers[number].packed = plan->packed_count++;
    return number;
}

static inline int autotune_add_image(
        struct autotune_plan *plan, int view_of, long long width, long long height, cl_channel_order order,
        cl_channel_type pixels, int is_line, long long pitch_bytes) {
    const int number = autotune_add_buffer(plan, -1, 0, 0);
    plan->buffers[number].view_of = view_of;
    plan->buffers[number].width = width;
    plan->buffers[number].height = height;
    plan->buffers[number].order = order;
    plan->buffers[number].pixels = pixels;
    plan->buffers[number].is_line = is_line;
    plan->buffers[number].pitch_bytes = pitch_bytes;
    return number;
}

static inline struct autotune_launch *autotune_add_launch(
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

static inline void autotune_set_local_size(struct autotune_launch *launch, long long x, long long y, long long z) {
    launch->has_local_size = 1;
    launch->local_size[0] = (size_t)x;
    launch->local_size[1] = (size_t)y;
    launch->local_size[2] = (size_t)z;
}

static inline void autotune_pass(struct autotune_launch *launch, enum autotune_argument_kind kind, int value) {
    struct autotune_argument *argument = &launch->arguments[launch->argument_count++];
    argument->kind = kind;
    argument->value = value;
}

static inline void autotune_pass_number(struct autotune_plan *plan, struct autotune_launch *launch, long long value) {
    if (value > 2147483647LL) plan->is_too_large = 1;
    autotune_pass(launch, AUTOTUNE_IS_NUMBER, (int)value);
}

static inline void autotune_pass_local(struct autotune_plan *plan, struct autotune_launch *launch, long long bytes) {
    autotune_pass_number(plan, launch, bytes);
    launch->arguments[launch->argument_count - 1].kind = AUTOTUNE_IS_LOCAL;
}

#endif

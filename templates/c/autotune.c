/* Running tuned kernels: lookup, plan, build, enqueue. See autotune.h. */
#include "autotune.h"

#include <stdlib.h>
#include <string.h>

#include "autotune_plan.h"
#include "autotune_kernels.h"

enum { MOST_LOG = 2048, MOST_READY = 256 };

struct program {
    int source;
    const char *options;
    cl_program program;
    struct program *next;
};

/* A problem with its kernels built, their memory allocated and their constant arguments set. */
struct ready {
    const struct autotune_family *family;
    union autotune_problem problem;
    struct autotune_choice choice;
    int attempt; /* 0 for the lookup's answer, then the default, then the plainest kernel */
    struct autotune_plan plan;
    cl_kernel kernels[AUTOTUNE_MOST_LAUNCHES];
    cl_mem memory[AUTOTUNE_MOST_BUFFERS];
    cl_mem shown[AUTOTUNE_MOST_BUFFERS]; /* the memory that a view was made for */
    struct ready *next;
};

struct autotune_library {
    const struct autotune_device_entry *device;
    cl_context context;
    cl_device_id id;
    struct program *programs;
    struct ready *ready;
    cl_int error;
    char log[MOST_LOG];
};

const char *autotune_device(int number) {
    return number >= 0 && number < AUTOTUNE_DEVICE_COUNT ? autotune_devices[number].name : NULL;
}

const char *autotune_status_text(enum autotune_status status) {
    switch (status) {
    case AUTOTUNE_OK: return "done";
    case AUTOTUNE_NO_DEVICE: return "this package knows no device of that name";
    case AUTOTUNE_NO_PROBLEM: return "not a valid problem: a size or type is missing or out of range";
    case AUTOTUNE_NO_KERNEL: return "no kernel of this kind was exported";
    case AUTOTUNE_REFUSED: return "the driver rejected every candidate kernel";
    case AUTOTUNE_NO_MEMORY: return "out of memory";
    case AUTOTUNE_OPENCL: return "OpenCL reports an error";
    }
    return "unknown";
}

enum autotune_status autotune_open(
        const char *device, cl_context context, cl_device_id id, struct autotune_library **library) {
    int number;
    *library = NULL;
    for (number = 0; number < AUTOTUNE_DEVICE_COUNT; number++) {
        if (strcmp(autotune_devices[number].name, device) != 0) continue;
        *library = (struct autotune_library *)calloc(1, sizeof **library);
        if (!*library) return AUTOTUNE_NO_MEMORY;
        (*library)->device = &autotune_devices[number];
        (*library)->context = context;
        (*library)->id = id;
        return AUTOTUNE_OK;
    }
    return AUTOTUNE_NO_DEVICE;
}

static void empty(struct ready *ready) {
    int number;
    for (number = 0; number < AUTOTUNE_MOST_LAUNCHES; number++) {
        if (ready->kernels[number]) clReleaseKernel(ready->kernels[number]);
        ready->kernels[number] = NULL;
    }
    for (number = 0; number < AUTOTUNE_MOST_BUFFERS; number++) {
        if (ready->memory[number]) clReleaseMemObject(ready->memory[number]);
        ready->memory[number] = ready->shown[number] = NULL;
    }
}

void autotune_close(struct autotune_library *library) {
    if (!library) return;
    while (library->ready) {
        struct ready *const next = library->ready->next;
        empty(library->ready);
        free(library->ready);
        library->ready = next;
    }
    while (library->programs) {
        struct program *const next = library->programs->next;
        clReleaseProgram(library->programs->program);
        free(library->programs);
        library->programs = next;
    }
    free(library);
}

cl_int autotune_error(const struct autotune_library *library) { return library->error; }

const char *autotune_log(const struct autotune_library *library) { return library->log; }

void autotune_read_source(int source, void (*line)(const char *text, void *user), void *user) {
    unsigned long chunk, number;
    for (chunk = autotune_source_starts[source]; chunk < autotune_source_starts[source + 1]; chunk++) {
        const unsigned long at = autotune_source_chunks[chunk];
        for (number = autotune_chunk_starts[at]; number < autotune_chunk_starts[at + 1]; number++)
            line(autotune_lines[autotune_chunk_lines[number]], user);
    }
}

struct text {
    const char **lines;
    cl_uint count;
};

static void count_line(const char *line, void *user) {
    (void)line;
    ((struct text *)user)->count++;
}

static void keep_line(const char *line, void *user) {
    struct text *const text = (struct text *)user;
    text->lines[text->count++] = line;
}

/* What another device, driver or problem may take where this one does not. */
static int is_refusal(cl_int error) {
    switch (error) {
    case CL_BUILD_PROGRAM_FAILURE:
    case CL_INVALID_BUILD_OPTIONS:
    case CL_INVALID_WORK_GROUP_SIZE:
    case CL_INVALID_WORK_ITEM_SIZE:
    case CL_INVALID_GLOBAL_WORK_SIZE:
    case CL_OUT_OF_RESOURCES:
    case CL_INVALID_IMAGE_SIZE:
    case CL_INVALID_IMAGE_DESCRIPTOR:
    case CL_IMAGE_FORMAT_NOT_SUPPORTED:
    case CL_INVALID_KERNEL_NAME:
    case CL_INVALID_BUFFER_SIZE:
    case CL_MEM_OBJECT_ALLOCATION_FAILURE:
        return 1;
    default:
        return 0;
    }
}

static enum autotune_status fail(struct autotune_library *library, cl_int error) {
    library->error = error;
    if (is_refusal(error)) return AUTOTUNE_REFUSED;
    return error == CL_OUT_OF_HOST_MEMORY ? AUTOTUNE_NO_MEMORY : AUTOTUNE_OPENCL;
}

static cl_int compile(struct autotune_library *library, int source, const char *options, cl_program *program) {
    struct text text = {NULL, 0};
    char all[512];
    cl_int error;
    autotune_read_source(source, count_line, &text);
    text.lines = (const char **)malloc((text.count + 1) * sizeof *text.lines);
    if (!text.lines) return CL_OUT_OF_HOST_MEMORY;
    text.count = 0;
    autotune_read_source(source, keep_line, &text);
    *program = clCreateProgramWithSource(library->context, text.count, text.lines, NULL, &error);
    free((void *)text.lines);
    if (error != CL_SUCCESS) return error;
    all[0] = 0;
    if (strlen(options) + strlen(library->device->options) + 2 > sizeof all) return CL_INVALID_BUILD_OPTIONS;
    strcat(strcat(strcat(all, library->device->options), " "), options);
    error = clBuildProgram(*program, 1, &library->id, all, NULL, NULL);
    if (error != CL_SUCCESS) {
        size_t size = 0;
        clGetProgramBuildInfo(*program, library->id, CL_PROGRAM_BUILD_LOG, 0, NULL, &size);
        if (size <= MOST_LOG) {
            clGetProgramBuildInfo(*program, library->id, CL_PROGRAM_BUILD_LOG, MOST_LOG, library->log, NULL);
        } else {
            char *const whole = (char *)malloc(size);
            if (whole) {
                clGetProgramBuildInfo(*program, library->id, CL_PROGRAM_BUILD_LOG, size, whole, NULL);
                memcpy(library->log, whole, MOST_LOG - 1);
                free(whole);
            }
        }
        library->log[MOST_LOG - 1] = 0;
        clReleaseProgram(*program);
    }
    return error;
}

/* The program of a source, built the first time. */
static cl_int find_program(struct autotune_library *library, int source, const char *options, cl_program *program) {
    struct program *known;
    cl_int error;
    for (known = library->programs; known; known = known->next) {
        if (known->source == source && strcmp(known->options, options) == 0) {
            *program = known->program;
            return CL_SUCCESS;
        }
    }
    known = (struct program *)calloc(1, sizeof *known);
    if (!known) return CL_OUT_OF_HOST_MEMORY;
    error = compile(library, source, options, &known->program);
    if (error != CL_SUCCESS) {
        free(known);
        return error;
    }
    known->source = source;
    known->options = options;
    known->next = library->programs;
    library->programs = known;
    *program = known->program;
    return CL_SUCCESS;
}

static cl_int make_image(
        struct autotune_library *library, const struct autotune_buffer *buffer, cl_mem shown, cl_mem *image) {
    cl_image_format format;
    cl_image_desc description;
    cl_int error;
    memset(&description, 0, sizeof description);
    format.image_channel_order = CL_RGBA;
    format.image_channel_data_type = buffer->pixels;
    description.image_type = CL_MEM_OBJECT_IMAGE2D;
    description.image_width = (size_t)buffer->width;
    description.image_height = (size_t)buffer->height;
    if (shown) {
        description.image_row_pitch = (size_t)buffer->pitch_bytes;
        description.buffer = shown;
    }
    *image = clCreateImage(library->context, CL_MEM_READ_WRITE, &format, &description, NULL, &error);
    return error;
}

static cl_int make_buffer(struct autotune_library *library, const struct autotune_buffer *buffer, cl_mem *memory) {
    const size_t bytes = (size_t)buffer->bytes;
    void *const zeros = buffer->is_zeroed ? calloc(bytes, 1) : NULL;
    cl_int error;
    if (buffer->is_zeroed && !zeros) return CL_OUT_OF_HOST_MEMORY;
    *memory = clCreateBuffer(
        library->context, CL_MEM_READ_WRITE | (zeros ? CL_MEM_COPY_HOST_PTR : 0), bytes, zeros, &error);
    free(zeros);
    return error;
}

static cl_int allocate(struct autotune_library *library, struct ready *ready) {
    int number;
    cl_int error = CL_SUCCESS;
    for (number = 0; number < ready->plan.buffer_count && error == CL_SUCCESS; number++) {
        const struct autotune_buffer *const buffer = &ready->plan.buffers[number];
        if (buffer->operand >= 0 || buffer->view_of >= 0) continue;
        if (buffer->width) error = make_image(library, buffer, NULL, &ready->memory[number]);
        else error = make_buffer(library, buffer, &ready->memory[number]);
        if (error != CL_SUCCESS) ready->memory[number] = NULL;
    }
    return error;
}

/* Kernels with the arguments that stay. */
static cl_int bind(struct ready *ready, cl_program program) {
    int number, place;
    for (number = 0; number < ready->plan.launch_count; number++) {
        const struct autotune_launch *const launch = &ready->plan.launches[number];
        cl_int error;
        ready->kernels[number] = clCreateKernel(program, launch->kernel, &error);
        if (error != CL_SUCCESS) {
            ready->kernels[number] = NULL;
            return error;
        }
        for (place = 0; place < launch->argument_count && error == CL_SUCCESS; place++) {
            const struct autotune_argument *const argument = &launch->arguments[place];
            if (argument->kind == AUTOTUNE_IS_NUMBER) {
                const cl_int value = argument->value;
                error = clSetKernelArg(ready->kernels[number], (cl_uint)place, sizeof value, &value);
            } else if (argument->kind == AUTOTUNE_IS_BUFFER && ready->memory[argument->value]) {
                error = clSetKernelArg(
                    ready->kernels[number], (cl_uint)place, sizeof(cl_mem), &ready->memory[argument->value]);
            }
        }
        if (error != CL_SUCCESS) return error;
    }
    return CL_SUCCESS;
}

/* Views of memory that the caller gave; kept as long as it gives the same. */
static cl_int show(struct autotune_library *library, struct ready *ready, const cl_mem *operands) {
    int number;
    for (number = 0; number < ready->plan.buffer_count; number++) {
        const struct autotune_buffer *const buffer = &ready->plan.buffers[number];
        cl_mem wanted;
        cl_int error;
        if (buffer->view_of < 0) continue;
        wanted = operands[ready->plan.buffers[buffer->view_of].operand];
        if (ready->shown[number] == wanted) continue;
        if (ready->memory[number]) clReleaseMemObject(ready->memory[number]);
        error = make_image(library, buffer, wanted, &ready->memory[number]);
        ready->shown[number] = error == CL_SUCCESS ? wanted : NULL;
        if (error != CL_SUCCESS) {
            ready->memory[number] = NULL;
            return error;
        }
    }
    return CL_SUCCESS;
}

static cl_int pass(struct ready *ready, int number, const cl_mem *operands, const double *scalars) {
    const struct autotune_launch *const launch = &ready->plan.launches[number];
    const cl_kernel kernel = ready->kernels[number];
    cl_int error = CL_SUCCESS;
    int place;
    for (place = 0; place < launch->argument_count && error == CL_SUCCESS; place++) {
        const struct autotune_argument *const argument = &launch->arguments[place];
        if (argument->kind == AUTOTUNE_IS_NUMBER) continue;
        if (argument->kind == AUTOTUNE_IS_SCALAR) {
            const cl_int whole = (cl_int)scalars[argument->value];
            const cl_float real = (cl_float)scalars[argument->value];
            if (ready->plan.scales_are_whole) error = clSetKernelArg(kernel, (cl_uint)place, sizeof whole, &whole);
            else error = clSetKernelArg(kernel, (cl_uint)place, sizeof real, &real);
            continue;
        }
        if (ready->plan.buffers[argument->value].operand >= 0)
            error = clSetKernelArg(
                kernel, (cl_uint)place, sizeof(cl_mem), &operands[ready->plan.buffers[argument->value].operand]);
        else if (ready->plan.buffers[argument->value].view_of >= 0)
            error = clSetKernelArg(kernel, (cl_uint)place, sizeof(cl_mem), &ready->memory[argument->value]);
    }
    return error;
}

static cl_int enqueue(
        struct autotune_library *library, struct ready *ready, cl_command_queue queue, const double *scalars,
        const cl_mem *operands, cl_event *event) {
    cl_int error = show(library, ready, operands);
    int number;
    for (number = 0; number < ready->plan.launch_count && error == CL_SUCCESS; number++) {
        const struct autotune_launch *const launch = &ready->plan.launches[number];
        error = pass(ready, number, operands, scalars);
        if (error != CL_SUCCESS) break;
        error = clEnqueueNDRangeKernel(
            queue, ready->kernels[number], launch->dimensions, NULL, launch->global_size,
            launch->has_local_size ? launch->local_size : NULL, 0, NULL,
            number == ready->plan.launch_count - 1 ? event : NULL);
    }
    return error;
}

/* Sets the plan and the source; returns 0 where there is none. */
static int choose(struct autotune_library *library, struct ready *ready, const char **options) {
    ready->choice.match = AUTOTUNE_DEFAULT;
    ready->choice.source = AUTOTUNE_NO_SOURCE;
    ready->family->choose(library->device, ready->attempt, &ready->problem, &ready->choice, &ready->plan, options);
    ready->choice.launches = ready->plan.launch_count;
    return ready->choice.source != AUTOTUNE_NO_SOURCE && !ready->plan.is_too_large;
}

/* Tries the remaining attempts until the driver accepts one. */
static enum autotune_status build(struct autotune_library *library, struct ready *ready) {
    enum autotune_status status = AUTOTUNE_NO_KERNEL;
    for (; ready->attempt < 3; ready->attempt++) {
        const char *options = "";
        cl_program program;
        cl_int error;
        empty(ready);
        if (!choose(library, ready, &options)) continue;
        error = find_program(library, ready->choice.source, options, &program);
        if (error == CL_SUCCESS) error = allocate(library, ready);
        if (error == CL_SUCCESS) error = bind(ready, program);
        if (error == CL_SUCCESS) return AUTOTUNE_OK;
        status = fail(library, error);
        if (status != AUTOTUNE_REFUSED) break;
    }
    empty(ready);
    return status;
}

static struct ready *find_ready(
        struct autotune_library *library, const struct autotune_family *family, const union autotune_problem *problem) {
    struct ready **place;
    for (place = &library->ready; *place; place = &(*place)->next) {
        struct ready *const found = *place;
        if (found->family != family || !family->is_same(&found->problem, problem)) continue;
        *place = found->next; /* what was used last comes first */
        found->next = library->ready;
        return library->ready = found;
    }
    return NULL;
}

/* The choice of a prepared problem; otherwise the first attempt that has a kernel. */
static enum autotune_status choose_any(
        struct autotune_library *library, struct ready *ready, struct autotune_choice *choice) {
    const struct ready *const taken = find_ready(library, ready->family, &ready->problem);
    if (taken) {
        ready->plan = taken->plan;
        *choice = taken->choice;
        return AUTOTUNE_OK;
    }
    for (ready->attempt = 0; ready->attempt < 3; ready->attempt++) {
        const char *options = "";
        if (!choose(library, ready, &options)) continue;
        *choice = ready->choice;
        return AUTOTUNE_OK;
    }
    return AUTOTUNE_NO_KERNEL;
}

/* A program that asks for ever new sizes must not grow without end: what was used longest ago goes. */
static void forget_some(struct autotune_library *library) {
    struct ready *last = library->ready, *gone;
    int count;
    for (count = 1; last && count < MOST_READY; count++) last = last->next;
    while (last && last->next) {
        gone = last->next;
        last->next = gone->next;
        empty(gone); /* OpenCL keeps what is still in use */
        free(gone);
    }
}

/* A problem with its kernels; fills in what is 0. */
static enum autotune_status prepare(
        struct autotune_library *library, const struct autotune_family *family, union autotune_problem *problem,
        struct ready **found) {
    struct ready *ready;
    enum autotune_status status;
    if (!family->complete(problem)) return AUTOTUNE_NO_PROBLEM;
    *found = ready = find_ready(library, family, problem);
    if (ready) return AUTOTUNE_OK;
    ready = (struct ready *)calloc(1, sizeof *ready);
    if (!ready) return AUTOTUNE_NO_MEMORY;
    ready->family = family;
    ready->problem = *problem;
    status = build(library, ready);
    if (status != AUTOTUNE_OK) {
        free(ready);
        return status;
    }
    ready->next = library->ready;
    *found = library->ready = ready;
    forget_some(library);
    return AUTOTUNE_OK;
}

/* The one that was used last. */
static void forget_first(struct autotune_library *library) {
    struct ready *const first = library->ready;
    library->ready = first->next;
    empty(first);
    free(first);
}

static enum autotune_status run(
        struct autotune_library *library, struct ready *ready, cl_command_queue queue, const double *scalars,
        const cl_mem *operands, cl_event *event) {
    for (;;) {
        const cl_int error = enqueue(library, ready, queue, scalars, operands, event);
        enum autotune_status status;
        if (error == CL_SUCCESS) return AUTOTUNE_OK;
        status = fail(library, error);
        if (status == AUTOTUNE_REFUSED && ready->attempt < 2) {
            clFinish(queue); /* kernels before the refused one may still use what is let go */
            ready->attempt++;
            status = build(library, ready);
            if (status == AUTOTUNE_OK) continue;
        }
        forget_first(library); /* what has to be zero may no longer be: the next call begins anew */
        return status;
    }
}

static enum autotune_status prepare_problem(
        struct autotune_library *library, const struct autotune_family *family, union autotune_problem *problem) {
    struct ready *ready = NULL;
    return prepare(library, family, problem, &ready);
}

static enum autotune_status choose_problem(
        struct autotune_library *library, const struct autotune_family *family, union autotune_problem *problem,
        struct autotune_choice *choice) {
    struct ready ready;
    memset(&ready, 0, sizeof ready);
    if (!family->complete(problem)) return AUTOTUNE_NO_PROBLEM;
    ready.family = family;
    ready.problem = *problem;
    return choose_any(library, &ready, choice);
}

static enum autotune_status run_problem(
        struct autotune_library *library, const struct autotune_family *family, union autotune_problem *problem,
        cl_command_queue queue, const double *scalars, const cl_mem *operands, cl_event *event) {
    struct ready *ready = NULL;
    const enum autotune_status status = prepare(library, family, problem, &ready);
    return status == AUTOTUNE_OK ? run(library, ready, queue, scalars, operands, event) : status;
}

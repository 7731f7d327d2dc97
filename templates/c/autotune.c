/* Running tuned kernels: lookup, plan, build, enqueue. See autotune.h. */
#include "autotune.h"

#include <stdlib.h>
#include <string.h>

#include "autotune_plan.h"
#include "autotune_kernels.h"
#include "autotune_device.h"

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

/* Constant operands as kernels of one packing read them, by the numbers of packed buffers. */
struct form {
    int packing;
    long long bytes;
    cl_mem memory[AUTOTUNE_MOST_BUFFERS];
    cl_mem images[AUTOTUNE_MOST_BUFFERS]; /* that show it, where a kernel asked for them */
    struct form *next;
};

struct autotune_packed {
    const struct autotune_family *family;
    union autotune_problem problem;
    cl_mem originals[AUTOTUNE_MOST_BUFFERS]; /* by the numbers of operands */
    int has_originals;
    struct form *forms;
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

const char *autotune_device_of(cl_device_id id) {
    static const cl_device_info asked[] = {CL_DEVICE_NAME, CL_DEVICE_VERSION, CL_DEVICE_OPENCL_C_VERSION};
    char text[512];
    cl_uint units = 0;
    int number, which;
    clGetDeviceInfo(id, CL_DEVICE_MAX_COMPUTE_UNITS, sizeof units, &units, NULL);
    for (which = 0; which < 3; which++) {
        memset(text, 0, sizeof text);
        if (clGetDeviceInfo(id, asked[which], sizeof text - 1, text, NULL) != CL_SUCCESS) continue;
        for (number = 0; number < AUTOTUNE_DEVICE_COUNT; number++) {
            const struct autotune_device_entry *const entry = &autotune_devices[number];
            if (which == 0 && entry->reported[0] && strcmp(entry->reported, text) == 0) return entry->name;
            if (autotune_is_named(entry->name, text, units)) return entry->name;
        }
    }
    return NULL;
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
    case AUTOTUNE_NOT_PACKED: return "the constant operands were not packed for this problem";
    }
    return "unknown";
}

enum autotune_status autotune_open(
        const char *device, cl_context context, cl_device_id id, struct autotune_library **library) {
    int number;
    *library = NULL;
    if (!device) device = autotune_device_of(id);
    for (number = 0; device && number < AUTOTUNE_DEVICE_COUNT; number++) {
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

static void release_all(cl_mem *memory) {
    int number;
    for (number = 0; number < AUTOTUNE_MOST_BUFFERS; number++) {
        if (memory[number]) clReleaseMemObject(memory[number]);
        memory[number] = NULL;
    }
}

static void release_form(struct form *form) {
    release_all(form->images);
    release_all(form->memory);
    free(form);
}

long long autotune_packed_bytes(const struct autotune_packed *packed) {
    long long bytes = 0;
    const struct form *form;
    for (form = packed->forms; form; form = form->next) bytes += form->bytes;
    return bytes;
}

void autotune_release_originals(struct autotune_packed *packed) {
    packed->has_originals = 0;
    release_all(packed->originals);
}

void autotune_release_packed(struct autotune_packed *packed) {
    if (!packed) return;
    while (packed->forms) {
        struct form *const next = packed->forms->next;
        release_form(packed->forms);
        packed->forms = next;
    }
    autotune_release_originals(packed);
    free(packed);
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
    if (strlen(options) + strlen(library->device->options) + 2 > sizeof all) return CL_INVALID_BUILD_OPTIONS;
    autotune_read_source(source, count_line, &text);
    text.lines = (const char **)malloc((text.count + 1) * sizeof *text.lines);
    if (!text.lines) return CL_OUT_OF_HOST_MEMORY;
    text.count = 0;
    autotune_read_source(source, keep_line, &text);
    *program = clCreateProgramWithSource(library->context, text.count, text.lines, NULL, &error);
    free((void *)text.lines);
    if (error != CL_SUCCESS) return error;
    all[0] = 0;
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
    format.image_channel_order = buffer->order;
    format.image_channel_data_type = buffer->pixels;
    description.image_type = buffer->is_line ? CL_MEM_OBJECT_IMAGE1D_BUFFER : CL_MEM_OBJECT_IMAGE2D;
    description.image_width = (size_t)buffer->width;
    description.image_height = buffer->is_line ? 0 : (size_t)buffer->height;
    if (shown) {
        description.image_row_pitch = (size_t)buffer->pitch_bytes;
        description.buffer = shown;
    }
    /* What is shown may be memory of the caller that kernels may only read. */
    *image = clCreateImage(library->context, shown ? CL_MEM_READ_ONLY : CL_MEM_READ_WRITE, &format, &description, NULL, &error);
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
        if (buffer->operand >= 0 || buffer->view_of >= 0 || buffer->packed >= 0) continue;
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
            } else if (argument->kind == AUTOTUNE_IS_LOCAL) {
                error = clSetKernelArg(ready->kernels[number], (cl_uint)place, (size_t)argument->value, NULL);
            } else if (argument->kind == AUTOTUNE_IS_BUFFER && ready->memory[argument->value]) {
                error = clSetKernelArg(
                    ready->kernels[number], (cl_uint)place, sizeof(cl_mem), &ready->memory[argument->value]);
            }
        }
        if (error != CL_SUCCESS) return error;
    }
    return CL_SUCCESS;
}

/* The memory of a buffer; NULL where the caller gave none, or nothing was packed. */
static cl_mem memory_of(const struct ready *ready, int number, const struct autotune_call *call, const struct form *form) {
    const struct autotune_buffer *const buffer = &ready->plan.buffers[number];
    if (buffer->operand >= 0) return call->operands[buffer->operand];
    if (buffer->packed >= 0) return form ? form->memory[buffer->packed] : NULL;
    if (buffer->view_of >= 0 && ready->plan.buffers[buffer->view_of].packed >= 0)
        return form ? form->images[ready->plan.buffers[buffer->view_of].packed] : NULL;
    return ready->memory[number];
}

/* Views of memory that the caller gave or that was packed; kept as long as it is the same. */
static cl_int show(
        struct autotune_library *library, struct ready *ready, const struct autotune_call *call, struct form *form) {
    int number;
    for (number = 0; number < ready->plan.buffer_count; number++) {
        const struct autotune_buffer *const buffer = &ready->plan.buffers[number];
        cl_mem wanted, *image = &ready->memory[number];
        cl_int error;
        int packed;
        if (buffer->view_of < 0) continue;
        wanted = memory_of(ready, buffer->view_of, call, form);
        packed = ready->plan.buffers[buffer->view_of].packed;
        if (!wanted) return CL_INVALID_MEM_OBJECT;
        if (packed >= 0) image = &form->images[packed];
        if (packed >= 0 ? *image != NULL : ready->shown[number] == wanted) continue;
        if (*image) clReleaseMemObject(*image);
        error = make_image(library, buffer, wanted, image);
        if (error != CL_SUCCESS) *image = NULL;
        if (packed < 0) ready->shown[number] = error == CL_SUCCESS ? wanted : NULL;
        if (error != CL_SUCCESS) return error;
    }
    return CL_SUCCESS;
}

static cl_int pass(struct ready *ready, int number, const struct autotune_call *call, const struct form *form) {
    const struct autotune_launch *const launch = &ready->plan.launches[number];
    const cl_kernel kernel = ready->kernels[number];
    cl_int error = CL_SUCCESS;
    int place;
    for (place = 0; place < launch->argument_count && error == CL_SUCCESS; place++) {
        const struct autotune_argument *const argument = &launch->arguments[place];
        if (argument->kind == AUTOTUNE_IS_NUMBER || argument->kind == AUTOTUNE_IS_LOCAL) continue;
        if (argument->kind == AUTOTUNE_IS_SCALAR) {
            const cl_int whole = (cl_int)call->scalars[argument->value];
            const cl_float real = (cl_float)call->scalars[argument->value];
            if (ready->plan.scales_are_whole) error = clSetKernelArg(kernel, (cl_uint)place, sizeof whole, &whole);
            else error = clSetKernelArg(kernel, (cl_uint)place, sizeof real, &real);
        } else {
            const cl_mem memory = memory_of(ready, argument->value, call, form);
            const int is_bound = ready->memory[argument->value] && !ready->shown[argument->value]; /* see bind */
            if (!memory) return CL_INVALID_MEM_OBJECT;
            if (!is_bound) error = clSetKernelArg(kernel, (cl_uint)place, sizeof memory, &memory);
        }
    }
    return error;
}

/* What packs does the opposite where its last argument is 1. */
static cl_int set_backwards(struct ready *ready, int number, cl_int backwards) {
    const struct autotune_launch *const launch = &ready->plan.launches[number];
    const cl_uint last = (cl_uint)launch->argument_count - 1;
    if (launch->arguments[last].kind != AUTOTUNE_IS_NUMBER || launch->arguments[last].value) return CL_INVALID_MEM_OBJECT;
    return clSetKernelArg(ready->kernels[number], last, sizeof backwards, &backwards);
}

/* The launches that pack, or all others. */
static cl_int launch_all(
        struct ready *ready, const struct autotune_call *call, const struct form *form, int packs, cl_event *event) {
    cl_int error = CL_SUCCESS;
    int number;
    for (number = 0; number < ready->plan.launch_count && error == CL_SUCCESS; number++) {
        const struct autotune_launch *const launch = &ready->plan.launches[number];
        if (launch->packs != packs) continue;
        error = pass(ready, number, call, form);
        if (error == CL_SUCCESS && call->unpacks) error = set_backwards(ready, number, 1);
        if (error != CL_SUCCESS) break;
        error = clEnqueueNDRangeKernel(
            call->queue, ready->kernels[number], launch->dimensions, NULL, launch->global_size,
            launch->has_local_size ? launch->local_size : NULL, 0, NULL,
            number == ready->plan.launch_count - 1 ? event : NULL);
        if (call->unpacks) set_backwards(ready, number, 0);
    }
    return error;
}

/* What was packed for such kernels, packed the first time; none where they read the originals. */
static cl_int find_form(
        struct autotune_library *library, struct ready *ready, const struct autotune_call *call, struct form **found) {
    struct form *form;
    cl_int error = CL_SUCCESS;
    int number;
    *found = NULL;
    if (!ready->plan.packed_count) return CL_SUCCESS;
    for (form = call->packed->forms; form; form = form->next) {
        if (form->packing != ready->plan.packing) continue;
        *found = form;
        return CL_SUCCESS;
    }
    if (call->unpacks) return CL_INVALID_MEM_OBJECT;
    form = (struct form *)calloc(1, sizeof *form);
    if (!form) return CL_OUT_OF_HOST_MEMORY;
    form->packing = ready->plan.packing;
    for (number = 0; number < ready->plan.buffer_count && error == CL_SUCCESS; number++) {
        const struct autotune_buffer *const buffer = &ready->plan.buffers[number];
        if (buffer->packed < 0) continue;
        error = make_buffer(library, buffer, &form->memory[buffer->packed]);
        if (error != CL_SUCCESS) form->memory[buffer->packed] = NULL;
        form->bytes += buffer->bytes;
    }
    if (error == CL_SUCCESS) error = launch_all(ready, call, form, 1, NULL);
    if (error != CL_SUCCESS) {
        release_form(form);
        return error;
    }
    form->next = call->packed->forms;
    *found = call->packed->forms = form;
    return CL_SUCCESS;
}

static cl_int enqueue(struct autotune_library *library, struct ready *ready, const struct autotune_call *call) {
    struct form *form = NULL;
    cl_int error = find_form(library, ready, call, &form);
    if (error != CL_SUCCESS) return error;
    if (call->unpacks) error = form ? launch_all(ready, call, form, 1, NULL) : CL_INVALID_MEM_OBJECT;
    if (error != CL_SUCCESS) return error;
    if (call->only_packs) return call->event ? clEnqueueMarkerWithWaitList(call->queue, 0, NULL, call->event) : error;
    error = show(library, ready, call, form);
    return error == CL_SUCCESS ? launch_all(ready, call, form, 0, call->event) : error;
}

/* Sets the plan and the source; returns 0 where there is none. */
static int choose(struct autotune_library *library, struct ready *ready, const char **options) {
    int number;
    ready->choice.match = AUTOTUNE_DEFAULT;
    ready->choice.source = AUTOTUNE_NO_SOURCE;
    ready->family->choose(library->device, ready->attempt, &ready->problem, &ready->choice, &ready->plan, options);
    for (ready->choice.launches = number = 0; number < ready->plan.launch_count; number++)
        ready->choice.launches += !ready->plan.launches[number].packs;
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
        struct autotune_library *library, struct ready *ready, const struct autotune_call *call) {
    for (;;) {
        const cl_int error = enqueue(library, ready, call);
        enum autotune_status status;
        if (error == CL_SUCCESS) return AUTOTUNE_OK;
        if (error == CL_INVALID_MEM_OBJECT && call->packed && (call->unpacks || !call->packed->has_originals)) return AUTOTUNE_NOT_PACKED;
        status = fail(library, error);
        if (status == AUTOTUNE_REFUSED && ready->attempt < 2) {
            clFinish(call->queue); /* kernels before the refused one may still use what is let go */
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
        struct autotune_call *call) {
    struct ready *ready = NULL;
    const enum autotune_status status = prepare(library, family, problem, &ready);
    const struct autotune_packed *const packed = call->packed;
    int number;
    if (status != AUTOTUNE_OK) return status;
    if (packed) {
        if (packed->family != family || !family->packs_alike(&packed->problem, problem)) return AUTOTUNE_NOT_PACKED;
        for (number = 0; number < AUTOTUNE_MOST_BUFFERS; number++)
            if (packed->originals[number] && !call->unpacks) call->operands[number] = packed->originals[number];
    }
    return run(library, ready, call);
}

#ifdef AUTOTUNE_HAS_CONSTANTS
/* A new one keeps the operands of the call as its originals. */
static struct autotune_packed *new_packed(
        const struct autotune_family *family, const union autotune_problem *problem, const struct autotune_call *call) {
    struct autotune_packed *const packed = (struct autotune_packed *)calloc(1, sizeof *packed);
    int number;
    if (!packed) return NULL;
    packed->family = family;
    packed->problem = *problem;
    packed->has_originals = 1;
    for (number = 0; number < AUTOTUNE_MOST_BUFFERS; number++) {
        if (!call->operands[number]) continue;
        packed->originals[number] = call->operands[number];
        clRetainMemObject(call->operands[number]);
    }
    return packed;
}

static enum autotune_status pack_problem(
        struct autotune_library *library, const struct autotune_family *family, union autotune_problem *problem,
        struct autotune_call *call, struct autotune_packed **packed) {
    enum autotune_status status;
    if (!family->complete(problem)) return AUTOTUNE_NO_PROBLEM;
    if (!call->packed) call->packed = new_packed(family, problem, call);
    if (!call->packed) return AUTOTUNE_NO_MEMORY;
    status = run_problem(library, family, problem, call);
    if (status == AUTOTUNE_OK) *packed = call->packed;
    else if (!*packed) autotune_release_packed(call->packed);
    return status;
}
#endif

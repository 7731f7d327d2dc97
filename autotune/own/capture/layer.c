/* Records the OpenCL kernels that a program launches: an OpenCL layer (OPENCL_LAYERS), or a library for LD_PRELOAD.
 *
 * It writes into a folder of the process below AUTOTUNE_CAPTURE:
 *   records.jsonl     a line for the process, for each launch (a kernel with its sizes and integers), for each contents
 *   counters.bin      for each launch the number of its runs, of those timed, their nanoseconds, and whether its
 *                     contents are here: mapped memory, so that they survive the end of the process, whatever it is
 *   program-P.cl      sources
 *   K-I-before.bin    memory of argument I before a run of launch K; K-I-after.bin if the run changed it
 *
 * Contents are copied at the first run of a launch while there is room. After that, a launch that turns out to take
 * much more time than one that is here takes its place. No header of OpenCL is needed: what is used of it is below.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef void *handle;
typedef int32_t cl_int;
typedef uint32_t cl_uint;
typedef uint64_t cl_ulong;
typedef void (*any_function)(void);
typedef void (*notify)(handle, void *);

enum {
    DEVICE_NAME = 0x102B, QUEUE_DEVICE = 0x1091, QUEUE_PROPERTIES = 0x1093, PROFILING_ENABLE = 2, ON_DEVICE = 4,
    MEM_TYPE = 0x1100, MEM_FLAGS = 0x1101, MEM_SIZE = 0x1102, MEM_ASSOCIATED = 0x1107, MEM_OFFSET = 0x1108,
    MEM_IS_BUFFER = 0x10F0, MEM_IS_PIPE = 0x10F7, MEM_IMAGE1D_BUFFER = 0x10F6,
    IMAGE_FORMAT = 0x1110, IMAGE_ELEMENT_SIZE = 0x1111, IMAGE_WIDTH = 0x1114, IMAGE_HEIGHT = 0x1115,
    IMAGE_DEPTH = 0x1116, IMAGE_ARRAY_SIZE = 0x1117, IMAGE_BUFFER = 0x1118,
    KERNEL_NAME = 0x1190, KERNEL_ARGUMENTS = 0x1191, KERNEL_PROGRAM = 0x1194,
    ARG_ADDRESS = 0x1196, ARG_ACCESS = 0x1197, ARG_TYPE = 0x1198, ARG_QUALIFIER = 0x1199, ARG_NAME = 0x119A,
    ADDRESS_GLOBAL = 0x119B, ADDRESS_LOCAL = 0x119C, ADDRESS_CONSTANT = 0x119D, ADDRESS_PRIVATE = 0x119E,
    EVENT_STATUS = 0x11D3, PROFILING_START = 0x1282, PROFILING_END = 0x1283,
    INVALID_BUILD_OPTIONS = -43, INVALID_VALUE = -30, LAYER_API_VERSION = 0x4240, LAYER_NAME = 0x4241
};

/* Functions that are called or replaced: name, place in the dispatch table of the loader, result, parameters. */
#define CALLED(X) \
    X(clGetDeviceInfo, 3, cl_int, (handle, cl_uint, size_t, void *, size_t *)) \
    X(clGetCommandQueueInfo, 12, cl_int, (handle, cl_uint, size_t, void *, size_t *)) \
    X(clGetMemObjectInfo, 20, cl_int, (handle, cl_uint, size_t, void *, size_t *)) \
    X(clGetImageInfo, 21, cl_int, (handle, cl_uint, size_t, void *, size_t *)) \
    X(clGetKernelInfo, 39, cl_int, (handle, cl_uint, size_t, void *, size_t *)) \
    X(clGetEventInfo, 42, cl_int, (handle, cl_uint, size_t, void *, size_t *)) \
    X(clRetainEvent, 43, cl_int, (handle)) \
    X(clReleaseEvent, 44, cl_int, (handle)) \
    X(clGetEventProfilingInfo, 45, cl_int, (handle, cl_uint, size_t, void *, size_t *)) \
    X(clEnqueueReadImage, 51, cl_int, (handle, handle, cl_uint, const size_t *, const size_t *, size_t, size_t, \
        void *, cl_uint, const handle *, handle *)) \
    X(clGetKernelArgInfo, 101, cl_int, (handle, cl_uint, cl_uint, size_t, void *, size_t *))
#define REPLACED(X) \
    X(clReleaseContext, 7, cl_int, (handle)) \
    X(clCreateCommandQueue, 9, handle, (handle, handle, cl_ulong, cl_int *)) \
    X(clReleaseCommandQueue, 11, cl_int, (handle)) \
    X(clCreateProgramWithSource, 26, handle, (handle, cl_uint, const char **, const size_t *, cl_int *)) \
    X(clCreateProgramWithBinary, 27, handle, (handle, cl_uint, const handle *, const size_t *, \
        const unsigned char **, cl_int *, cl_int *)) \
    X(clBuildProgram, 30, cl_int, (handle, cl_uint, const handle *, const char *, notify, void *)) \
    X(clCreateKernel, 34, handle, (handle, const char *, cl_int *)) \
    X(clCreateKernelsInProgram, 35, cl_int, (handle, cl_uint, handle *, cl_uint *)) \
    X(clSetKernelArg, 38, cl_int, (handle, cl_uint, size_t, const void *)) \
    X(clWaitForEvents, 41, cl_int, (cl_uint, const handle *)) \
    X(clFinish, 47, cl_int, (handle)) \
    X(clEnqueueReadBuffer, 48, cl_int, (handle, handle, cl_uint, size_t, size_t, void *, cl_uint, const handle *, \
        handle *)) \
    X(clEnqueueMapBuffer, 56, void *, (handle, handle, cl_uint, cl_ulong, size_t, size_t, cl_uint, const handle *, \
        handle *, cl_int *)) \
    X(clEnqueueNDRangeKernel, 59, cl_int, (handle, handle, cl_uint, const size_t *, const size_t *, const size_t *, \
        cl_uint, const handle *, handle *)) \
    X(clEnqueueTask, 60, cl_int, (handle, handle, cl_uint, const handle *, handle *)) \
    X(clCreateUserEvent, 84, handle, (handle, cl_int *)) \
    X(clSetUserEventStatus, 85, cl_int, (handle, cl_int)) \
    X(clCreateProgramWithBuiltInKernels, 97, handle, (handle, cl_uint, const handle *, const char *, cl_int *)) \
    X(clLinkProgram, 99, handle, (handle, cl_uint, const handle *, const char *, cl_uint, const handle *, notify, \
        void *, cl_int *)) \
    X(clCreateCommandQueueWithProperties, 123, handle, (handle, handle, const cl_ulong *, cl_int *)) \
    X(clSetKernelArgSVMPointer, 134, cl_int, (handle, cl_uint, const void *)) \
    X(clCloneKernel, 137, handle, (handle, cl_int *)) \
    X(clCreateProgramWithIL, 138, handle, (handle, const void *, size_t, cl_int *))

enum { SLOTS = 256 };
#define TYPE(name, slot, result, parameters) typedef result(*name##_type) parameters;
CALLED(TYPE) REPLACED(TYPE)
#define SLOT(name, slot, result, parameters) slot_##name = slot,
enum slots { CALLED(SLOT) REPLACED(SLOT) };
#define HOOK(name, slot, result, parameters) static result hook_##name parameters;
REPLACED(HOOK)
#define CALL(name) ((name##_type)next_function(slot_##name, #name))

static any_function next_table[SLOTS], layer_table[SLOTS];
static int is_layer;

/* Records */

enum { MOST_LAUNCHES = 16384, MOST_WITH_INTEGERS = 8192, MOST_PENDING = 256, BUCKETS = 4096, KEPT_OF_A_KERNEL = 4 };
enum { MOST_PATH = 4096 };

struct counter { uint64_t runs, timed, time_ns, has_contents; };
struct argument { size_t size; unsigned char *value; int is_set, is_pointer; };
struct kernel {
    handle id;
    struct kernel *next;
    char *name;
    handle program;
    cl_uint count;
    int has_info;
    struct argument *arguments;
    struct info { char *type, *name; cl_uint address, access; cl_ulong qualifier; } *info;
};
struct program { handle id; struct program *next; int number; char *options; };
struct launch { uint64_t hash, kernel_hash; uint64_t bytes; int is_impossible; };
struct pending { handle event; int launch; };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;         /* of everything below */
static pthread_mutex_t copying = PTHREAD_MUTEX_INITIALIZER;      /* held while contents are copied */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static char folder[3000];
static int log_file = -1;
static struct counter *counters;
static struct launch launches[MOST_LAUNCHES];
static int launch_count, program_count, user_events, times_by_clock;
static struct kernel *kernels[BUCKETS];
static struct program *programs[BUCKETS];
static uint64_t *program_hashes;
static struct pending pending[MOST_PENDING];
static int first_pending, pending_count;
static uint64_t bytes_here, most_bytes;

static unsigned bucket(handle id) { return (unsigned)(((uintptr_t)id >> 4) * 2654435761u) % BUCKETS; }

static uint64_t hashed(uint64_t hash, const void *data, size_t size) {
    const unsigned char *bytes = data;
    size_t i;
    for (i = 0; i < size; i++) hash = (hash ^ bytes[i]) * 1099511628211u;
    return hash;
}

static uint64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* Text that grows; a text without memory ends as one that is not written. */
struct text { char *data; size_t size, room; int has_failed; };

static void add_bytes(struct text *text, const char *data, size_t size) {
    if (text->size + size + 1 > text->room) {
        const size_t room = 2 * (text->size + size + 64);
        char *const grown = realloc(text->data, room);
        if (grown == NULL) { text->has_failed = 1; return; }
        text->data = grown;
        text->room = room;
    }
    memcpy(text->data + text->size, data, size);
    text->size += size;
    text->data[text->size] = '\0';
}

static void add(struct text *text, const char *format, ...) {
    char part[200];
    va_list values;
    int size;
    va_start(values, format);
    size = vsnprintf(part, sizeof part, format, values);
    va_end(values);
    if (size > 0) add_bytes(text, part, size < (int)sizeof part ? (size_t)size : sizeof part - 1);
}

static void add_string(struct text *text, const char *string) {
    add(text, "\"");
    for (; string != NULL && *string; string++) {
        const unsigned char c = (unsigned char)*string;
        if (c == '"' || c == '\\' || c < 32 || c > 126) add(text, "\\u%04x", c);
        else add_bytes(text, string, 1);
    }
    add(text, "\"");
}

static void write_line(struct text *text) {
    add(text, "\n");
    if (!text->has_failed && log_file >= 0 && write(log_file, text->data, text->size) < 0) log_file = -1;
    free(text->data);
}

static int write_file(const char *name, const void *data, size_t size) {
    char path[3200];
    FILE *file;
    int is_whole;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    file = fopen(path, "wb");
    if (file == NULL) return 0;
    is_whole = fwrite(data, 1, size, file) == size;
    return fclose(file) == 0 && is_whole;
}

static void stop_in_child(void) { log_file = -1; counters = NULL; }

static void start(void) {
    const char *const root = getenv("AUTOTUNE_CAPTURE"), *const limit = getenv("AUTOTUNE_CAPTURE_BYTES");
    char path[3200], place[3000];
    struct text text = {0};
    int file;
    if (root == NULL || strlen(root) > 2900) return;
    most_bytes = limit != NULL ? strtoull(limit, NULL, 10) : (uint64_t)1 << 30;
    snprintf(folder, sizeof folder, "%s/%ld", root, (long)getpid());
    if (mkdir(folder, 0700) != 0 && errno != EEXIST) return;
    snprintf(path, sizeof path, "%s/counters.bin", folder);
    file = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate(file, MOST_LAUNCHES * sizeof(struct counter)) != 0) return;
    counters = mmap(NULL, MOST_LAUNCHES * sizeof(struct counter), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (counters == MAP_FAILED) { counters = NULL; return; }
    snprintf(path, sizeof path, "%s/records.jsonl", folder);
    log_file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    pthread_atfork(NULL, NULL, stop_in_child);
    add(&text, "{\"process\": %ld, \"layer\": %d, \"folder\": ", (long)getpid(), is_layer);
    add_string(&text, getcwd(place, sizeof place));
    add(&text, "}");
    write_line(&text);
}

static int is_recording(void) {
    pthread_once(&once, start);
    return counters != NULL && log_file >= 0;
}

/* The functions behind: those of the loader's table, or of the library that the program is linked with. */

static int find_loader(struct dl_phdr_info *info, size_t size, void *path) {
    (void)size;
    if (strstr(info->dlpi_name, "libOpenCL") == NULL || strlen(info->dlpi_name) >= MOST_PATH) return 0;
    strcpy(path, info->dlpi_name);
    return 1;
}

/* The function of a library that the program has opened itself. It is opened after the search: while that holds a lock
   of the dynamic linker, it would wait for ever for another thread that opens one, as PoCL does for each kernel. */
static void *opened_function(const char *name) {
    char path[MOST_PATH];
    void *const library = dl_iterate_phdr(find_loader, path) ? dlopen(path, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    return library != NULL ? dlsym(library, name) : NULL;
}

static any_function next_function(int slot, const char *name) {
    any_function known = __atomic_load_n(&next_table[slot], __ATOMIC_ACQUIRE); /* threads fill it at the same time */
    if (!is_layer && known == NULL) {
        void *found = dlsym(RTLD_NEXT, name);
        if (found == NULL) found = opened_function(name);
        memcpy(&known, &found, sizeof found);
        __atomic_store_n(&next_table[slot], known, __ATOMIC_RELEASE);
    }
    return known;
}

/* Kernels and programs by handle. A new object may have the handle of an old one, whose record it replaces. */

static struct program *program_of(handle id) {
    struct program *found = programs[bucket(id)];
    while (found != NULL && found->id != id) found = found->next;
    return found;
}

static void set_program(handle id, int number) {
    struct program *found;
    if (id == NULL || !is_recording()) return;
    pthread_mutex_lock(&lock);
    found = program_of(id);
    if (found == NULL && (found = calloc(1, sizeof *found)) != NULL) {
        found->id = id;
        found->next = programs[bucket(id)];
        programs[bucket(id)] = found;
    }
    if (found != NULL) {
        free(found->options);
        found->options = NULL;
        found->number = number;
    }
    pthread_mutex_unlock(&lock);
}

static char *kernel_text(handle kernel, cl_int index, cl_uint what) {
    size_t size = 0;
    char *text;
    const cl_int status = index < 0 ? CALL(clGetKernelInfo)(kernel, what, 0, NULL, &size)
                                    : CALL(clGetKernelArgInfo)(kernel, (cl_uint)index, what, 0, NULL, &size);
    if (status != 0 || (text = calloc(1, size + 1)) == NULL) return NULL;
    if (index < 0) CALL(clGetKernelInfo)(kernel, what, size, text, NULL);
    else CALL(clGetKernelArgInfo)(kernel, (cl_uint)index, what, size, text, NULL);
    return text;
}

static void clear(struct kernel *kernel) {
    cl_uint i;
    for (i = 0; i < kernel->count; i++) {
        free(kernel->arguments[i].value);
        free(kernel->info[i].type);
        free(kernel->info[i].name);
    }
    free(kernel->arguments);
    free(kernel->info);
    free(kernel->name);
    kernel->arguments = NULL;
    kernel->info = NULL;
    kernel->name = NULL;
    kernel->count = 0;
}

/* The record of a kernel, made anew if asked to. The caller holds the lock. */
static struct kernel *kernel_of(handle id, int is_new) {
    struct kernel *found = kernels[bucket(id)];
    cl_uint i;
    while (found != NULL && found->id != id) found = found->next;
    if (found != NULL && !is_new) return found;
    if (found == NULL) {
        if ((found = calloc(1, sizeof *found)) == NULL) return NULL;
        found->id = id;
        found->next = kernels[bucket(id)];
        kernels[bucket(id)] = found;
    }
    clear(found);
    found->name = kernel_text(id, -1, KERNEL_NAME);
    CALL(clGetKernelInfo)(id, KERNEL_PROGRAM, sizeof found->program, &found->program, NULL);
    CALL(clGetKernelInfo)(id, KERNEL_ARGUMENTS, sizeof found->count, &found->count, NULL);
    found->arguments = calloc(found->count + 1, sizeof *found->arguments);
    found->info = calloc(found->count + 1, sizeof *found->info);
    if (found->arguments == NULL || found->info == NULL) found->count = 0;
    found->has_info = found->arguments != NULL && CALL(clGetKernelArgInfo) != NULL;
    for (i = 0; found->has_info && i < found->count; i++) {
        struct info *const info = &found->info[i];
        const clGetKernelArgInfo_type ask = CALL(clGetKernelArgInfo);
        found->has_info = ask(id, i, ARG_ADDRESS, sizeof info->address, &info->address, NULL) == 0;
        ask(id, i, ARG_ACCESS, sizeof info->access, &info->access, NULL);
        ask(id, i, ARG_QUALIFIER, sizeof info->qualifier, &info->qualifier, NULL);
        info->type = kernel_text(id, (cl_int)i, ARG_TYPE);
        info->name = kernel_text(id, (cl_int)i, ARG_NAME);
    }
    return found;
}

static void set_argument(handle id, cl_uint index, size_t size, const void *value, int is_pointer) {
    struct kernel *kernel;
    if (!is_recording()) return;
    pthread_mutex_lock(&lock);
    kernel = kernel_of(id, 0);
    if (kernel != NULL && index < kernel->count) {
        struct argument *const argument = &kernel->arguments[index];
        free(argument->value);
        argument->value = value != NULL && !is_pointer ? malloc(size + 1) : NULL;
        if (argument->value != NULL) memcpy(argument->value, value, size);
        argument->size = size;
        argument->is_set = 1;
        argument->is_pointer = is_pointer;
    }
    pthread_mutex_unlock(&lock);
}

/* Times */

/* Read the times of events that have finished, in the order of their launches. */
static void harvest(void) {
    if (!is_recording()) return;
    pthread_mutex_lock(&lock);
    while (pending_count > 0) {
        struct pending *const oldest = &pending[first_pending];
        struct counter *const counter = &counters[oldest->launch];
        cl_int status = 0;
        cl_ulong begun = 0, ended = 0;
        const cl_int error = CALL(clGetEventInfo)(oldest->event, EVENT_STATUS, sizeof status, &status, NULL);
        if (error == 0 && status > 0 && pending_count < MOST_PENDING) break;
        if (error == 0 && status == 0) {
            CALL(clGetEventProfilingInfo)(oldest->event, PROFILING_START, sizeof begun, &begun, NULL);
            CALL(clGetEventProfilingInfo)(oldest->event, PROFILING_END, sizeof ended, &ended, NULL);
            if (ended > begun) {
                counter->timed++;
                counter->time_ns += ended - begun;
            } else {
                times_by_clock = 1; /* no profiling, or a timer that stands still */
            }
        }
        CALL(clReleaseEvent)(oldest->event);
        first_pending = (first_pending + 1) % MOST_PENDING;
        pending_count--;
    }
    pthread_mutex_unlock(&lock);
}

static void await(handle event, int launch) {
    pthread_mutex_lock(&lock);
    if (pending_count < MOST_PENDING) {
        pending[(first_pending + pending_count) % MOST_PENDING].event = event;
        pending[(first_pending + pending_count) % MOST_PENDING].launch = launch;
        pending_count++;
        event = NULL;
    }
    pthread_mutex_unlock(&lock);
    if (event != NULL) CALL(clReleaseEvent)(event);
}

/* Launches */

struct range { cl_uint dimensions; const size_t *offset, *global_size, *local_size; };

static void add_sizes(struct text *text, const char *name, const size_t *sizes, cl_uint count) {
    cl_uint i;
    add(text, ", \"%s\": [", name);
    for (i = 0; sizes != NULL && i < count; i++) add(text, "%s%zu", i ? ", " : "", sizes[i]);
    add(text, "]");
}

static int is_integer(const struct info *info) {
    const char *const type = info->type != NULL ? info->type : "";
    return info->address == ADDRESS_PRIVATE && !strstr(type, "float") && !strstr(type, "double")
           && !strstr(type, "half") && !strstr(type, "sampler");
}

/* Why the contents of a kernel's arguments cannot be copied, or NULL. */
static const char *obstacle(const struct kernel *kernel, const struct program *program) {
    cl_uint i;
    if (program == NULL || program->number < 0) return "its program was not built from source, but from a binary, "
        "from an intermediate language, or linked";
    if (!kernel->has_info) return "the driver tells nothing about the kernel's arguments";
    for (i = 0; i < kernel->count; i++) {
        const struct argument *const argument = &kernel->arguments[i];
        const cl_uint address = kernel->info[i].address;
        if (argument->is_pointer) return "an argument is shared virtual memory";
        if ((address == ADDRESS_GLOBAL || address == ADDRESS_CONSTANT)
            && (argument->value == NULL || *(handle *)argument->value == NULL)) return "an argument is a null pointer";
    }
    return NULL;
}

/* The number of a launch; new ones are recorded. Negative if there are too many. The caller holds the lock. */
static int launch_of(const struct kernel *kernel, handle queue, const struct range *range) {
    const struct program *const program = program_of(kernel->program);
    const int number = program != NULL ? program->number : -1;
    const char *const options = program != NULL && program->options != NULL ? program->options : "";
    uint64_t hash = hashed(14695981039346656037u, &number, sizeof number), kernel_hash;
    char device_name[256] = "";
    handle device = NULL;
    struct text text = {0};
    cl_uint i;
    int found;
    hash = hashed(hash, options, strlen(options));
    hash = hashed(hash, kernel->name, kernel->name != NULL ? strlen(kernel->name) : 0);
    kernel_hash = hash;
    for (i = 0; i < range->dimensions; i++) {
        const size_t sizes[] = {
            range->global_size[i], range->local_size ? range->local_size[i] : 0, range->offset ? range->offset[i] : 0,
        };
        hash = hashed(hash, sizes, sizeof sizes);
    }
    for (i = 0; kernel->has_info && i < kernel->count && launch_count < MOST_WITH_INTEGERS; i++)
        if (is_integer(&kernel->info[i]) && kernel->arguments[i].value != NULL)
            hash = hashed(hash, kernel->arguments[i].value, kernel->arguments[i].size);
    for (found = 0; found < launch_count; found++)
        if (launches[found].hash == hash) return found;
    if (launch_count == MOST_LAUNCHES) return -1;
    launches[launch_count].hash = hash;
    launches[launch_count].kernel_hash = kernel_hash;
    launches[launch_count].is_impossible = obstacle(kernel, program) != NULL;
    CALL(clGetCommandQueueInfo)(queue, QUEUE_DEVICE, sizeof device, &device, NULL);
    CALL(clGetDeviceInfo)(device, DEVICE_NAME, sizeof device_name - 1, device_name, NULL);
    add(&text, "{\"launch\": %d, \"program\": %d, \"kernel\": ", launch_count, number);
    add_string(&text, kernel->name);
    add(&text, ", \"options\": ");
    add_string(&text, options);
    add(&text, ", \"device\": ");
    add_string(&text, device_name);
    add_sizes(&text, "global_size", range->global_size, range->dimensions);
    add_sizes(&text, "local_size", range->local_size, range->dimensions);
    add_sizes(&text, "offset", range->offset, range->dimensions);
    add(&text, ", \"obstacle\": ");
    add_string(&text, obstacle(kernel, program));
    add(&text, "}");
    write_line(&text);
    return launch_count++;
}

/* Contents */

struct memory { handle id; cl_uint argument; size_t bytes; unsigned char *before, *after; };
struct copy { struct memory *memories; cl_uint count; uint64_t bytes; struct text line; int is_whole; };

static size_t memory_size(handle memory, cl_uint what) {
    size_t value = 0;
    CALL(clGetMemObjectInfo)(memory, what, sizeof value, &value, NULL);
    return value;
}

static size_t image_size(handle image, cl_uint what) {
    size_t value = 0;
    CALL(clGetImageInfo)(image, what, sizeof value, &value, NULL);
    return value;
}

static void image_region(handle image, size_t region[3]) {
    const size_t layers = image_size(image, IMAGE_ARRAY_SIZE);
    region[0] = image_size(image, IMAGE_WIDTH);
    region[1] = image_size(image, IMAGE_HEIGHT);
    region[2] = image_size(image, IMAGE_DEPTH);
    if (layers && region[1]) region[2] = layers;
    else if (layers) region[1] = layers;
    if (!region[1]) region[1] = 1;
    if (!region[2]) region[2] = 1;
}

static cl_uint memory_type(handle memory) {
    cl_uint type = 0;
    CALL(clGetMemObjectInfo)(memory, MEM_TYPE, sizeof type, &type, NULL);
    return type;
}

static size_t bytes_of(handle memory) {
    size_t region[3];
    const cl_uint type = memory_type(memory);
    if (type == MEM_IS_BUFFER) return memory_size(memory, MEM_SIZE);
    image_region(memory, region);
    return region[0] * region[1] * region[2] * image_size(memory, IMAGE_ELEMENT_SIZE);
}

static int read_memory(handle queue, const struct memory *memory, unsigned char *data) {
    static const size_t origin[3] = {0, 0, 0};
    const cl_uint type = memory_type(memory->id);
    size_t region[3];
    if (type == MEM_IS_BUFFER)
        return CALL(clEnqueueReadBuffer)(queue, memory->id, 1, 0, memory->bytes, data, 0, NULL, NULL) == 0;
    if (type == MEM_IMAGE1D_BUFFER) {
        handle buffer = NULL;
        CALL(clGetImageInfo)(memory->id, IMAGE_BUFFER, sizeof buffer, &buffer, NULL);
        return buffer != NULL
               && CALL(clEnqueueReadBuffer)(queue, buffer, 1, 0, memory->bytes, data, 0, NULL, NULL) == 0;
    }
    image_region(memory->id, region);
    return CALL(clEnqueueReadImage)(queue, memory->id, 1, origin, region, 0, 0, data, 0, NULL, NULL) == 0;
}

static void describe_memory(struct text *text, handle memory) {
    const cl_uint type = memory_type(memory);
    handle parent = NULL;
    cl_ulong flags = 0;
    CALL(clGetMemObjectInfo)(memory, MEM_ASSOCIATED, sizeof parent, &parent, NULL);
    CALL(clGetMemObjectInfo)(memory, MEM_FLAGS, sizeof flags, &flags, NULL);
    add(text, ", \"memory\": %llu, \"parent\": %llu, \"offset\": %zu, \"flags\": %llu, \"bytes\": %zu, \"object\": %u",
        (unsigned long long)(uintptr_t)memory, (unsigned long long)(uintptr_t)(parent != NULL ? parent : memory),
        memory_size(memory, MEM_OFFSET), (unsigned long long)flags, bytes_of(memory), (unsigned)type);
    if (type != MEM_IS_BUFFER) {
        size_t region[3];
        cl_uint format[2] = {0, 0};
        image_region(memory, region);
        CALL(clGetImageInfo)(memory, IMAGE_FORMAT, sizeof format, format, NULL);
        add(text, ", \"order\": %u, \"channel\": %u", (unsigned)format[0], (unsigned)format[1]);
        add_sizes(text, "region", region, 3);
    }
}

static void free_copy(struct copy *copy) {
    cl_uint i;
    for (i = 0; i < copy->count; i++) {
        free(copy->memories[i].before);
        free(copy->memories[i].after);
    }
    free(copy->memories);
    free(copy->line.data);
    memset(copy, 0, sizeof *copy);
}

/* List the arguments of a launch, with their memory. The caller holds the lock. */
static void prepare_copy(struct copy *copy, const struct kernel *kernel, int launch) {
    cl_uint i, byte;
    memset(copy, 0, sizeof *copy);
    copy->memories = calloc(kernel->count + 1, sizeof *copy->memories);
    copy->is_whole = copy->memories != NULL;
    add(&copy->line, "{\"contents\": %d, \"arguments\": [", launch);
    for (i = 0; copy->is_whole && i < kernel->count; i++) {
        const struct argument *const argument = &kernel->arguments[i];
        const struct info *const info = &kernel->info[i];
        add(&copy->line, "%s{\"name\": ", i ? ", " : "");
        add_string(&copy->line, info->name);
        add(&copy->line, ", \"type\": ");
        add_string(&copy->line, info->type);
        add(&copy->line, ", \"address\": %u, \"access\": %u, \"qualifier\": %u, \"size\": %zu, \"value\": \"",
            (unsigned)info->address, (unsigned)info->access, (unsigned)info->qualifier, argument->size);
        for (byte = 0; info->address == ADDRESS_PRIVATE && argument->value && byte < argument->size; byte++)
            add(&copy->line, "%02x", argument->value[byte]);
        add(&copy->line, "\"");
        if (info->address == ADDRESS_GLOBAL || info->address == ADDRESS_CONSTANT) {
            struct memory *const memory = &copy->memories[copy->count];
            copy->is_whole = argument->value != NULL && *(handle *)argument->value != NULL && !argument->is_pointer;
            if (!copy->is_whole) break;
            copy->count++;
            memory->id = *(handle *)argument->value;
            memory->argument = i;
            memory->bytes = bytes_of(memory->id);
            copy->bytes += 2 * (uint64_t)memory->bytes;
            describe_memory(&copy->line, memory->id);
            if (memory_type(memory->id) == MEM_IS_PIPE) copy->is_whole = 0;
        }
        add(&copy->line, "}");
    }
    add(&copy->line, "]}");
}

static void name_file(char name[64], int launch, cl_uint argument, const char *when) {
    snprintf(name, 64, "%d-%u-%s.bin", launch, (unsigned)argument, when);
}

static void remove_contents(int launch) {
    char name[64], path[3200];
    cl_uint i;
    int after;
    for (i = 0; i < 256; i++)
        for (after = 0; after < 2; after++) {
            name_file(name, launch, i, after ? "after" : "before");
            snprintf(path, sizeof path, "%s/%s", folder, name);
            unlink(path);
        }
    counters[launch].has_contents = 0;
    bytes_here -= launches[launch].bytes;
    launches[launch].bytes = 0;
}

/* Whether there is room for the contents of a launch; those of launches with less than half its time make room. */
static int make_room(int launch, uint64_t bytes) {
    if (bytes > most_bytes) return 0;
    for (;;) {
        int other, of_kernel = 0, least = -1;
        for (other = 0; other < launch_count; other++)
            of_kernel += counters[other].has_contents && launches[other].kernel_hash == launches[launch].kernel_hash;
        if (of_kernel < KEPT_OF_A_KERNEL && bytes_here + bytes <= most_bytes) return 1;
        for (other = 0; other < launch_count; other++) {
            const int is_sibling = launches[other].kernel_hash == launches[launch].kernel_hash;
            if (counters[other].has_contents && (is_sibling || of_kernel < KEPT_OF_A_KERNEL)
                && (least < 0 || counters[other].time_ns < counters[least].time_ns)) least = other;
        }
        if (least < 0 || counters[launch].time_ns <= 2 * counters[least].time_ns) return 0;
        remove_contents(least);
    }
}

/* Read all memory of the arguments, once everything before has finished. */
static int read_all(struct copy *copy, handle queue, int is_after) {
    cl_uint i;
    if (CALL(clFinish)(queue) != 0) return 0;
    for (i = 0; i < copy->count; i++) {
        struct memory *const memory = &copy->memories[i];
        unsigned char *const data = malloc(memory->bytes + 1);
        if (is_after) memory->after = data;
        else memory->before = data;
        if (data == NULL || !read_memory(queue, memory, data)) return 0;
    }
    return 1;
}

static void store_copy(struct copy *copy, int launch) {
    char name[64];
    cl_uint i;
    uint64_t bytes = 0;
    for (i = 0; i < copy->count && copy->is_whole; i++) {
        const struct memory *const memory = &copy->memories[i];
        const int is_changed = memcmp(memory->before, memory->after, memory->bytes) != 0;
        name_file(name, launch, memory->argument, "before");
        copy->is_whole = write_file(name, memory->before, memory->bytes);
        name_file(name, launch, memory->argument, "after");
        if (is_changed) copy->is_whole = copy->is_whole && write_file(name, memory->after, memory->bytes);
        bytes += memory->bytes * (is_changed ? 2u : 1u);
    }
    pthread_mutex_lock(&lock);
    launches[launch].bytes = bytes;
    bytes_here += bytes;
    if (copy->is_whole) {
        write_line(&copy->line);
        memset(&copy->line, 0, sizeof copy->line);
        counters[launch].has_contents = 1;
    } else {
        launches[launch].is_impossible = 1;
        remove_contents(launch);
    }
    pthread_mutex_unlock(&lock);
}

/* What programs call */

static cl_int hook_clEnqueueNDRangeKernel(handle queue, handle id, cl_uint dimensions, const size_t *offset,
        const size_t *global_size, const size_t *local_size, cl_uint waited, const handle *wait_list, handle *event) {
    const clEnqueueNDRangeKernel_type enqueue = CALL(clEnqueueNDRangeKernel);
    const struct range range = {dimensions, offset, global_size, local_size};
    struct copy copy = {0};
    struct kernel *kernel;
    handle own = NULL;
    cl_int status;
    uint64_t began = 0;
    int launch = -1, is_copied = 0, is_timed, may_wait;
    if (!is_recording() || global_size == NULL || dimensions < 1 || dimensions > 3)
        return enqueue(queue, id, dimensions, offset, global_size, local_size, waited, wait_list, event);
    harvest();
    pthread_mutex_lock(&lock);
    kernel = kernel_of(id, 0);
    if (kernel != NULL) launch = launch_of(kernel, queue, &range);
    may_wait = user_events == 0;
    is_timed = launch >= 0 && times_by_clock && may_wait;
    if (launch >= 0 && !launches[launch].is_impossible && !counters[launch].has_contents && may_wait
        && (is_copied = pthread_mutex_trylock(&copying) == 0)) {
        prepare_copy(&copy, kernel, launch);
        is_copied = copy.is_whole && make_room(launch, copy.bytes);
        if (!is_copied) pthread_mutex_unlock(&copying);
    }
    pthread_mutex_unlock(&lock);
    if (is_copied) {
        if (waited > 0) CALL(clWaitForEvents)(waited, wait_list);
        copy.is_whole = read_all(&copy, queue, 0);
    }
    if (is_timed) {
        CALL(clFinish)(queue);
        began = now_ns();
    }
    status = enqueue(queue, id, dimensions, offset, global_size, local_size, waited, wait_list, event ? event : &own);
    if (status == 0 && launch >= 0) {
        if (is_timed) CALL(clFinish)(queue);
        pthread_mutex_lock(&lock);
        counters[launch].runs++;
        if (is_timed) {
            counters[launch].timed++;
            counters[launch].time_ns += now_ns() - began;
        }
        pthread_mutex_unlock(&lock);
    }
    if (status == 0 && (is_timed || launch < 0) && own != NULL) CALL(clReleaseEvent)(own);
    if (status == 0 && !is_timed && launch >= 0) {
        if (event != NULL) CALL(clRetainEvent)(*event);
        await(event != NULL ? *event : own, launch);
    }
    if (is_copied) {
        if (status == 0) {
            copy.is_whole = copy.is_whole && read_all(&copy, queue, 1);
            store_copy(&copy, launch);
            harvest();
        }
        pthread_mutex_unlock(&copying);
    }
    free_copy(&copy);
    return status;
}

static cl_int hook_clEnqueueTask(handle queue, handle kernel, cl_uint waited, const handle *wait_list, handle *event) {
    static const size_t one = 1;
    return hook_clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &one, &one, waited, wait_list, event);
}

static handle hook_clCreateCommandQueue(handle context, handle device, cl_ulong properties, cl_int *status) {
    const clCreateCommandQueue_type create = CALL(clCreateCommandQueue);
    handle const made = create(context, device, properties | PROFILING_ENABLE, status);
    return made != NULL ? made : create(context, device, properties, status);
}

static handle hook_clCreateCommandQueueWithProperties(
        handle context, handle device, const cl_ulong *properties, cl_int *status) {
    const clCreateCommandQueueWithProperties_type create = CALL(clCreateCommandQueueWithProperties);
    cl_ulong more[64];
    int count = 0, place = -1;
    handle made;
    for (; properties != NULL && properties[count] != 0 && count < 60; count += 2) {
        more[count] = properties[count];
        more[count + 1] = properties[count + 1];
        if (properties[count] == QUEUE_PROPERTIES) place = count + 1;
    }
    if (count >= 60 || (place >= 0 && more[place] & ON_DEVICE)) return create(context, device, properties, status);
    if (place < 0) {
        more[count] = QUEUE_PROPERTIES;
        more[place = count + 1] = 0;
        count += 2;
    }
    more[place] |= PROFILING_ENABLE;
    more[count] = 0;
    made = create(context, device, more, status);
    return made != NULL ? made : create(context, device, properties, status);
}

static handle hook_clCreateProgramWithSource(
        handle context, cl_uint count, const char **strings, const size_t *lengths, cl_int *status) {
    handle const made = CALL(clCreateProgramWithSource)(context, count, strings, lengths, status);
    struct text text = {0};
    char name[64];
    uint64_t hash, *grown;
    cl_uint i;
    int number;
    if (made == NULL || !is_recording()) return made;
    for (i = 0; i < count; i++)
        add_bytes(&text, strings[i], lengths != NULL && lengths[i] ? lengths[i] : strlen(strings[i]));
    hash = hashed(14695981039346656037u, text.data, text.size);
    pthread_mutex_lock(&lock);
    for (number = 0; number < program_count && program_hashes[number] != hash; number++) {}
    if (number == program_count) {
        grown = realloc(program_hashes, (size_t)(program_count + 1) * sizeof *grown);
        snprintf(name, sizeof name, "program-%d.cl", number);
        if (grown != NULL) program_hashes = grown;
        if (grown == NULL || text.has_failed || !write_file(name, text.data, text.size)) number = -1;
        else program_hashes[program_count++] = hash;
    }
    pthread_mutex_unlock(&lock);
    free(text.data);
    set_program(made, number);
    return made;
}

/* Programs without a source of their own. */
#define WITHOUT_SOURCE(name, parameters, passed) \
    static handle hook_##name parameters { \
        handle const made = CALL(name) passed; \
        set_program(made, -1); \
        return made; \
    }
WITHOUT_SOURCE(clCreateProgramWithBinary, (handle context, cl_uint count, const handle *devices, const size_t *lengths,
    const unsigned char **binaries, cl_int *statuses, cl_int *status),
    (context, count, devices, lengths, binaries, statuses, status))
WITHOUT_SOURCE(clCreateProgramWithIL, (handle context, const void *il, size_t length, cl_int *status),
    (context, il, length, status))
WITHOUT_SOURCE(clCreateProgramWithBuiltInKernels, (handle context, cl_uint count, const handle *devices,
    const char *names, cl_int *status), (context, count, devices, names, status))
WITHOUT_SOURCE(clLinkProgram, (handle context, cl_uint devices, const handle *list, const char *options, cl_uint count,
    const handle *parts, notify callback, void *data, cl_int *status),
    (context, devices, list, options, count, parts, callback, data, status))

static cl_int hook_clBuildProgram(
        handle id, cl_uint count, const handle *devices, const char *options, notify callback, void *data) {
    const clBuildProgram_type build = CALL(clBuildProgram);
    struct program *program;
    struct text more = {0};
    cl_int status;
    int has_source = 0;
    if (!is_recording()) return build(id, count, devices, options, callback, data);
    if (options == NULL) options = "";
    pthread_mutex_lock(&lock);
    program = program_of(id);
    if (program != NULL) {
        has_source = program->number >= 0;
        free(program->options);
        program->options = strdup(options);
    }
    pthread_mutex_unlock(&lock);
    add_bytes(&more, options, strlen(options));
    add(&more, " -cl-kernel-arg-info");
    status = has_source && !more.has_failed ? build(id, count, devices, more.data, callback, data)
                                            : INVALID_BUILD_OPTIONS;
    free(more.data);
    return status == INVALID_BUILD_OPTIONS ? build(id, count, devices, options, callback, data) : status;
}

static void set_kernel(handle id) {
    if (id == NULL || !is_recording()) return;
    pthread_mutex_lock(&lock);
    kernel_of(id, 1);
    pthread_mutex_unlock(&lock);
}

static handle hook_clCreateKernel(handle program, const char *name, cl_int *status) {
    handle const made = CALL(clCreateKernel)(program, name, status);
    set_kernel(made);
    return made;
}

static cl_int hook_clCreateKernelsInProgram(handle program, cl_uint count, handle *made, cl_uint *made_count) {
    cl_uint found = 0, i;
    const cl_int status = CALL(clCreateKernelsInProgram)(program, count, made, &found);
    if (made_count != NULL) *made_count = found;
    for (i = 0; status == 0 && made != NULL && i < found && i < count; i++) set_kernel(made[i]);
    return status;
}

static handle hook_clCloneKernel(handle source, cl_int *status) {
    handle const made = CALL(clCloneKernel)(source, status);
    struct kernel *from;
    cl_uint i;
    set_kernel(made);
    if (made == NULL || !is_recording()) return made;
    pthread_mutex_lock(&lock);
    from = kernel_of(source, 0);
    pthread_mutex_unlock(&lock);
    for (i = 0; from != NULL && i < from->count; i++) {
        const struct argument *const argument = &from->arguments[i];
        if (argument->is_set) set_argument(made, i, argument->size, argument->value, argument->is_pointer);
    }
    return made;
}

static cl_int hook_clSetKernelArg(handle kernel, cl_uint index, size_t size, const void *value) {
    const cl_int status = CALL(clSetKernelArg)(kernel, index, size, value);
    if (status == 0) set_argument(kernel, index, size, value, 0);
    return status;
}

static cl_int hook_clSetKernelArgSVMPointer(handle kernel, cl_uint index, const void *value) {
    const cl_int status = CALL(clSetKernelArgSVMPointer)(kernel, index, value);
    if (status == 0) set_argument(kernel, index, sizeof value, value, 1);
    return status;
}

/* While a user event is open, waiting for a queue might never end. */
static void count_user_events(int change) {
    pthread_mutex_lock(&lock);
    user_events += change;
    pthread_mutex_unlock(&lock);
}

static handle hook_clCreateUserEvent(handle context, cl_int *status) {
    handle const made = CALL(clCreateUserEvent)(context, status);
    if (made != NULL) count_user_events(1);
    return made;
}

static cl_int hook_clSetUserEventStatus(handle event, cl_int given) {
    const cl_int status = CALL(clSetUserEventStatus)(event, given);
    if (status == 0) count_user_events(-1);
    return status;
}

/* Where programs wait, events have finished; what they release may be the last that is seen of them. */
#define HARVESTING(result, name, parameters, passed) \
    static result hook_##name parameters { \
        result const found = CALL(name) passed; \
        harvest(); \
        return found; \
    }
HARVESTING(cl_int, clFinish, (handle queue), (queue))
HARVESTING(cl_int, clReleaseCommandQueue, (handle queue), (queue))
HARVESTING(cl_int, clReleaseContext, (handle context), (context))
HARVESTING(cl_int, clWaitForEvents, (cl_uint count, const handle *events), (count, events))
HARVESTING(cl_int, clEnqueueReadBuffer, (handle queue, handle buffer, cl_uint is_blocking, size_t offset, size_t size,
    void *data, cl_uint waited, const handle *wait_list, handle *event),
    (queue, buffer, is_blocking, offset, size, data, waited, wait_list, event))
HARVESTING(void *, clEnqueueMapBuffer, (handle queue, handle buffer, cl_uint is_blocking, cl_ulong flags, size_t offset,
    size_t size, cl_uint waited, const handle *wait_list, handle *event, cl_int *status),
    (queue, buffer, is_blocking, flags, offset, size, waited, wait_list, event, status))

/* What the loader, or the dynamic linker, finds */

#define EXPORT(name, slot, result, parameters) result name parameters __attribute__((alias("hook_" #name)));
REPLACED(EXPORT)

cl_int clGetLayerInfo(cl_uint what, size_t size, void *value, size_t *needed);
cl_int clInitLayer(cl_uint count, const any_function *target, cl_uint *count_here, const any_function **table);

cl_int clGetLayerInfo(cl_uint what, size_t size, void *value, size_t *needed) {
    static const cl_uint version = 100;
    static const char name[] = "autotune capture";
    const size_t wanted = what == LAYER_NAME ? sizeof name : sizeof version;
    if (what != LAYER_API_VERSION && what != LAYER_NAME) return INVALID_VALUE;
    if (value != NULL && size < wanted) return INVALID_VALUE;
    if (value != NULL) memcpy(value, what == LAYER_NAME ? (const void *)name : (const void *)&version, wanted);
    if (needed != NULL) *needed = wanted;
    return 0;
}

cl_int clInitLayer(cl_uint count, const any_function *target, cl_uint *count_here, const any_function **table) {
    if (target == NULL || count_here == NULL || table == NULL || count <= slot_clGetKernelArgInfo) return INVALID_VALUE;
    if (count > SLOTS) count = SLOTS;
    memcpy(next_table, target, count * sizeof *target);
    memcpy(layer_table, target, count * sizeof *target);
    is_layer = 1;
#define SET(name, slot, result, parameters) \
    if (slot < count && target[slot] != NULL) layer_table[slot] = (any_function)hook_##name;
    REPLACED(SET)
    *count_here = count;
    *table = layer_table;
    is_recording();
    return 0;
}

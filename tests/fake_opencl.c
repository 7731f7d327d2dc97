/* An OpenCL driver for tests of the agent: memory on the heap, kernels that do nothing, and every command checked. */
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef void *object;
struct memory {
    size_t references, bytes, row, pitch, height; /* of images the bytes of a row, and from one to the next */
    unsigned char *contents;
    struct memory *shown; /* the buffer of which an image is a view */
};

static int something[4];
#define OBJECT(n) ((object)&something[n])

int32_t clGetPlatformIDs(uint32_t room, object *ids, uint32_t *count) {
    if (ids && room)
        ids[0] = OBJECT(0);
    *count = 1;
    puts("a driver prints");
    fflush(stdout);
    return 0;
}

/* Ends the process at one query, whose number AUTOTUNE_FAKE_CRASH has. */
static void crash_at(uint32_t what) {
    const char *wanted = getenv("AUTOTUNE_FAKE_CRASH");
    if (wanted && strtoul(wanted, NULL, 0) == what)
        raise(SIGKILL);
}

static int32_t tell(const void *from, size_t bytes, size_t room, void *into, size_t *size) {
    if (into && room < bytes)
        return -30;
    if (into)
        memcpy(into, from, bytes);
    if (size)
        *size = bytes;
    return 0;
}

int32_t clGetPlatformInfo(object p, uint32_t what, size_t room, void *into, size_t *size) {
    (void)p, (void)what;
    return tell("Fake", 5, room, into, size);
}

int32_t clGetDeviceIDs(object p, uint64_t type, uint32_t room, object *ids, uint32_t *count) {
    (void)p, (void)type;
    if (ids && room)
        ids[0] = OBJECT(1);
    *count = 1;
    return 0;
}

int32_t clGetDeviceInfo(object d, uint32_t what, size_t room, void *into, size_t *size) {
    static const uint64_t sizes[3] = {64, 64, 64};
    (void)d;
    crash_at(what);
    if (what == 0x1005)
        return tell(sizes, 3 * sizeof(size_t), room, into, size);
    if (what == 0x102B && getenv("AUTOTUNE_FAKE_NAME"))
        return tell(getenv("AUTOTUNE_FAKE_NAME"), strlen(getenv("AUTOTUNE_FAKE_NAME")) + 1, room, into, size);
    if (what >= 0x102B && what <= 0x1030)
        return tell("OpenCL 1.2 Fake", 16, room, into, size);
    if (what == 0x7777)
        return -30;
    return tell(sizes, 8, room, into, size);
}

object clCreateContext(const intptr_t *p, uint32_t n, const object *d, void *f, void *u, int32_t *status) {
    (void)p, (void)n, (void)d, (void)f, (void)u;
    *status = 0;
    return OBJECT(2);
}

object clCreateCommandQueue(object c, object d, uint64_t properties, int32_t *status) {
    (void)c, (void)d, (void)properties;
    *status = 0;
    return OBJECT(3);
}

static object allocate(size_t bytes, size_t row, size_t height, int32_t *status) {
    struct memory *memory = bytes && bytes < 1 << 28 ? calloc(1, sizeof *memory) : NULL;
    *status = memory ? 0 : -61;
    if (!memory)
        return NULL;
    memory->references = 1;
    memory->bytes = bytes;
    memory->row = memory->pitch = row;
    memory->height = height;
    memory->contents = calloc(1, bytes);
    return memory;
}

object clCreateBuffer(object c, uint64_t flags, size_t bytes, void *host, int32_t *status) {
    (void)c, (void)flags, (void)host;
    return allocate(bytes, 0, 0, status);
}

int32_t clRetainMemObject(object m) {
    ((struct memory *)m)->references++;
    return 0;
}

int32_t clReleaseMemObject(object m) {
    struct memory *memory = m;
    if (--memory->references)
        return 0;
    if (memory->shown)
        clReleaseMemObject(memory->shown);
    else
        free(memory->contents);
    free(memory);
    return 0;
}

object clCreateImage(object c, uint64_t f, const uint32_t *format, const void *description, void *h, int32_t *status) {
    static const unsigned char bytes[15] = {1, 2, 1, 2, 2, 2, 4, 1, 2, 4, 1, 2, 4, 2, 4};
    struct {
        uint32_t type;
        size_t width, height, depth, array_size, row_pitch, slice_pitch;
        uint32_t mip_levels, samples;
        struct memory *shown;
    } image;
    size_t row;
    struct memory *memory;
    (void)c, (void)f, (void)h;
    memcpy(&image, description, sizeof image);
    row = image.width * bytes[(format[1] - 0x10D0) % 15] * (format[0] == 0x10B5 ? 4 : format[0] == 0x10B2 ? 2 : 1);
    if (image.width > 4096 || image.height > 4096) {
        *status = -40;
        return NULL;
    }
    memory = allocate(row * image.height, row, image.height, status);
    if (memory && image.shown) {
        free(memory->contents);
        clRetainMemObject(image.shown);
        memory->shown = image.shown;
        memory->contents = image.shown->contents;
        memory->pitch = image.row_pitch ? image.row_pitch : row;
        if ((image.height - 1) * memory->pitch + row > image.shown->bytes)
            abort();
    }
    return memory;
}

static object program(const void *text, size_t bytes, int32_t *status) {
    char *kept = malloc(bytes + 1);
    memcpy(kept, text, bytes);
    kept[bytes] = '\0';
    *status = 0;
    return kept;
}

object clCreateProgramWithSource(object c, uint32_t n, const char **text, const size_t *bytes, int32_t *status) {
    (void)c, (void)n;
    return program(*text, *bytes, status);
}

object clCreateProgramWithBinary(object c, uint32_t n, const object *d, const size_t *bytes, const unsigned char **text,
                                 int32_t *each, int32_t *status) {
    (void)c, (void)n, (void)d;
    *each = 0;
    return program(*text, *bytes, status);
}

/* What a source contains makes the driver fail in the ways in which drivers do. */
int32_t clBuildProgram(object p, uint32_t n, const object *d, const char *options, void *f, void *u) {
    if (getenv("AUTOTUNE_FAKE_SLOW"))
        poll(NULL, 0, 100);
    (void)n, (void)d, (void)f, (void)u;
    if (strstr(p, "#crash"))
        raise(SIGSEGV);
    if (strstr(p, "#hang"))
        for (;;)
            sleep(1);
    if (strstr(p, "#exit"))
        exit(7);
    return strstr(p, "#error") || strstr(options, "-bad") ? -11 : 0;
}

int32_t clGetProgramBuildInfo(object p, object d, uint32_t what, size_t room, void *into, size_t *size) {
    (void)p, (void)d, (void)what;
    return tell("error: of the fake", 19, room, into, size);
}

int32_t clGetProgramInfo(object p, uint32_t what, size_t room, void *into, size_t *size) {
    static const uint32_t one = 1;
    size_t bytes = strlen(p);
    if (what == 0x1162)
        return tell(&one, 4, room, into, size);
    if (what == 0x1165)
        return tell(&bytes, sizeof bytes, room, into, size);
    memcpy(*(void **)into, p, bytes);
    return 0;
}

int32_t clReleaseProgram(object p) {
    free(p);
    return 0;
}

object clCreateKernel(object p, const char *name, int32_t *status) {
    (void)p;
    *status = strcmp(name, "missing") ? 0 : -46;
    return *status ? NULL : malloc(1);
}

int32_t clReleaseKernel(object k) {
    free(k);
    return 0;
}

int32_t clGetKernelWorkGroupInfo(object k, object d, uint32_t what, size_t room, void *into, size_t *size) {
    static const uint64_t limit = 64;
    (void)k, (void)d;
    crash_at(what);
    return tell(&limit, sizeof(size_t), room, into, size);
}

int32_t clSetKernelArg(object k, uint32_t index, size_t bytes, const void *value) {
    volatile unsigned char sum = 0;
    size_t i;
    (void)k;
    for (i = 0; value && i < bytes; i++)
        sum = (unsigned char)(sum + ((const unsigned char *)value)[i]);
    return index < 64 ? 0 : -49;
}

int32_t clEnqueueNDRangeKernel(object q, object k, uint32_t n, const size_t *offset, const size_t *global,
                               const size_t *local, uint32_t waits, const object *after, object *event) {
    (void)q, (void)k, (void)n, (void)offset, (void)waits, (void)after;
    if (event)
        *event = malloc(1);
    if (getenv("AUTOTUNE_FAKE_SCARCE"))
        return -5;
    return !global[0] ? -63 : local && (!local[0] || local[0] > 64) ? -54 : 0;
}

static int32_t checked(struct memory *memory, size_t offset, size_t bytes) {
    return offset <= memory->bytes && bytes <= memory->bytes - offset ? 0 : -30;
}

#define WAITS uint32_t waits, const object *after, object *event

int32_t clEnqueueReadBuffer(object q, object m, uint32_t b, size_t offset, size_t bytes, void *into, WAITS) {
    static unsigned char reads;
    (void)q, (void)b, (void)waits, (void)after, (void)event;
    if (checked(m, offset, bytes))
        abort(); /* the agent has to check before */
    memcpy(into, ((struct memory *)m)->contents + offset, bytes);
    if (getenv("AUTOTUNE_FAKE_COUNTS")) /* in the canary of an output */
        ((unsigned char *)into)[bytes - 1] = reads++;
    return 0;
}

int32_t clEnqueueWriteBuffer(object q, object m, uint32_t b, size_t offset, size_t bytes, const void *from, WAITS) {
    (void)q, (void)b, (void)waits, (void)after, (void)event;
    if (checked(m, offset, bytes))
        abort();
    memcpy(((struct memory *)m)->contents + offset, from, bytes);
    return 0;
}

int32_t clEnqueueFillBuffer(object q, object m, const void *p, size_t size, size_t offset, size_t bytes, WAITS) {
    size_t i;
    (void)q, (void)waits, (void)after, (void)event;
    if (checked(m, offset, bytes) || bytes % size)
        abort();
    for (i = 0; i < bytes; i += size)
        memcpy(((struct memory *)m)->contents + offset + i, p, size);
    return 0;
}

int32_t clEnqueueCopyBuffer(object q, object s, object t, size_t from, size_t to, size_t bytes, WAITS) {
    (void)q, (void)waits, (void)after, (void)event;
    if (checked(s, from, bytes) || checked(t, to, bytes))
        abort();
    memcpy(((struct memory *)t)->contents + to, ((struct memory *)s)->contents + from, bytes);
    return 0;
}

/* Copies whole rows between an image and the agent. */
static int32_t copy_rows(struct memory *image, const size_t *origin, size_t rows, unsigned char *host, int writes) {
    size_t y;
    if (origin[1] + rows > image->height)
        abort();
    for (y = 0; y < rows; y++) {
        unsigned char *here = image->contents + (origin[1] + y) * image->pitch, *there = host + y * image->row;
        memcpy(writes ? here : there, writes ? there : here, image->row);
    }
    return 0;
}

int32_t clEnqueueReadImage(object q, object m, uint32_t b, const size_t *origin, const size_t *region, size_t row,
                           size_t slice, void *into, WAITS) {
    (void)q, (void)b, (void)row, (void)slice, (void)waits, (void)after, (void)event;
    return copy_rows(m, origin, region[1], into, 0);
}

int32_t clEnqueueWriteImage(object q, object m, uint32_t b, const size_t *origin, const size_t *region, size_t row,
                            size_t slice, const void *from, WAITS) {
    (void)q, (void)b, (void)row, (void)slice, (void)waits, (void)after, (void)event;
    return copy_rows(m, origin, region[1], (void *)from, 1);
}

int32_t clEnqueueCopyImage(object q, object s, object t, const size_t *from, const size_t *to, const size_t *r, WAITS) {
    struct memory *source = s, *target = t;
    size_t y;
    (void)q, (void)from, (void)to, (void)waits, (void)after, (void)event;
    if (source->row != target->row || r[1] > source->height || r[1] > target->height)
        abort();
    for (y = 0; y < r[1]; y++)
        memmove(target->contents + y * target->pitch, source->contents + y * source->pitch, source->row);
    return 0;
}

int32_t clFinish(object q) {
    const char *scarce = getenv("AUTOTUNE_FAKE_SCARCE"); /* "broken" if a kernel has faulted */
    (void)q;
    return scarce && !strcmp(scarce, "broken") ? -5 : 0;
}

int32_t clGetEventProfilingInfo(object e, uint32_t what, size_t room, void *into, size_t *size) {
    static const uint64_t now = 5;
    (void)e, (void)what;
    return tell(&now, 8, room, into, size);
}

int32_t clReleaseEvent(object e) {
    free(e);
    return 0;
}

/* Buffers and images: allocating, writing, filling, copying and reading them. */
#include <string.h>

#include "objects.h"
#include "protocol.h"

#define BAND_BYTES 1048576

void do_allocate(struct cursor *payload) {
    uint32_t handle = read_u32(payload);
    uint64_t bytes = read_u64(payload);
    struct object *object;
    int32_t status = CL_SUCCESS;
    cl_object memory;
    expect_end(payload);
    object = unused(handle);
    if (!object)
        return;
    if (!fits(bytes)) {
        fail(CL_INVALID_VALUE, "clCreateBuffer");
        return;
    }
    memory = cl.clCreateBuffer(session.context, CL_MEM_READ_WRITE, (size_t)bytes, NULL, &status);
    if (keep(object, BUFFER, memory, status, "clCreateBuffer"))
        object->bytes = (size_t)bytes;
}

/* Returns whether a view of rows of that many bytes lies within a buffer. */
static int is_within(const struct object *buffer, uint64_t row_bytes, uint64_t height, uint64_t pitch) {
    if (!pitch)
        pitch = row_bytes;
    return row_bytes <= pitch && pitch <= buffer->bytes && (height - 1) <= (buffer->bytes - row_bytes) / pitch;
}

/* Returns the bytes of a pixel, 0 for a format that no kernel uses. */
static uint32_t pixel_bytes(const struct cl_image_format *format) {
    static const uint8_t channel_bytes[] = {1, 2, 1, 2, 0, 0, 0, 1, 2, 4, 1, 2, 4, 2, 4}; /* SNORM_INT8 to FLOAT */
    uint32_t number = format->channel - CL_SNORM_INT8;
    uint32_t channels = format->order == CL_R ? 1 : format->order == CL_RG ? 2 : format->order == CL_RGBA ? 4 : 0;
    return number < sizeof channel_bytes ? channels * channel_bytes[number] : 0;
}

void do_allocate_image(struct cursor *payload) {
    uint32_t handle = read_u32(payload), kind = read_u32(payload);
    struct cl_image_format format;
    struct cl_image_description image;
    uint32_t pixel, width, height, parent;
    uint64_t pitch;
    struct object *object, *shown = NULL;
    int32_t status = CL_SUCCESS;
    cl_object memory;
    format.order = read_u32(payload);
    format.channel = read_u32(payload);
    width = read_u32(payload);
    height = read_u32(payload);
    parent = read_u32(payload);
    pitch = read_u64(payload);
    expect_end(payload);
    pixel = pixel_bytes(&format);
    object = unused(handle);
    if (!object)
        return;
    if (parent != NO_HANDLE) {
        shown = find(parent, BUFFER);
        if (!shown)
            return;
    }
    if (!cl.clCreateImage || !pixel || !width || !height || !fits(pitch) ||
        (uint64_t)width * pixel > MAX_FRAME_BYTES / 2 ||
        (kind != CL_MEM_OBJECT_IMAGE2D && !(kind == CL_MEM_OBJECT_IMAGE1D_BUFFER && height == 1 && shown)) ||
        (shown && !is_within(shown, (uint64_t)width * pixel, height, pitch))) {
        fail(CL_INVALID_VALUE, "clCreateImage");
        return;
    }
    memset(&image, 0, sizeof image);
    image.type = kind;
    image.width = width;
    image.height = height;
    image.depth = 1;
    image.row_pitch = (size_t)pitch;
    image.memory = shown ? shown->handle : NULL;
    memory = cl.clCreateImage(session.context, CL_MEM_READ_WRITE, &format, &image, NULL, &status);
    if (keep(object, IMAGE, memory, status, "clCreateImage")) {
        object->width = width;
        object->height = height;
        object->pixel = pixel;
    }
}

/* Rows of an image as bytes of the protocol. Returns whether the range consists of whole rows within the image. */
static int find_rows(const struct object *image, uint64_t offset, size_t bytes, size_t *origin, size_t *region) {
    size_t row = image->width * image->pixel;
    uint64_t first = offset / row, count = bytes / row;
    if (offset % row || bytes % row || !count || first >= image->height || count > image->height - first)
        return 0;
    origin[0] = origin[2] = 0;
    origin[1] = (size_t)first;
    region[0] = image->width;
    region[1] = (size_t)count;
    region[2] = 1;
    return 1;
}

static int is_part(const struct object *buffer, uint64_t offset, uint64_t bytes) {
    return bytes && offset <= buffer->bytes && bytes <= buffer->bytes - offset;
}

int write_part(const struct object *memory, uint64_t offset, const void *contents, size_t bytes) {
    size_t origin[3], region[3];
    int is_image = memory->kind == IMAGE;
    int32_t status = CL_INVALID_VALUE;
    if (is_image && find_rows(memory, offset, bytes, origin, region))
        status = cl.clEnqueueWriteImage(session.queue, memory->handle, CL_TRUE, origin, region, 0, 0, contents, 0, NULL,
                                        NULL);
    else if (!is_image && is_part(memory, offset, bytes))
        status = cl.clEnqueueWriteBuffer(session.queue, memory->handle, CL_TRUE, (size_t)offset, bytes, contents, 0,
                                         NULL, NULL);
    if (status != CL_SUCCESS)
        fail(status, is_image ? "clEnqueueWriteImage" : "clEnqueueWriteBuffer");
    return status == CL_SUCCESS;
}

void do_write(struct cursor *payload) {
    uint32_t handle = read_u32(payload);
    uint64_t offset = read_u64(payload);
    size_t bytes = payload->left;
    const uint8_t *contents = read_bytes(payload, bytes);
    struct object *memory;
    expect_end(payload);
    memory = find_memory(handle);
    if (memory)
        write_part(memory, offset, contents, bytes);
}

/* For images, which OpenCL fills in a way of its own, and for drivers of OpenCL 1.1. */
static void fill_by_writing(const struct object *memory, uint64_t bytes, size_t unit, const uint8_t *pattern,
                            size_t pattern_bytes) {
    size_t band = BAND_BYTES > unit ? BAND_BYTES - BAND_BYTES % unit : unit, i;
    uint8_t *contents;
    uint64_t offset;
    band = bytes < band ? (size_t)bytes : band;
    contents = scratch(band);
    if (!contents)
        return;
    for (i = 0; i < band; i++)
        contents[i] = pattern[i % pattern_bytes];
    for (offset = 0; offset < bytes; offset += band) {
        uint64_t left = bytes - offset;
        if (!write_part(memory, offset, contents, left < band ? (size_t)left : band))
            return;
    }
}

void do_fill(struct cursor *payload) {
    uint32_t handle = read_u32(payload);
    size_t bytes = payload->left;
    const uint8_t *pattern = read_bytes(payload, bytes);
    struct object *memory;
    int32_t status;
    expect_end(payload);
    memory = find_memory(handle);
    if (!memory)
        return;
    if (!bytes || bytes > MAX_PATTERN_BYTES || (bytes & (bytes - 1)) ||
        (memory->kind == IMAGE ? memory->pixel % bytes : memory->bytes % bytes)) {
        fail(CL_INVALID_VALUE, "clEnqueueFillBuffer");
    } else if (memory->kind == IMAGE) {
        size_t row = memory->width * memory->pixel;
        fill_by_writing(memory, (uint64_t)row * memory->height, row, pattern, bytes);
    } else if (!cl.clEnqueueFillBuffer) {
        fill_by_writing(memory, memory->bytes, bytes, pattern, bytes);
    } else {
        status = cl.clEnqueueFillBuffer(session.queue, memory->handle, pattern, bytes, 0, memory->bytes, 0, NULL, NULL);
        if (status != CL_SUCCESS)
            fail(status, "clEnqueueFillBuffer");
    }
}

void do_copy(struct cursor *payload) {
    static const size_t origin[3];
    uint32_t from = read_u32(payload), to = read_u32(payload);
    uint64_t bytes = read_u64(payload);
    struct object *source, *target;
    int32_t status = CL_INVALID_VALUE;
    expect_end(payload);
    source = find_memory(from);
    target = source ? find_memory(to) : NULL;
    if (!target)
        return;
    if (source->kind == BUFFER && target->kind == BUFFER) {
        if (source != target && is_part(source, 0, bytes) && is_part(target, 0, bytes))
            status = cl.clEnqueueCopyBuffer(session.queue, source->handle, target->handle, 0, 0, (size_t)bytes, 0, NULL,
                                            NULL);
    } else if (source->kind == target->kind && source != target && source->width == target->width &&
               source->height == target->height && source->pixel == target->pixel) {
        size_t region[3];
        region[0] = source->width;
        region[1] = source->height;
        region[2] = 1;
        status = cl.clEnqueueCopyImage(session.queue, source->handle, target->handle, origin, origin, region, 0, NULL,
                                       NULL);
    }
    if (status != CL_SUCCESS)
        fail(status, source->kind == BUFFER ? "clEnqueueCopyBuffer" : "clEnqueueCopyImage");
}

void do_read(struct cursor *payload) {
    uint32_t handle = read_u32(payload);
    uint64_t offset = read_u64(payload);
    uint32_t bytes = read_u32(payload);
    size_t origin[3], region[3];
    struct object *memory;
    int32_t status = CL_INVALID_VALUE;
    uint8_t *into;
    expect_end(payload);
    if (failed_before())
        return;
    memory = find_memory(handle);
    if (!memory)
        return;
    into = scratch(bytes <= MAX_READ_BYTES ? bytes + 1 : 1);
    if (!into)
        return;
    if (bytes <= MAX_READ_BYTES) {
        if (memory->kind == IMAGE && find_rows(memory, offset, bytes, origin, region))
            status = cl.clEnqueueReadImage(session.queue, memory->handle, CL_TRUE, origin, region, 0, 0, into, 0, NULL,
                                           NULL);
        else if (memory->kind == BUFFER && is_part(memory, offset, bytes))
            status = cl.clEnqueueReadBuffer(session.queue, memory->handle, CL_TRUE, (size_t)offset, bytes, into, 0,
                                            NULL, NULL);
    }
    if (status != CL_SUCCESS)
        fail(status, memory->kind == IMAGE ? "clEnqueueReadImage" : "clEnqueueReadBuffer");
    else
        answer(NULL, 0, into, bytes);
}

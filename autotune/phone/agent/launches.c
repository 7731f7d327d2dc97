/* Arguments of kernels, and launches. */
#include <stdlib.h>
#include <string.h>

#include "objects.h"
#include "protocol.h"

struct launch {
    cl_object kernel;
    uint32_t dimensions;
    int has_local;
    size_t global[3], local[3];
};

static struct launch launches[MAX_LAUNCHES];

/* Sets one argument. The kernel keeps a reference to memory, since OpenCL's own kernels hold none. */
static int32_t set_argument(struct object *kernel, uint32_t index, size_t bytes, const void *value, cl_object memory) {
    int32_t status = cl.clSetKernelArg(kernel->handle, index, bytes, value);
    if (status != CL_SUCCESS)
        return status;
    if (memory)
        cl.clRetainMemObject(memory);
    if (kernel->arguments[index])
        cl.clReleaseMemObject(kernel->arguments[index]);
    kernel->arguments[index] = memory;
    return CL_SUCCESS;
}

/* Reads and sets the next argument of a payload; returns 0 after `fail`. */
static int next_argument(struct cursor *payload, struct object *kernel) {
    uint32_t index = read_u32(payload);
    uint8_t kind = read_u8(payload);
    int32_t status = CL_INVALID_VALUE;
    if (kind == MEMORY_ARGUMENT) {
        struct object *memory = find_memory(read_u32(payload));
        if (!memory)
            return 0;
        if (index < MAX_ARGUMENTS)
            status = set_argument(kernel, index, sizeof memory->handle, &memory->handle, memory->handle);
    } else if (kind == VALUE_ARGUMENT) {
        uint32_t bytes = read_u32(payload);
        const uint8_t *value = read_bytes(payload, bytes);
        if (value && bytes && bytes <= MAX_ARGUMENT_BYTES && index < MAX_ARGUMENTS) {
            uint64_t aligned[MAX_ARGUMENT_BYTES / 8];
            memcpy(aligned, value, bytes);
            status = set_argument(kernel, index, bytes, aligned, NULL);
        }
    } else if (kind == LOCAL_ARGUMENT) {
        uint64_t bytes = read_u64(payload);
        if (bytes && fits(bytes) && index < MAX_ARGUMENTS)
            status = set_argument(kernel, index, (size_t)bytes, NULL, NULL);
    } else {
        refuse_frame("it has an argument of an unknown kind");
    }
    if (payload->is_short)
        refuse_frame("it is too short for its command");
    if (status != CL_SUCCESS)
        fail(status, "clSetKernelArg");
    return status == CL_SUCCESS;
}

void do_arguments(struct cursor *payload) {
    uint32_t handle = read_u32(payload), count = read_u32(payload), i;
    struct object *kernel;
    if (payload->is_short || count > MAX_ARGUMENTS)
        refuse_frame("it has no arguments, or too many");
    kernel = find(handle, KERNEL);
    if (!kernel)
        return;
    for (i = 0; i < count; i++)
        if (!next_argument(payload, kernel))
            return;
    expect_end(payload);
}

/* Reads launches into `launches`; returns their number, or -1 after `fail`. */
static int read_launches(struct cursor *payload) {
    uint32_t count = read_u32(payload), i, d;
    int is_known = 1;
    if (count > MAX_LAUNCHES)
        refuse_frame("it has too many launches");
    for (i = 0; i < count && !payload->is_short; i++) {
        struct launch *launch = &launches[i];
        uint32_t handle = read_u32(payload);
        struct object *kernel = is_known ? find(handle, KERNEL) : NULL;
        is_known = kernel != NULL;
        launch->kernel = kernel ? kernel->handle : NULL;
        launch->dimensions = read_u8(payload);
        launch->has_local = read_u8(payload) != 0;
        if (launch->dimensions < 1 || launch->dimensions > 3)
            refuse_frame("a launch has no dimensions, or too many");
        for (d = 0; d < launch->dimensions; d++)
            launch->global[d] = (size_t)read_u64(payload);
        for (d = 0; launch->has_local && d < launch->dimensions; d++)
            launch->local[d] = (size_t)read_u64(payload);
    }
    expect_end(payload);
    return is_known ? (int)count : -1;
}

static int32_t enqueue(const struct launch *launch, cl_object *event) {
    return cl.clEnqueueNDRangeKernel(session.queue, launch->kernel, launch->dimensions, NULL, launch->global,
                                     launch->has_local ? launch->local : NULL, 0, NULL, event);
}

void do_start(struct cursor *payload) {
    int count = read_launches(payload), i;
    for (i = 0; i < count; i++) {
        int32_t status = enqueue(&launches[i], NULL);
        if (status != CL_SUCCESS) {
            fail(status, "clEnqueueNDRangeKernel");
            return;
        }
    }
}

static uint64_t event_ns(cl_object event, uint32_t query) {
    uint64_t ns = 0;
    if (!event || cl.clGetEventProfilingInfo(event, query, sizeof ns, &ns, NULL) != CL_SUCCESS)
        return 0;
    return ns < INT64_MAX ? ns : INT64_MAX;
}

/* Writes start and end of each event, zeros if the driver does not report both, and releases the events. */
static void tell_events(cl_object *events, size_t count, uint8_t *spans) {
    size_t i;
    for (i = 0; i < count; i++) {
        uint64_t start = event_ns(events[i], CL_PROFILING_COMMAND_START);
        uint64_t end = event_ns(events[i], CL_PROFILING_COMMAND_END);
        put_u64(spans + 16 * i, start && end ? start : 0);
        put_u64(spans + 16 * i + 8, start && end ? end : 0);
        if (events[i])
            cl.clReleaseEvent(events[i]);
    }
}

/* Runs everything `times` times. Returns the status, and which function it is from: a wait that fails shows that more is
 * broken than the launch that was refused before it. */
static int32_t run(uint32_t times, int count, cl_object *events, const char **function) {
    uint32_t turn;
    int i;
    int32_t status = CL_SUCCESS, ended;
    *function = "clEnqueueNDRangeKernel";
    for (turn = 0; turn < times && status == CL_SUCCESS; turn++)
        for (i = 0; i < count && status == CL_SUCCESS; i++)
            status = enqueue(&launches[i], events ? events++ : NULL);
    ended = cl.clFinish(session.queue);
    if (ended != CL_SUCCESS) {
        *function = "clFinish";
        status = ended;
    }
    return status;
}

void do_run(struct cursor *payload) {
    uint32_t times = read_u32(payload);
    int has_events = read_u8(payload) != 0, count = read_launches(payload);
    size_t events_count;
    cl_object *events = NULL;
    uint8_t head[16], *spans;
    const char *function;
    int32_t status;
    if (count < 0 || failed_before())
        return;
    if (!session.queue || !count || !times || times > MAX_EVENTS / (uint32_t)count) {
        fail(CL_INVALID_VALUE, "the launches are none or too many");
        return;
    }
    events_count = has_events ? (size_t)times * (size_t)count : 0;
    spans = scratch(16 * events_count + 1);
    if (!spans)
        return;
    if (has_events) {
        events = calloc(events_count, sizeof *events);
        if (!events) {
            fail(CL_OUT_OF_HOST_MEMORY, "the agent is out of memory");
            return;
        }
    }
    put_u64(head, clock_ns());
    status = run(times, count, events, &function);
    put_u64(head + 8, clock_ns());
    tell_events(events, events_count, spans);
    free(events);
    if (status != CL_SUCCESS)
        fail(status, function);
    else
        answer(head, sizeof head, spans, 16 * events_count);
}

void do_finish(struct cursor *payload) {
    int32_t status;
    expect_end(payload);
    if (failed_before())
        return;
    status = session.queue ? cl.clFinish(session.queue) : CL_INVALID_OPERATION;
    if (status != CL_SUCCESS)
        fail(status, "clFinish");
    else
        answer(NULL, 0, NULL, 0);
}

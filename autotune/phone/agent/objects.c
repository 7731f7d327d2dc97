#include "objects.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "protocol.h"

struct session session;

static struct object objects[MAX_HANDLES];
static struct {
    int is_set;
    int32_t status;
    char text[256];
} kept;

static void answer_error(int32_t status, const char *text) {
    uint8_t head[4];
    size_t length = strlen(text);
    put_u32(head, (uint32_t)status);
    write_frame(ERROR, head, sizeof head, text, length < MAX_TEXT_BYTES ? length : MAX_TEXT_BYTES);
}

void fail(int32_t status, const char *text) {
    if (shared->command < ALLOCATE) {
        answer_error(status, text);
    } else if (!kept.is_set) {
        kept.is_set = 1;
        kept.status = status;
        snprintf(kept.text, sizeof kept.text, "%s", text);
    }
}

int failed_before(void) {
    if (!kept.is_set)
        return 0;
    kept.is_set = 0;
    answer_error(kept.status, kept.text);
    return 1;
}

void answer(const void *head, size_t head_bytes, const void *body, size_t body_bytes) {
    write_frame(ANSWER, head, head_bytes, body, body_bytes);
}

void answer_u64(uint64_t value) {
    uint8_t head[8];
    put_u64(head, value);
    answer(head, sizeof head, NULL, 0);
}

void expect_end(struct cursor *payload) {
    if (payload->is_short)
        refuse_frame("it is too short for its command");
    if (payload->left)
        refuse_frame("it is too long for its command");
}

struct object *find(uint32_t handle, enum kind kind) {
    if (handle < MAX_HANDLES && objects[handle].kind == kind)
        return &objects[handle];
    fail(CL_INVALID_VALUE, "the agent does not know the handle");
    return NULL;
}

struct object *find_memory(uint32_t handle) {
    int is_image = handle < MAX_HANDLES && objects[handle].kind == IMAGE;
    return find(handle, is_image ? IMAGE : BUFFER);
}

struct object *unused(uint32_t handle) {
    if (!session.queue) {
        fail(CL_INVALID_OPERATION, "no device is open");
        return NULL;
    }
    if (handle < MAX_HANDLES && objects[handle].kind == FREE)
        return &objects[handle];
    fail(CL_INVALID_VALUE, "the handle is in use or out of range");
    return NULL;
}

int keep(struct object *object, enum kind kind, cl_object handle, int32_t status, const char *function) {
    if (status != CL_SUCCESS || !handle) {
        fail(status ? status : CL_INVALID_VALUE, function);
        return 0;
    }
    object->kind = kind;
    object->handle = handle;
    return 1;
}

void release(struct object *object) {
    uint32_t i;
    switch (object->kind) {
    case PROGRAM:
        cl.clReleaseProgram(object->handle);
        break;
    case KERNEL:
        cl.clReleaseKernel(object->handle);
        for (i = 0; i < MAX_ARGUMENTS; i++)
            if (object->arguments[i])
                cl.clReleaseMemObject(object->arguments[i]);
        free(object->arguments);
        break;
    case BUFFER:
    case IMAGE:
        cl.clReleaseMemObject(object->handle);
        break;
    case FREE:
        break;
    }
    memset(object, 0, sizeof *object);
}

int fits(uint64_t value) { return value <= SIZE_MAX; }

uint8_t *scratch(size_t bytes) {
    static uint8_t *memory;
    static size_t capacity;
    if (bytes > capacity) {
        free(memory);
        memory = malloc(bytes);
        capacity = memory ? bytes : 0;
    }
    if (!memory)
        fail(CL_OUT_OF_HOST_MEMORY, "the agent is out of memory");
    return memory;
}

static void do_release(struct cursor *payload) {
    while (payload->left && !payload->is_short) {
        uint32_t handle = read_u32(payload);
        if (handle < MAX_HANDLES)
            release(&objects[handle]);
    }
    expect_end(payload);
}

static void do_hello(struct cursor *payload) {
    static const char told[] = PROTOCOL_MAGIC PROTOCOL_DIGEST;
    const uint8_t *host = read_bytes(payload, sizeof told - 1);
    uint8_t head[sizeof told];
    uint32_t limit_ms = read_u32(payload);
    expect_end(payload);
    shared->limit_ms = limit_ms;
    memcpy(head, told, sizeof told - 1);
    head[sizeof told - 1] = (uint8_t)sizeof(size_t);
    answer(head, sizeof head, NULL, 0);
    if (memcmp(host, told, sizeof told - 1))
        refuse_frame("the host speaks another version of the protocol");
}

typedef void (*handler)(struct cursor *);

static handler handler_of(uint8_t command) {
    switch (command) {
    case HELLO: return do_hello;
    case PLATFORMS: return do_platforms;
    case DEVICES: return do_devices;
    case INFO: return do_info;
    case OPEN: return do_open;
    case BUILD: return do_build;
    case LOAD: return do_load;
    case BINARY: return do_binary;
    case BINARY_BYTES: return do_binary_bytes;
    case KERNELS: return do_kernels;
    case FACTS: return do_facts;
    case READ: return do_read;
    case RUN: return do_run;
    case FINISH: return do_finish;
    case READ_FILE: return do_read_file;
    case LIST_FOLDER: return do_list_folder;
    case ALLOCATE: return do_allocate;
    case ALLOCATE_IMAGE: return do_allocate_image;
    case WRITE: return do_write;
    case FILL: return do_fill;
    case COPY: return do_copy;
    case ARGUMENTS: return do_arguments;
    case START: return do_start;
    case RELEASE: return do_release;
    case DRAW: return do_draw;
    default: return NULL;
    }
}

void serve(void) {
    struct cursor payload;
    uint8_t command;
    int is_greeted = 0;
    while ((command = next_frame(&payload))) {
        handler handle = handler_of(command);
        if (!handle || is_greeted == (command == HELLO))
            refuse_frame("its command is unknown, or not expected now");
        is_greeted = 1;
        shared->command = command;
        if (shared->limit_ms)
            shared->deadline_ms = clock_ms() + shared->limit_ms;
        handle(&payload);
        shared->deadline_ms = 0;
        shared->command = 0;
    }
}

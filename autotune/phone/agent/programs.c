/* Programs and kernels. */
#include <stdlib.h>
#include <string.h>

#include "objects.h"
#include "protocol.h"

/* Returns a zero-terminated copy for `free`, or NULL after `fail`. */
static char *text_of(const uint8_t *bytes, size_t count) {
    char *text = bytes ? malloc(count + 1) : NULL;
    if (!text) {
        fail(CL_OUT_OF_HOST_MEMORY, "the agent is out of memory");
        return NULL;
    }
    memcpy(text, bytes, count);
    text[count] = '\0';
    return text;
}

/* Reports a failed build with the driver's log, which the caller can do without. */
static void fail_build(cl_object program, int32_t status) {
    char *log = NULL;
    size_t bytes = 0;
    if (cl.clGetProgramBuildInfo(program, session.device, CL_PROGRAM_BUILD_LOG, 0, NULL, &bytes) == CL_SUCCESS &&
        bytes > 0 && bytes < MAX_FRAME_BYTES)
        log = calloc(1, bytes + 1);
    if (log && cl.clGetProgramBuildInfo(program, session.device, CL_PROGRAM_BUILD_LOG, bytes, log, NULL) != CL_SUCCESS)
        log[0] = '\0';
    fail(status, log && log[0] ? log : "clBuildProgram");
    free(log);
}

static void build(struct object *object, cl_object program, int32_t status, const char *function, const char *options) {
    if (!keep(object, PROGRAM, program, status, function))
        return;
    status = cl.clBuildProgram(program, 1, &session.device, options, NULL, NULL);
    if (status == CL_SUCCESS) {
        answer(NULL, 0, NULL, 0);
        return;
    }
    fail_build(program, status);
    release(object);
}

/* Builds the rest of the payload, a source or a binary. */
static void create(struct cursor *payload, int is_source) {
    uint32_t handle = read_u32(payload), options_bytes = read_u32(payload);
    const uint8_t *given = read_bytes(payload, options_bytes);
    size_t bytes = payload->left;
    const uint8_t *contents = read_bytes(payload, bytes);
    const char *source = (const char *)contents;
    struct object *object;
    int32_t status = CL_SUCCESS, of_binary = CL_SUCCESS;
    cl_object program;
    char *options;
    expect_end(payload);
    object = unused(handle);
    options = object ? text_of(given, options_bytes) : NULL;
    if (!options)
        return;
    if (is_source)
        program = cl.clCreateProgramWithSource(session.context, 1, &source, &bytes, &status);
    else
        program =
            cl.clCreateProgramWithBinary(session.context, 1, &session.device, &bytes, &contents, &of_binary, &status);
    if (program && status == CL_SUCCESS && of_binary != CL_SUCCESS) {
        cl.clReleaseProgram(program);
        status = of_binary;
        program = NULL;
    }
    build(object, program, status, is_source ? "clCreateProgramWithSource" : "clCreateProgramWithBinary", options);
    free(options);
}

void do_build(struct cursor *payload) { create(payload, 1); }

void do_load(struct cursor *payload) { create(payload, 0); }

/* Returns the size of the one binary of a program; 0 if the driver does not report it. */
static size_t binary_bytes(cl_object program) {
    size_t bytes = 0;
    uint32_t devices = 0;
    if (cl.clGetProgramInfo(program, CL_PROGRAM_NUM_DEVICES, sizeof devices, &devices, NULL) != CL_SUCCESS ||
        devices != 1 ||
        cl.clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof bytes, &bytes, NULL) != CL_SUCCESS)
        return 0;
    return bytes;
}

void do_binary_bytes(struct cursor *payload) {
    uint32_t handle = read_u32(payload);
    struct object *program;
    expect_end(payload);
    program = find(handle, PROGRAM);
    if (program)
        answer_u64(binary_bytes(program->handle));
}

void do_binary(struct cursor *payload) {
    uint32_t handle = read_u32(payload);
    struct object *program;
    uint8_t *binary;
    size_t bytes;
    expect_end(payload);
    program = find(handle, PROGRAM);
    if (!program)
        return;
    bytes = binary_bytes(program->handle);
    binary = scratch(bytes && bytes < MAX_FRAME_BYTES / 2 ? bytes : 1);
    if (!binary)
        return;
    if (!bytes || bytes >= MAX_FRAME_BYTES / 2 ||
        cl.clGetProgramInfo(program->handle, CL_PROGRAM_BINARIES, sizeof binary, &binary, NULL) != CL_SUCCESS)
        bytes = 0;
    answer(NULL, 0, binary, bytes);
}

/* Returns whether the kernel was created; else it has failed. */
static int create_kernel(cl_object program, uint32_t handle, const uint8_t *name, uint32_t name_bytes) {
    struct object *kernel = unused(handle);
    int32_t status = CL_SUCCESS;
    cl_object created;
    char *text = kernel ? text_of(name, name_bytes) : NULL;
    cl_object *arguments = text ? calloc(MAX_ARGUMENTS, sizeof *arguments) : NULL;
    if (!text)
        return 0;
    created = arguments ? cl.clCreateKernel(program, text, &status) : NULL;
    free(text);
    if (!keep(kernel, KERNEL, created, arguments ? status : CL_OUT_OF_HOST_MEMORY, "clCreateKernel")) {
        free(arguments);
        return 0;
    }
    kernel->arguments = arguments;
    return 1;
}

void do_kernels(struct cursor *payload) {
    uint32_t handle = read_u32(payload), count = read_u32(payload), i;
    struct cursor names = *payload;
    struct object *program;
    if (count > MAX_NAMES)
        refuse_frame("it names too many kernels");
    for (i = 0; i < count; i++) {
        read_u32(payload);
        read_bytes(payload, read_u32(payload));
    }
    expect_end(payload);
    program = find(handle, PROGRAM);
    if (!program)
        return;
    for (i = 0; i < count; i++) {
        uint32_t kernel = read_u32(&names), bytes = read_u32(&names);
        if (!create_kernel(program->handle, kernel, read_bytes(&names, bytes), bytes))
            return; /* the host releases those before it */
    }
    answer(NULL, 0, NULL, 0);
}

void do_facts(struct cursor *payload) {
    uint32_t handle = read_u32(payload);
    struct object *kernel;
    size_t group = 0;
    uint64_t private_bytes = 0;
    uint8_t head[16];
    expect_end(payload);
    kernel = find(handle, KERNEL);
    if (!kernel)
        return;
    if (cl.clGetKernelWorkGroupInfo(kernel->handle, session.device, CL_KERNEL_WORK_GROUP_SIZE, sizeof group, &group,
                                    NULL) != CL_SUCCESS)
        group = 0;
    if (cl.clGetKernelWorkGroupInfo(kernel->handle, session.device, CL_KERNEL_PRIVATE_MEM_SIZE, sizeof private_bytes,
                                    &private_bytes, NULL) != CL_SUCCESS)
        private_bytes = 0;
    put_u64(head, group);
    put_u64(head + 8, private_bytes);
    answer(head, sizeof head, NULL, 0);
}

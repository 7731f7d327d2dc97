/* A program for the tests of `autotune capture`: launches of every kind of argument, and ends of every kind. */
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT = 1024, GROUP = 16 };

static const char *const source =
    "#include \"shared.h\"\n"
    "#include \"shared.h\"\n"
    "#define UNROLL 4\n"
    "typedef struct { float by; int shift; } params;\n"
    "__kernel void adjust(__global float *x, params p, float4 w) {\n"
    "    __local float own[256];\n"
    "    const int i = get_global_id(0) * UNROLL, l = get_local_id(0);\n"
    "    for (int j = 0; j < UNROLL; j++) {\n"
    "        own[l] = x[i + j] * p.by + p.shift;\n"
    "        barrier(CLK_LOCAL_MEM_FENCE);\n"
    "        x[i + j] = own[l] + w.y;\n"
    "    }\n"
    "}\n"
    "__kernel void part(__global const float *restrict in, __global float *out) {\n"
    "    out[get_global_id(0)] = in[get_global_id(0)] * FACTOR + SHARED;\n"
    "}\n"
    "__kernel void sums(__global const float *x, __global float *out, __local float *scratch) {\n"
    "    scratch[get_local_id(0)] = x[get_global_id(0)];\n"
    "    barrier(CLK_LOCAL_MEM_FENCE);\n"
    "    float sum = 0;\n"
    "    for (int i = 0; i < get_local_size(0); i++) sum += scratch[i];\n"
    "    out[get_global_id(0)] = sum;\n"
    "}\n"
    "__kernel void pixels(__read_only image2d_t image, __global float4 *out, int width) {\n"
    "    const int x = get_global_id(0), y = get_global_id(1);\n"
    "    out[y * width + x] = read_imagef(image, (int2)(x, y));\n"
    "}\n"
    "__kernel void together(__global float *a, __global float *b) { a[get_global_id(0)] += b[get_global_id(0)]; }\n"
    "__kernel void late(__global float *out) { out[get_global_id(0)] = get_global_id(0); }\n";

static cl_context context;
static cl_device_id device;
static cl_program program;

static void check(cl_int status, const char *what) {
    if (status != CL_SUCCESS) {
        fprintf(stderr, "%s: %d\n", what, status);
        exit(3);
    }
}

static void build(cl_program made) {
    check(clBuildProgram(made, 1, &device, "-DFACTOR=2 -I include", NULL, NULL), "clBuildProgram");
}

static cl_command_queue queue_of(void) {
    cl_int status;
    cl_command_queue queue = clCreateCommandQueue(context, device, 0, &status);
    check(status, "clCreateCommandQueue");
    return queue;
}

static cl_mem memory(void) {
    static float numbers[4 * COUNT];
    cl_int status, i;
    cl_mem made;
    for (i = 0; i < 4 * COUNT; i++) numbers[i] = (float)(i % 37) / 8;
    made = clCreateBuffer(context, CL_MEM_COPY_HOST_PTR | CL_MEM_READ_WRITE, sizeof numbers, numbers, &status);
    check(status, "clCreateBuffer");
    return made;
}

static cl_kernel kernel_of(cl_program made, const char *name) {
    cl_int status;
    cl_kernel kernel = clCreateKernel(made, name, &status);
    check(status, name);
    return kernel;
}

static void launch(cl_command_queue queue, cl_kernel kernel, size_t items, size_t group) {
    check(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &items, group ? &group : NULL, 0, NULL, NULL), "launch");
}

static void every_argument(cl_command_queue queue) {
    const struct { cl_float by; cl_int shift; } params = {0.5f, 3};
    const cl_float4 weights = {{1, 2, 3, 4}};
    const cl_buffer_region region = {1024, COUNT * sizeof(float)};
    const cl_image_format format = {CL_RGBA, CL_FLOAT};
    const size_t offset = 8, items = 64, area[2] = {32, 8};
    const cl_int width = 32;
    cl_image_desc shape;
    cl_int status;
    cl_mem x = memory(), y = memory(), z = memory(), sub, image;
    float pixels[32 * 8 * 4];
    cl_kernel kernel = kernel_of(program, "adjust");
    clSetKernelArg(kernel, 0, sizeof x, &x);
    clSetKernelArg(kernel, 1, sizeof params, &params);
    clSetKernelArg(kernel, 2, sizeof weights, &weights);
    launch(queue, kernel, COUNT, 64);
    kernel = kernel_of(program, "part");
    sub = clCreateSubBuffer(y, CL_MEM_READ_ONLY, CL_BUFFER_CREATE_TYPE_REGION, &region, &status);
    check(status, "clCreateSubBuffer");
    clSetKernelArg(kernel, 0, sizeof sub, &sub);
    clSetKernelArg(kernel, 1, sizeof z, &z);
    launch(queue, kernel, COUNT, 0);
    kernel = kernel_of(program, "sums");
    clSetKernelArg(kernel, 0, sizeof x, &x);
    clSetKernelArg(kernel, 1, sizeof z, &z);
    clSetKernelArg(kernel, 2, GROUP * sizeof(float), NULL);
    launch(queue, kernel, COUNT, GROUP);
    memset(&shape, 0, sizeof shape);
    shape.image_type = CL_MEM_OBJECT_IMAGE2D;
    shape.image_width = 32;
    shape.image_height = 8;
    for (status = 0; status < 32 * 8 * 4; status++) pixels[status] = (float)(status % 29);
    image = clCreateImage(context, CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR, &format, &shape, pixels, &status);
    check(status, "clCreateImage");
    kernel = kernel_of(program, "pixels");
    clSetKernelArg(kernel, 0, sizeof image, &image);
    clSetKernelArg(kernel, 1, sizeof z, &z);
    clSetKernelArg(kernel, 2, sizeof width, &width);
    check(clEnqueueNDRangeKernel(queue, kernel, 2, NULL, area, NULL, 0, NULL, NULL), "pixels");
    kernel = kernel_of(program, "together");
    clSetKernelArg(kernel, 0, sizeof x, &x);
    clSetKernelArg(kernel, 1, sizeof x, &x);
    launch(queue, kernel, COUNT, 0);
    kernel = kernel_of(program, "late");
    clSetKernelArg(kernel, 0, sizeof x, &x);
    check(clEnqueueNDRangeKernel(queue, kernel, 1, &offset, &items, NULL, 0, NULL, NULL), "late");
    check(clFinish(queue), "clFinish");
}

static cl_program from_binary(void) {
    size_t size = 0;
    unsigned char *binary;
    cl_program made;
    cl_int status;
    clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof size, &size, NULL);
    binary = malloc(size);
    clGetProgramInfo(program, CL_PROGRAM_BINARIES, sizeof binary, &binary, NULL);
    made = clCreateProgramWithBinary(context, 1, &device, &size, (const unsigned char **)&binary, NULL, &status);
    check(status, "clCreateProgramWithBinary");
    build(made);
    return made;
}

static void late_of(cl_command_queue queue, cl_program made, int times) {
    cl_kernel kernel = kernel_of(made, "late");
    cl_mem x = memory();
    clSetKernelArg(kernel, 0, sizeof x, &x);
    while (times--) launch(queue, kernel, COUNT, 0);
    check(clFinish(queue), "clFinish");
    clReleaseMemObject(x);
    clReleaseKernel(kernel);
}

static void *in_thread(void *nothing) {
    cl_command_queue queue = queue_of();
    int i;
    for (i = 0; i < 20; i++) late_of(queue, program, 5);
    clReleaseCommandQueue(queue);
    return nothing;
}

static void after_user_event(cl_command_queue queue) {
    cl_int status;
    cl_event event = clCreateUserEvent(context, &status);
    cl_kernel kernel = kernel_of(program, "late");
    cl_mem x = memory();
    const size_t items = COUNT;
    clSetKernelArg(kernel, 0, sizeof x, &x);
    check(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &items, NULL, 1, &event, NULL), "waiting launch");
    clSetUserEventStatus(event, CL_COMPLETE);
    check(clFinish(queue), "clFinish");
    late_of(queue, program, 1);
}

int main(int count, char **words) {
    const char *const mode = count > 1 ? words[1] : "arguments";
    cl_platform_id platform;
    cl_command_queue queue;
    cl_int status;
    pthread_t threads[4];
    int i;
    check(clGetPlatformIDs(1, &platform, NULL), "clGetPlatformIDs");
    check(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL), "clGetDeviceIDs");
    context = clCreateContext(NULL, 1, &device, NULL, NULL, &status);
    check(status, "clCreateContext");
    queue = queue_of();
    program = clCreateProgramWithSource(context, 1, (const char **)&source, NULL, &status);
    check(status, "clCreateProgramWithSource");
    build(program);
    if (!strcmp(mode, "arguments")) every_argument(queue);
    if (!strcmp(mode, "binary")) late_of(queue, from_binary(), 3);
    if (!strcmp(mode, "user-event")) after_user_event(queue);
    if (!strcmp(mode, "threads")) {
        for (i = 0; i < 4; i++) pthread_create(&threads[i], NULL, in_thread, NULL);
        for (i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    }
    if (!strcmp(mode, "crash")) {
        late_of(queue, program, 3);
        abort();
    }
    clReleaseProgram(program);
    clReleaseCommandQueue(queue);
    clReleaseContext(context);
    printf("done\n");
    return 0;
}

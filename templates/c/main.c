/* An example: multiplies two matrices on the first GPU, or on the first device where there is none, and compares one in
   so many results with the host's.

       cc -std=c99 -O2 autotune.c main.c -lOpenCL -lm -o example && ./example 512 512 512 [device] */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "autotune.h"

static int fail(const char *what, int number) {
    fprintf(stderr, "%s (%d)\n", what, number);
    return 1;
}

#ifdef AUTOTUNE_HAS_GEMM
static float *random_matrix(size_t elements) {
    float *const matrix = (float *)malloc(elements * sizeof *matrix);
    size_t number;
    for (number = 0; matrix && number < elements; number++) matrix[number] = (float)(rand() % 17 - 8);
    return matrix;
}

/* Largest difference at some of the results; the products of small whole numbers are exact. */
static double largest_error(const struct autotune_gemm_problem *p, const float *a, const float *b, const float *c) {
    double worst = 0.0;
    long long place, k;
    for (place = 0; place < p->m * p->n; place += 1 + p->m * p->n / 500) {
        const long long row = place / p->n, column = place % p->n;
        double sum = 0.0;
        for (k = 0; k < p->k; k++) sum += (double)a[row * p->k + k] * (double)b[k * p->n + column];
        worst = fmax(worst, fabs(sum - (double)c[place]));
    }
    return worst;
}

static int multiply(
        struct autotune_library *library, cl_context context, cl_command_queue queue,
        const struct autotune_gemm_problem *p) {
    static const char *const steps[] = {"none", "exact", "sibling", "vendor", "default", "presumed"};
    const size_t sizes[3] = {(size_t)(p->m * p->k), (size_t)(p->k * p->n), (size_t)(p->m * p->n)};
    float *const a = random_matrix(sizes[0]), *const b = random_matrix(sizes[1]), *const c = random_matrix(sizes[2]);
    const cl_mem_flags flags = CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR;
    struct autotune_choice choice = {AUTOTUNE_INVALID, -1, 0};
    cl_int errors[3];
    cl_mem memory[3];
    enum autotune_status status;
    double error;
    int number;
    if (!a || !b || !c) return fail("out of memory", 0);
    memory[0] = clCreateBuffer(context, flags, sizes[0] * sizeof *a, a, &errors[0]);
    memory[1] = clCreateBuffer(context, flags, sizes[1] * sizeof *b, b, &errors[1]);
    memory[2] = clCreateBuffer(context, flags, sizes[2] * sizeof *c, c, &errors[2]);
    for (number = 0; number < 3; number++)
        if (errors[number] != CL_SUCCESS) return fail("no memory on the device", errors[number]);
    status = autotune_gemm(library, queue, p, 1.0, 0.0, memory[0], memory[1], memory[2], NULL);
    if (status == AUTOTUNE_OK) status = autotune_gemm_choose(library, p, &choice);
    if (status != AUTOTUNE_OK) {
        fputs(autotune_log(library), stderr);
        return fail(autotune_status_text(status), autotune_error(library));
    }
    if (clEnqueueReadBuffer(queue, memory[2], CL_TRUE, 0, sizes[2] * sizeof *c, c, 0, NULL, NULL) != CL_SUCCESS)
        return fail("the result cannot be read", 0);
    error = largest_error(p, a, b, c);
    printf("%lld x %lld x %lld: %s, largest error %g\n", p->m, p->n, p->k, steps[choice.match], error);
    for (number = 0; number < 3; number++) clReleaseMemObject(memory[number]);
    free(a);
    free(b);
    free(c);
    return error > 0.0;
}
#endif

enum { MOST_PLATFORMS = 16 };

/* Returns 0 where no platform has a device of the type. */
static int find_device(cl_device_type type, cl_device_id *device) {
    cl_platform_id platforms[MOST_PLATFORMS];
    cl_uint count = 0, number;
    if (clGetPlatformIDs(MOST_PLATFORMS, platforms, &count) != CL_SUCCESS) return 0;
    for (number = 0; number < count && number < MOST_PLATFORMS; number++)
        if (clGetDeviceIDs(platforms[number], type, 1, device, NULL) == CL_SUCCESS) return 1;
    return 0;
}

int main(int count, char **words) {
    struct autotune_library *library;
    cl_device_id device;
    cl_context context;
    cl_command_queue queue;
    cl_int error;
    enum autotune_status status;
    char name[256] = "";
    int result = 0;
    if (!find_device(CL_DEVICE_TYPE_GPU, &device) && !find_device(CL_DEVICE_TYPE_ALL, &device))
        return fail("there is no OpenCL device", 0);
    clGetDeviceInfo(device, CL_DEVICE_NAME, sizeof name - 1, name, NULL);
    printf("on %s\n", name);
    context = clCreateContext(NULL, 1, &device, NULL, NULL, &error);
    if (error != CL_SUCCESS) return fail("no context", error);
    queue = clCreateCommandQueue(context, device, 0, &error);
    if (error != CL_SUCCESS) return fail("no queue", error);
    status = autotune_open(count > 4 ? words[4] : NULL, context, device, &library);
    if (status != AUTOTUNE_OK) return fail(autotune_status_text(status), 0);
#ifdef AUTOTUNE_HAS_GEMM
    {
        struct autotune_gemm_problem problem = {0};
        problem.m = count > 1 ? atoll(words[1]) : 512;
        problem.n = count > 2 ? atoll(words[2]) : 512;
        problem.k = count > 3 ? atoll(words[3]) : 512;
        problem.batch = 1;
        problem.mode = AUTOTUNE_GEMM_FLOAT32;
        if (problem.m < 1 || problem.n < 1 || problem.k < 1) return fail("sizes are whole numbers of 1 at least", 0);
        result = multiply(library, context, queue, &problem);
    }
#else
    (void)words;
    (void)count;
#endif
    autotune_close(library);
    clReleaseCommandQueue(queue);
    clReleaseContext(context);
    return result;
}

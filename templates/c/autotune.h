/* Tuned OpenCL kernels: which to use for a size, and running them. Written by autotune; export again to change it.

   For each family of kernels, such as gemm, autotune_families.h declares autotune_gemm, which runs a problem, and
   autotune_gemm_prepare and autotune_gemm_choose.

   Compile autotune.c with your program (C99; link with OpenCL). main.c is an example. The functions that only look up,
   autotune_find_gemm_... of autotune_gemm.h, may be used without OpenCL.

   A library belongs to one context and one device, and is not to be used by two threads at once. What it enqueues
   shares memory from call to call, for packed operands, parts of results, and counters of the work-groups that have
   finished, which each call leaves at zero: use it with one in-order queue, or with another only after the first has
   finished. A call that returns an error is prepared anew the next time. Where waiting tells that a kernel failed on the
   device, close the library and open it again: counters may not have gone back to zero. */
#ifndef AUTOTUNE_H
#define AUTOTUNE_H

#ifndef CL_TARGET_OPENCL_VERSION
#define CL_TARGET_OPENCL_VERSION 120
#endif
#ifdef __APPLE__
#include <OpenCL/opencl.h>
#else
#include <CL/cl.h>
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum autotune_status {
    AUTOTUNE_OK = 0,
    AUTOTUNE_NO_DEVICE = 1,  /* this package knows no device of that name */
    AUTOTUNE_NO_PROBLEM = 2, /* not a valid problem: a size or type is missing or out of range */
    AUTOTUNE_NO_KERNEL = 3,  /* nothing of this kind was exported: neither measured on a device here, nor plain */
    AUTOTUNE_REFUSED = 4,    /* the driver rejected every candidate kernel; autotune_log has its build log */
    AUTOTUNE_NO_MEMORY = 5,
    AUTOTUNE_OPENCL = 6,     /* another error of OpenCL: autotune_error has its number */
    AUTOTUNE_NOT_PACKED = 7  /* constant operands were not packed for this, and their originals were released */
};

struct autotune_library;

/* Names of the devices of this package; NULL past the last. */
const char *autotune_device(int number);
/* The name of this package's device that `id` is, by what its driver reports; NULL if it is none of them. */
const char *autotune_device_of(cl_device_id id);
const char *autotune_status_text(enum autotune_status status);

/* `device` is the name under which it was tuned, such as "adreno-730", or NULL for that of autotune_device_of(id). The
   context and the device must outlive the library. */
enum autotune_status autotune_open(
    const char *device, cl_context context, cl_device_id id, struct autotune_library **library);
void autotune_close(struct autotune_library *library);

/* Of the last call that failed. */
cl_int autotune_error(const struct autotune_library *library);
const char *autotune_log(const struct autotune_library *library);

/* Operands that keep their values, such as weights, as kernels read them: autotune_..._pack of such families makes it.
   It belongs to the context of the library that made it. */
struct autotune_packed;

/* Of what was packed; the originals are not counted. */
long long autotune_packed_bytes(const struct autotune_packed *packed);
/* Lets go of the originals, which are kept for calls whose kernels read another order than those before. Where kernels
   read the originals, such calls fail from then on. */
void autotune_release_originals(struct autotune_packed *packed);
void autotune_release_packed(struct autotune_packed *packed);

/* The OpenCL C of a source of this package, line by line: calls `line` for each in order. */
void autotune_read_source(int source, void (*line)(const char *text, void *user), void *user);

#ifdef __cplusplus
}
#endif

#include "autotune_families.h"
#endif

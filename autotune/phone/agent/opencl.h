/* What the agent needs of OpenCL, declared here so that it builds where no OpenCL is installed. */
#ifndef AUTOTUNE_OPENCL_H
#define AUTOTUNE_OPENCL_H

#include <stddef.h>
#include <stdint.h>

typedef void *cl_object; /* any handle of OpenCL */

struct cl_image_format {
    uint32_t order, channel;
};

struct cl_image_description {
    uint32_t type;
    size_t width, height, depth, array_size, row_pitch, slice_pitch;
    uint32_t mip_levels, samples;
    cl_object memory;
};

#define CL_SUCCESS 0
#define CL_OUT_OF_HOST_MEMORY (-6)
#define CL_INVALID_VALUE (-30)
#define CL_INVALID_KERNEL_NAME (-46)
#define CL_INVALID_OPERATION (-59)
#define CL_DEVICE_NOT_FOUND (-1)
#define CL_PLATFORM_NOT_FOUND_KHR (-1001)

#define CL_TRUE 1u
#define CL_DEVICE_TYPE_ALL 0xFFFFFFFFu
#define CL_QUEUE_PROFILING_ENABLE 2u
#define CL_MEM_READ_WRITE 1u
#define CL_PROGRAM_BUILD_LOG 0x1183u
#define CL_PROGRAM_BINARY_SIZES 0x1165u
#define CL_PROGRAM_BINARIES 0x1166u
#define CL_PROGRAM_NUM_DEVICES 0x1162u
#define CL_KERNEL_WORK_GROUP_SIZE 0x11B0u
#define CL_KERNEL_PRIVATE_MEM_SIZE 0x11B4u
#define CL_PROFILING_COMMAND_START 0x1282u
#define CL_PROFILING_COMMAND_END 0x1283u
#define CL_R 0x10B0u
#define CL_RG 0x10B2u
#define CL_RGBA 0x10B5u
#define CL_SNORM_INT8 0x10D0u
#define CL_MEM_OBJECT_IMAGE2D 0x10F1u
#define CL_MEM_OBJECT_IMAGE1D_BUFFER 0x10F6u

#define WAITS uint32_t, const cl_object *, cl_object *

/* Result, name, parameters. */
#define OPENCL_FUNCTIONS(X) \
    X(int32_t, clGetPlatformIDs, (uint32_t, cl_object *, uint32_t *)) \
    X(int32_t, clGetPlatformInfo, (cl_object, uint32_t, size_t, void *, size_t *)) \
    X(int32_t, clGetDeviceIDs, (cl_object, uint64_t, uint32_t, cl_object *, uint32_t *)) \
    X(int32_t, clGetDeviceInfo, (cl_object, uint32_t, size_t, void *, size_t *)) \
    X(cl_object, clCreateContext, (const intptr_t *, uint32_t, const cl_object *, void *, void *, int32_t *)) \
    X(cl_object, clCreateCommandQueue, (cl_object, cl_object, uint64_t, int32_t *)) \
    X(cl_object, clCreateBuffer, (cl_object, uint64_t, size_t, void *, int32_t *)) \
    X(cl_object, clCreateImage, (cl_object, uint64_t, const struct cl_image_format *, \
                                 const struct cl_image_description *, void *, int32_t *)) \
    X(int32_t, clRetainMemObject, (cl_object)) \
    X(int32_t, clReleaseMemObject, (cl_object)) \
    X(cl_object, clCreateProgramWithSource, (cl_object, uint32_t, const char **, const size_t *, int32_t *)) \
    X(cl_object, clCreateProgramWithBinary, (cl_object, uint32_t, const cl_object *, const size_t *, \
                                             const unsigned char **, int32_t *, int32_t *)) \
    X(int32_t, clBuildProgram, (cl_object, uint32_t, const cl_object *, const char *, void *, void *)) \
    X(int32_t, clGetProgramBuildInfo, (cl_object, cl_object, uint32_t, size_t, void *, size_t *)) \
    X(int32_t, clGetProgramInfo, (cl_object, uint32_t, size_t, void *, size_t *)) \
    X(int32_t, clReleaseProgram, (cl_object)) \
    X(cl_object, clCreateKernel, (cl_object, const char *, int32_t *)) \
    X(int32_t, clReleaseKernel, (cl_object)) \
    X(int32_t, clGetKernelWorkGroupInfo, (cl_object, cl_object, uint32_t, size_t, void *, size_t *)) \
    X(int32_t, clSetKernelArg, (cl_object, uint32_t, size_t, const void *)) \
    X(int32_t, clEnqueueNDRangeKernel, (cl_object, cl_object, uint32_t, const size_t *, const size_t *, \
                                        const size_t *, WAITS)) \
    X(int32_t, clEnqueueReadBuffer, (cl_object, cl_object, uint32_t, size_t, size_t, void *, WAITS)) \
    X(int32_t, clEnqueueWriteBuffer, (cl_object, cl_object, uint32_t, size_t, size_t, const void *, WAITS)) \
    X(int32_t, clEnqueueFillBuffer, (cl_object, cl_object, const void *, size_t, size_t, size_t, WAITS)) \
    X(int32_t, clEnqueueCopyBuffer, (cl_object, cl_object, cl_object, size_t, size_t, size_t, WAITS)) \
    X(int32_t, clEnqueueReadImage, (cl_object, cl_object, uint32_t, const size_t *, const size_t *, size_t, size_t, \
                                    void *, WAITS)) \
    X(int32_t, clEnqueueWriteImage, (cl_object, cl_object, uint32_t, const size_t *, const size_t *, size_t, size_t, \
                                     const void *, WAITS)) \
    X(int32_t, clEnqueueCopyImage, (cl_object, cl_object, cl_object, const size_t *, const size_t *, const size_t *, \
                                    WAITS)) \
    X(int32_t, clFinish, (cl_object)) \
    X(int32_t, clGetEventProfilingInfo, (cl_object, uint32_t, size_t, void *, size_t *)) \
    X(int32_t, clReleaseEvent, (cl_object))

#define OPENCL_MEMBER(result, name, parameters) result(*name) parameters;

struct opencl {
    OPENCL_FUNCTIONS(OPENCL_MEMBER)
};

extern struct opencl cl;

/* Loads the library that AUTOTUNE_OPENCL names, else the first that there is. Returns NULL, or a text why that fails. */
const char *load_opencl(void);

#endif

/* Platforms, devices and what they answer to queries; files of the system beside them. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "objects.h"
#include "protocol.h"

#define MOST 64

static cl_object platforms[MOST];
static uint32_t platform_count;

/* Returns whether OpenCL is loaded and its platforms are known; else it has failed. */
static int has_platforms(void) {
    static int is_ready;
    const char *trouble;
    int32_t status;
    uint32_t count = 0;
    if (is_ready)
        return 1;
    trouble = load_opencl();
    if (trouble) {
        fail(0, trouble);
        return 0;
    }
    status = cl.clGetPlatformIDs(MOST, platforms, &count);
    if (status != CL_SUCCESS && status != CL_PLATFORM_NOT_FOUND_KHR) {
        fail(status, "clGetPlatformIDs");
        return 0;
    }
    platform_count = status ? 0 : count < MOST ? count : MOST;
    is_ready = 1;
    return 1;
}

void do_platforms(struct cursor *payload) {
    uint8_t head[4];
    expect_end(payload);
    if (!has_platforms())
        return;
    put_u32(head, platform_count);
    answer(head, sizeof head, NULL, 0);
}

/* Returns the number of a platform's devices, or -1 after `fail`. */
static int find_devices(uint32_t platform, cl_object *devices) {
    uint32_t count = 0;
    int32_t status;
    if (!has_platforms())
        return -1;
    if (platform >= platform_count) {
        fail(CL_INVALID_VALUE, "there is no such platform");
        return -1;
    }
    status = cl.clGetDeviceIDs(platforms[platform], CL_DEVICE_TYPE_ALL, MOST, devices, &count);
    if (status == CL_DEVICE_NOT_FOUND)
        return 0;
    if (status != CL_SUCCESS) {
        fail(status, "clGetDeviceIDs");
        return -1;
    }
    return (int)(count < MOST ? count : MOST);
}

void do_devices(struct cursor *payload) {
    cl_object devices[MOST];
    uint32_t platform = read_u32(payload);
    uint8_t head[4];
    int count;
    expect_end(payload);
    count = find_devices(platform, devices);
    if (count < 0)
        return;
    put_u32(head, (uint32_t)count);
    answer(head, sizeof head, NULL, 0);
}

/* Returns a device, or NULL after `fail`. */
static cl_object find_device(uint32_t platform, uint32_t device) {
    cl_object devices[MOST];
    int count = find_devices(platform, devices);
    if (count < 0)
        return NULL;
    if (device < (uint32_t)count)
        return devices[device];
    fail(CL_INVALID_VALUE, "there is no such device");
    return NULL;
}

void do_info(struct cursor *payload) {
    uint32_t platform = read_u32(payload), device = read_u32(payload), query = read_u32(payload);
    uint8_t *told = scratch(MAX_TEXT_BYTES);
    size_t bytes = 0;
    cl_object asked = NULL;
    int32_t status;
    expect_end(payload);
    if (!told)
        return;
    if (device == NO_HANDLE) {
        if (!has_platforms())
            return;
        if (platform >= platform_count) {
            fail(CL_INVALID_VALUE, "there is no such platform");
            return;
        }
        status = cl.clGetPlatformInfo(platforms[platform], query, MAX_TEXT_BYTES, told, &bytes);
    } else {
        asked = find_device(platform, device);
        if (!asked)
            return;
        status = cl.clGetDeviceInfo(asked, query, MAX_TEXT_BYTES, told, &bytes);
    }
    if (status != CL_SUCCESS)
        fail(status, asked ? "clGetDeviceInfo" : "clGetPlatformInfo");
    else
        answer(NULL, 0, told, bytes < MAX_TEXT_BYTES ? bytes : MAX_TEXT_BYTES);
}

void do_open(struct cursor *payload) {
    uint32_t platform = read_u32(payload), device = read_u32(payload);
    uint64_t properties = read_u8(payload) ? CL_QUEUE_PROFILING_ENABLE : 0;
    int32_t status = CL_SUCCESS;
    expect_end(payload);
    if (session.queue) {
        fail(CL_INVALID_OPERATION, "a device is open already");
        return;
    }
    session.device = find_device(platform, device);
    if (!session.device)
        return;
    session.context = cl.clCreateContext(NULL, 1, &session.device, NULL, NULL, &status);
    if (!session.context || status != CL_SUCCESS) {
        fail(status, "clCreateContext");
        return;
    }
    session.queue = cl.clCreateCommandQueue(session.context, session.device, properties, &status);
    if (!session.queue || status != CL_SUCCESS) {
        session.queue = NULL;
        fail(status, "clCreateCommandQueue");
        return;
    }
    answer(NULL, 0, NULL, 0);
}

/* Files */

/* Returns the path if it is one of those that may be read, else NULL after `fail`. */
static const char *allowed(struct cursor *payload, char *path, size_t most) {
    size_t length = payload->left;
    const uint8_t *text = read_bytes(payload, length);
    if (text && length < most && !memchr(text, 0, length)) {
        memcpy(path, text, length);
        path[length] = '\0';
        if (!strcmp(path, "/proc/cpuinfo") || (!strncmp(path, "/sys/", 5) && !strstr(path, "/..")))
            return path;
    }
    fail(EACCES, "the agent does not read this file");
    return NULL;
}

void do_read_file(struct cursor *payload) {
    char name[1024];
    const char *path = allowed(payload, name, sizeof name);
    uint8_t *contents;
    size_t bytes = 0;
    ssize_t count = 1;
    int file;
    if (!path)
        return;
    contents = scratch(MAX_FILE_BYTES);
    if (!contents)
        return;
    file = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (file < 0) {
        fail(errno, strerror(errno));
        return;
    }
    while (count > 0 && bytes < MAX_FILE_BYTES) {
        count = read(file, contents + bytes, MAX_FILE_BYTES - bytes);
        bytes += count > 0 ? (size_t)count : 0;
    }
    if (count < 0 && !bytes)
        fail(errno, strerror(errno));
    else
        answer(NULL, 0, contents, bytes);
    close(file);
}

void do_list_folder(struct cursor *payload) {
    char name[1024];
    const char *path = allowed(payload, name, sizeof name);
    struct dirent *entry;
    uint8_t *names;
    size_t bytes = 0;
    DIR *folder;
    if (!path)
        return;
    names = scratch(MAX_TEXT_BYTES);
    if (!names)
        return;
    folder = opendir(path);
    if (!folder) {
        fail(errno, strerror(errno));
        return;
    }
    while ((entry = readdir(folder))) {
        size_t length = strlen(entry->d_name) + 1;
        if (length > MAX_TEXT_BYTES - bytes)
            break;
        memcpy(names + bytes, entry->d_name, length);
        bytes += length;
    }
    closedir(folder);
    answer(NULL, 0, names, bytes);
}

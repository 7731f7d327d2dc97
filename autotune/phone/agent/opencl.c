/* Finds OpenCL on the device: the names and folders under which phones and boards have it. */
#include "opencl.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct opencl cl;

#if UINTPTR_MAX > 0xFFFFFFFFu
#define LIB "lib64"
#else
#define LIB "lib"
#endif

static const char *const LIBRARIES[] = {
    "libOpenCL.so",
    "libOpenCL.so.1",
    "/vendor/" LIB "/libOpenCL.so",
    "/system/vendor/" LIB "/libOpenCL.so",
    "/system/" LIB "/libOpenCL.so",
    "libOpenCL-pixel.so",
    "/vendor/" LIB "/libOpenCL-pixel.so",
    "/system/vendor/" LIB "/libOpenCL-pixel.so",
    "libGLES_mali.so",
    "/vendor/" LIB "/egl/libGLES_mali.so",
    "/system/vendor/" LIB "/egl/libGLES_mali.so",
    "libmali.so",
    "libmali.so.1",
    "libPVROCL.so",
    "/vendor/" LIB "/libPVROCL.so",
    "/system/vendor/" LIB "/libPVROCL.so",
};

typedef void *(*pixel_lookup)(const char *);
typedef void (*any_function)(void);

static char trouble[2048];

static void note(const char *text) {
    size_t used = strlen(trouble);
    snprintf(trouble + used, sizeof trouble - used, "%s%s", used ? "; " : "", text);
}

/* ISO C has no conversion from what dlsym returns to a function, so its bytes are copied. */
static any_function found(void *library, const char *name) {
    any_function function = NULL;
    void *address = dlsym(library, name);
    memcpy(&function, &address, sizeof function);
    return function;
}

/* Pixel phones hide the functions behind one that returns them by name. */
static pixel_lookup pixel(void *library) {
    any_function enable = found(library, "enableOpenCL"), lookup = found(library, "loadOpenCLPointer");
    pixel_lookup converted = NULL;
    if (enable && lookup) {
        enable();
        memcpy(&converted, &lookup, sizeof converted);
    }
    return converted;
}

static void *address_of(void *library, pixel_lookup lookup, const char *name) {
    return lookup ? lookup(name) : dlsym(library, name);
}

static int resolve(void *library) {
    pixel_lookup lookup = pixel(library);
    void *address;
#define RESOLVE(result, name, parameters) \
    address = address_of(library, lookup, #name); \
    memcpy(&cl.name, &address, sizeof cl.name);
    OPENCL_FUNCTIONS(RESOLVE)
#undef RESOLVE
    return cl.clGetPlatformIDs != NULL;
}

static const char *missing(void) {
#define CHECK(result, name, parameters) \
    if (!cl.name && strcmp(#name, "clCreateImage") && strcmp(#name, "clEnqueueFillBuffer")) \
        return #name; /* those two came with OpenCL 1.2 */
    OPENCL_FUNCTIONS(CHECK)
#undef CHECK
    return NULL;
}

static int load(const char *name) {
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *reason = dlerror();
        note(reason ? reason : name);
        return 0;
    }
    if (resolve(library)) /* stays loaded: drivers do not survive being unloaded */
        return 1;
    note(name);
    note("it has no OpenCL functions");
    return 0;
}

const char *load_opencl(void) {
    static int is_loaded;
    const char *named = getenv("AUTOTUNE_OPENCL");
    const char *lacking;
    size_t i;
    trouble[0] = '\0';
    if (named && *named)
        is_loaded = is_loaded || load(named);
    else
        for (i = 0; !is_loaded && i < sizeof LIBRARIES / sizeof *LIBRARIES; i++)
            is_loaded = load(LIBRARIES[i]);
    if (!is_loaded)
        return trouble;
    lacking = missing();
    if (lacking)
        note(lacking);
    return lacking ? trouble : NULL;
}

/* Calls functions of OpenCL, whose library it has opened itself, while a thread opens and closes another library.

   usage: opener OPENCL OTHER */
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <unistd.h>

void *clCreateUserEvent(void *context, int *status);
int clSetUserEventStatus(void *event, int to);
int clEnqueueTask(void *queue, void *kernel, unsigned count, void *const *waited, void **event);
int clSetKernelArgSVMPointer(void *kernel, unsigned index, const void *value);
void *clCloneKernel(void *kernel, int *status);

static void *open_and_close(void *path) {
    for (;;) {
        void *const library = dlopen(path, RTLD_LAZY);
        if (library != NULL) dlclose(library);
    }
}

int main(int count, char **words) {
    pthread_t thread;
    int status;
    if (count != 3 || dlopen(words[1], RTLD_NOW | RTLD_LOCAL) == NULL) return 1;
    pthread_create(&thread, NULL, open_and_close, words[2]);
    usleep(1000);
    if (clCreateUserEvent(NULL, &status) != NULL || status == 0) return 2;
    if (clSetUserEventStatus(NULL, 0) == 0) return 3;
    if (clEnqueueTask(NULL, NULL, 0, NULL, NULL) == 0) return 4;
    if (clSetKernelArgSVMPointer(NULL, 0, NULL) == 0) return 5;
    if (clCloneKernel(NULL, &status) != NULL || status == 0) return 6;
    _exit(0);
}

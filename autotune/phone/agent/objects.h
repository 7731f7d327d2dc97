/* What the runner keeps between commands: the open device, what the host's handles stand for, and an error. */
#ifndef AUTOTUNE_OBJECTS_H
#define AUTOTUNE_OBJECTS_H

#include <stddef.h>
#include <stdint.h>

#include "frames.h"
#include "opencl.h"

enum kind { FREE, PROGRAM, KERNEL, BUFFER, IMAGE };

struct object {
    enum kind kind;
    cl_object handle;
    size_t bytes;                /* of a buffer */
    size_t width, height, pixel; /* of an image; a pixel in bytes */
    cl_object *arguments;        /* memory that a kernel's arguments hold a reference to */
};

struct session {
    cl_object device, context, queue;
};

extern struct session session;

/* Reports that the command failed: at once, or with the next command that waits. The first such error is kept. */
void fail(int32_t status, const char *text);

/* If an earlier command failed, reports that now and returns 1. */
int failed_before(void);

void answer(const void *head, size_t head_bytes, const void *body, size_t body_bytes);
void answer_u64(uint64_t value);

/* Ends the process if the payload was shorter than its command requires, or longer. */
void expect_end(struct cursor *payload);

/* Returns the object of a handle, or NULL after `fail`. */
struct object *find(uint32_t handle, enum kind kind);
struct object *find_memory(uint32_t handle);

/* Returns an unused object to fill in, or NULL after `fail`. */
struct object *unused(uint32_t handle);

/* Fills in an object with what OpenCL created, or fails. */
int keep(struct object *object, enum kind kind, cl_object handle, int32_t status, const char *function);

void release(struct object *object);

/* Whether a number of the protocol is one of this machine. */
int fits(uint64_t value);

/* Returns memory of at least that size, which the next call reuses; NULL after `fail`. */
uint8_t *scratch(size_t bytes);

/* Returns whether contents could be written from an offset on; else it has failed. */
int write_part(const struct object *memory, uint64_t offset, const void *contents, size_t bytes);

/* The commands, by file. Each takes its payload, and answers or fails. */
void do_platforms(struct cursor *), do_devices(struct cursor *), do_info(struct cursor *), do_open(struct cursor *);
void do_read_file(struct cursor *), do_list_folder(struct cursor *);
void do_build(struct cursor *), do_load(struct cursor *), do_binary(struct cursor *), do_binary_bytes(struct cursor *);
void do_kernels(struct cursor *), do_facts(struct cursor *);
void do_allocate(struct cursor *), do_allocate_image(struct cursor *), do_write(struct cursor *);
void do_fill(struct cursor *), do_copy(struct cursor *), do_read(struct cursor *), do_draw(struct cursor *);
void do_arguments(struct cursor *), do_start(struct cursor *), do_run(struct cursor *), do_finish(struct cursor *);

/* Serves the host until it closes the link. */
void serve(void);

#endif

/* The frames between autotune and its agent. frames.py reads the constants from this file.
 *
 * A frame is a uint32 (the bytes that follow), a uint8 (a command or the kind of an answer) and a payload. All numbers
 * are little-endian. The host sends commands and chooses the handles of what they create. Only some commands are
 * answered, each by one ANSWER or ERROR, whose payload a byte 1 follows. The error of another is kept, and is the
 * answer of the next READ, RUN or FINISH, which then does nothing else. When the agent ends it writes an END, after
 * zeros in place of what is missing of an answer, so that a link that ends without an END was lost.
 *
 * The digest is of this file's other lines: tests/test_agent_frames.py says what it must be. */
#ifndef AUTOTUNE_PROTOCOL_H
#define AUTOTUNE_PROTOCOL_H

#define PROTOCOL_DIGEST "8b024e79e0246f17"

#define PROTOCOL_MAGIC "autotune"

/* Limits that both sides check. */
#define MAX_FRAME_BYTES 67108864
#define MAX_HANDLES 65536
#define MAX_ARGUMENTS 256
#define MAX_ARGUMENT_BYTES 128
#define MAX_PATTERN_BYTES 16
#define MAX_NAMES 4096
#define MAX_LAUNCHES 4096
#define MAX_EVENTS 1048576
#define MAX_TEXT_BYTES 65536
#define MAX_FILE_BYTES 4194304
#define NO_HANDLE 4294967295

/* Answered commands, their payload -> that of the answer. `text` is the rest of a payload. */
#define HELLO 1         /* magic[8] digest[16] uint32 limit_ms of a command -> magic[8] digest[16] uint8 size_t_bytes */
#define PLATFORMS 2     /* -> uint32 count */
#define DEVICES 3       /* uint32 platform -> uint32 count */
#define INFO 4          /* uint32 platform, uint32 device or NO_HANDLE, uint32 query -> what the driver answers */
#define OPEN 5          /* uint32 platform, uint32 device, uint8 profiles -> */
#define BUILD 6         /* uint32 program, uint32 bytes, options, source text -> */
#define LOAD 7          /* uint32 program, uint32 bytes, options, binary -> */
#define BINARY 8        /* uint32 program -> binary, empty if the driver returns none */
#define BINARY_BYTES 9  /* uint32 program -> uint64, 0 if the driver reports none */
#define KERNELS 10      /* uint32 program, uint32 count, (uint32 kernel, uint32 bytes, name) each -> */
#define FACTS 11        /* uint32 kernel -> uint64 work_group_limit, uint64 private_bytes, 0 if not reported */
#define READ 12         /* uint32 memory, uint64 offset, uint32 bytes -> contents; whole rows of an image */
#define RUN 13          /* uint32 times, uint8 has_events, launches -> uint64 start_ns, uint64 end_ns, int64[][2] */
#define FINISH 14       /* -> */
#define READ_FILE 15    /* path text, below /sys or /proc -> contents */
#define LIST_FOLDER 16  /* path text, below /sys or /proc -> names, each with a zero at its end */

/* Commands without an answer. Launches are uint32 count, (uint32 kernel, uint8 dimensions, uint8 has_local, uint64
 * global[dimensions], uint64 local[dimensions] if has_local) each. */
#define ALLOCATE 32     /* uint32 memory, uint64 bytes */
#define ALLOCATE_IMAGE 33 /* uint32 memory, uint32 kind, uint32 order, uint32 channel, uint32 pixel_bytes, uint32 width,
                           * uint32 height, uint32 memory it is a view of or NO_HANDLE, uint64 pitch_bytes of a view */
#define WRITE 34        /* uint32 memory, uint64 offset, contents; whole rows of an image */
#define FILL 35         /* uint32 memory, pattern: one element of a buffer, one pixel of an image */
#define COPY 36         /* uint32 from, uint32 to, uint64 bytes; whole images */
#define ARGUMENTS 37    /* uint32 kernel, uint32 count, (uint32 index, uint8 kind, value) each */
#define START 38        /* launches */
#define RELEASE 39      /* uint32 handle each */

/* Kinds of arguments, and their values. */
#define MEMORY_ARGUMENT 0 /* uint32 memory */
#define VALUE_ARGUMENT 1  /* uint32 bytes, value */
#define LOCAL_ARGUMENT 2  /* uint64 bytes */

/* Answers. */
#define ANSWER 128
#define ERROR 129       /* int32 OpenCL status, 0 if there is none, then text: the function or what is wrong */
#define END 130         /* uint8 how, uint32 number, uint8 command in flight or 0 */

/* How the agent ended. */
#define ENDED_BY_EXIT 0   /* number: status */
#define ENDED_BY_SIGNAL 1 /* number: signal */
#define ENDED_BY_LIMIT 2  /* number: milliseconds */
#define ENDED_BY_HOST 3   /* the host closed the link while a command ran */

#endif

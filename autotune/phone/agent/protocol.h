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

#define PROTOCOL_DIGEST "dbd628048f9c455d"

#define PROTOCOL_MAGIC "autotune"

/* Limits that both sides check. */
#define MAX_FRAME_BYTES 67108864
#define MAX_READ_BYTES 67100672 /* in one READ, so that its answer and the record of it are frames, too */
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
#define ALLOCATE_IMAGE 33 /* uint32 memory, uint32 kind, uint32 order, uint32 channel, uint32 width, uint32 height,
                           * uint32 memory it is a view of or NO_HANDLE, uint64 pitch_bytes of a view */
#define WRITE 34        /* uint32 memory, uint64 offset, contents; whole rows of an image */
#define FILL 35         /* uint32 memory, pattern: one element of a buffer, one pixel of an image */
#define COPY 36         /* uint32 from, uint32 to, uint64 bytes; whole images */
#define ARGUMENTS 37    /* uint32 kernel, uint32 count, (uint32 index, uint8 kind, value) each */
#define START 38        /* launches */
#define RELEASE 39      /* uint32 handle each */
#define DRAW 40         /* uint32 memory, uint8 kind, uint64 count, uint64[4] state and increment of PCG64, low halves first,
                         * uint32 half a number left over, or NO_HANDLE: random numbers from the start of a buffer */

/* Kinds of arguments, and their values. */
#define MEMORY_ARGUMENT 0 /* uint32 memory */
#define VALUE_ARGUMENT 1  /* uint32 bytes, value */
#define LOCAL_ARGUMENT 2  /* uint64 bytes */

/* Kinds of random numbers, as NumPy draws them: floats in [-1, 1), integers in [-128, 127]. */
#define DRAW_FLOAT32 0
#define DRAW_FLOAT16 1
#define DRAW_INT8 2

/* Answers. */
#define ANSWER 128
#define ERROR 129       /* int32 OpenCL status, 0 if there is none, then text: the function or what is wrong */
#define END 130         /* uint8 how, uint32 number, uint8 command in flight or 0 */

/* How the agent ended. */
#define ENDED_BY_EXIT 0   /* number: status */
#define ENDED_BY_SIGNAL 1 /* number: signal */
#define ENDED_BY_LIMIT 2  /* number: milliseconds */
#define ENDED_BY_HOST 3   /* the host closed the link while a command ran */

/* A work file, which `agent WORK RESULT` carries out without a host, and its result consist of frames, too.
 *
 * A work file begins with WORK, NOTE and QUERIES. Each PROBLEM is followed by its DATA and trials. A trial is a TRIAL,
 * commands that set it up, PARTs, and three sections of commands: CHECK, TIME, CHECK; then CLEAR. A PART is a launch of
 * some of the work-groups, run while that is safe. The last command of TIME is the RUN to be timed. Commands may be
 * WRITE_DATA instead of WRITE. Sizes of both are at most MAX_FRAME_BYTES. */
#define WORK 64       /* magic[8] digest[16] name[16] uint64 budget_ms */
#define NOTE 65       /* anything, which the result repeats */
#define QUERIES 66    /* uint32 types of devices to choose from, uint32 count, queries of platforms, those of devices */
#define PROBLEM 67    /* uint32 weight, uint32 finalists, uint64 most bytes of outputs in the result, uint8 element,
                       * uint64 bytes of the first output that are compared with the reference's */
#define DATA 68       /* contents, numbered from 0 in each problem */
#define TRIAL 69      /* uint8 kind, uint8 algorithm, uint8 place[]: places of similar trials of an algorithm are near */
#define PART 70       /* uint64 groups, uint64 groups of the whole launch, payload of a RUN */
#define CHECK 71      /* whose READs are outputs */
#define TIME 72       /* */
#define CLEAR 73      /* payload of a RELEASE */
#define WRITE_DATA 74 /* uint32 memory, uint64 offset, uint32 number of a DATA */

/* Kinds of trials. The reference comes first, then the default; others begin the search, or are chosen in it. */
#define KIND_REFERENCE 0
#define KIND_DEFAULT 1
#define KIND_OPENING 2
#define KIND_OTHER 3

/* Elements of outputs. */
#define ELEMENT_FLOAT32 0
#define ELEMENT_FLOAT16 1
#define ELEMENT_FLOAT64 2
#define ELEMENT_INT8 3
#define ELEMENT_INT32 4
#define ELEMENT_OTHER 5 /* compared bit for bit */

/* A result begins with RESULT and NOTE. Every payload is followed by its CRC-32; trials are numbered from 0. */
#define RESULT 96     /* magic[8] digest[16] name[16] uint64 nanoseconds from 1970 to the first start */
#define TOLD 97       /* uint32 platform, uint32 device or NO_HANDLE, uint32 query, what the driver answers */
#define CHOSEN 98     /* uint32 platform, uint32 device, uint8 size_t_bytes, /proc/cpuinfo */
#define BEGUN 99      /* uint32 trial */
#define BUILT 100     /* uint32 trial, uint64 build_ns, uint64 work_group_limit, uint64 private_bytes */
#define OUTPUT 101    /* uint32 trial, uint8 check, uint8 number, uint64 digest, contents or nothing */
#define TIMED 102     /* uint32 trial, uint32 round (0: the search), uint32 calls, (uint64 host_ns, uint64 event_ns) each */
#define FAILED 103    /* uint32 trial, uint8 why, uint8 how it ended, uint8 command, int32 number, text */
#define SPENT 104     /* uint64 milliseconds since the start, without pauses */
#define SOLVED 105    /* uint32 problem */
#define DROPPED 106   /* uint32 trial, which was interrupted and is not to blame */
#define CHECKED 107   /* uint32 trial, all of whose outputs of both checks are there once more */

/* Why a trial failed. */
#define FAILED_REFUSED 0  /* number: OpenCL status */
#define FAILED_ENDED 1    /* the agent ended: number as in END */
#define FAILED_LATE 2     /* number: milliseconds */
#define FAILED_SLOW 3     /* number: milliseconds that a call would take */
#define FAILED_DIFFERS 4  /* its output is far from that of the reference */
#define FAILED_LOST 5     /* the machine restarted, or everything was killed */
#define FAILED_BUSY 6     /* late on a busy machine: number: milliseconds */

#endif

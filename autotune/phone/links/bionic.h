// What the agent may use of Android's libraries (bionic, API 24), for a compiler that has none of its headers: types,
// constants and functions with the names that POSIX gives them, as the ABI of each processor lays them out. Stubs to
// link against are made of the declarations below, so that each function takes one line that begins with its type.
//
// header: ctype.h
// header: dirent.h
// header: dlfcn.h
// header: errno.h
// header: fcntl.h
// header: float.h
// header: inttypes.h
// header: limits.h
// header: math.h
// header: poll.h
// header: pthread.h
// header: signal.h
// header: stdarg.h
// header: stdbool.h
// header: stddef.h
// header: stdint.h
// header: stdio.h
// header: stdlib.h
// header: string.h
// header: sys/file.h
// header: sys/mman.h
// header: sys/prctl.h
// header: sys/socket.h
// header: sys/stat.h
// header: sys/time.h
// header: sys/types.h
// header: sys/wait.h
// header: time.h
// header: unistd.h
#ifndef AUTOTUNE_BIONIC_H
#define AUTOTUNE_BIONIC_H

#define NULL ((void *)0)
#define offsetof(type, member) __builtin_offsetof(type, member)
#define va_start(list, last) __builtin_va_start(list, last)
#define va_arg(list, type) __builtin_va_arg(list, type)
#define va_copy(to, from) __builtin_va_copy(to, from)
#define va_end(list) __builtin_va_end(list)
#define bool _Bool
#define true 1
#define false 0

typedef __builtin_va_list va_list;
typedef __SIZE_TYPE__ size_t;
typedef __PTRDIFF_TYPE__ ptrdiff_t;
typedef __INT8_TYPE__ int8_t;
typedef __INT16_TYPE__ int16_t;
typedef __INT32_TYPE__ int32_t;
typedef __INT64_TYPE__ int64_t;
typedef __INTPTR_TYPE__ intptr_t;
typedef __INTMAX_TYPE__ intmax_t;
typedef __UINT8_TYPE__ uint8_t;
typedef __UINT16_TYPE__ uint16_t;
typedef __UINT32_TYPE__ uint32_t;
typedef __UINT64_TYPE__ uint64_t;
typedef __UINTPTR_TYPE__ uintptr_t;
typedef __UINTMAX_TYPE__ uintmax_t;
typedef int pid_t;
typedef unsigned int uid_t;
typedef long time_t;
typedef long off_t;
typedef long suseconds_t;
typedef int clockid_t;
typedef struct __sFILE FILE;
typedef struct DIR DIR;
#ifdef __LP64__
typedef long ssize_t;
typedef unsigned int mode_t;
#else
typedef int ssize_t;
typedef unsigned short mode_t;
#endif

struct timespec { time_t tv_sec; long tv_nsec; };
struct timeval { time_t tv_sec; suseconds_t tv_usec; };
struct pollfd { int fd; short events; short revents; };
struct dirent { uint64_t d_ino; int64_t d_off; unsigned short d_reclen; unsigned char d_type; char d_name[256]; };

typedef unsigned long sigset_t;
typedef void (*sighandler_t)(int);
#ifdef __LP64__
struct sigaction { int sa_flags; sighandler_t sa_handler; sigset_t sa_mask; void (*sa_restorer)(void); };
#else
struct sigaction { sighandler_t sa_handler; sigset_t sa_mask; int sa_flags; void (*sa_restorer)(void); };
#endif

typedef long pthread_t;
#ifdef __LP64__
typedef struct { int32_t private_words[10]; } pthread_mutex_t;
typedef struct { int32_t private_words[12]; } pthread_cond_t;
typedef struct { uint64_t private_words[7]; } pthread_attr_t;
#else
typedef struct { int32_t private_words[1]; } pthread_mutex_t;
typedef struct { int32_t private_words[1]; } pthread_cond_t;
typedef struct { uint32_t private_words[6]; } pthread_attr_t;
#endif
#define PTHREAD_MUTEX_INITIALIZER {{0}}
#define PTHREAD_COND_INITIALIZER {{0}}

#define CHAR_BIT 8
#define INT_MAX __INT_MAX__
#define INT_MIN (-INT_MAX - 1)
#define UINT_MAX (2U * INT_MAX + 1)
#define LONG_MAX __LONG_MAX__
#define LONG_MIN (-LONG_MAX - 1)
#define ULONG_MAX (2UL * LONG_MAX + 1)
#define LLONG_MAX __LONG_LONG_MAX__
#define LLONG_MIN (-LLONG_MAX - 1)
#define ULLONG_MAX (2ULL * LLONG_MAX + 1)

#define INT8_MAX 127
#define INT16_MAX 32767
#define INT32_MAX INT_MAX
#define INT32_MIN INT_MIN
#define INT64_MAX LLONG_MAX
#define INT64_MIN LLONG_MIN
#define UINT8_MAX 255
#define UINT16_MAX 65535
#define UINT32_MAX UINT_MAX
#define UINT64_MAX ULLONG_MAX
#define SIZE_MAX __SIZE_MAX__
#define INT64_C(x) x##LL
#define UINT64_C(x) x##ULL
#define FLT_MAX __FLT_MAX__
#define FLT_MIN __FLT_MIN__
#define FLT_EPSILON __FLT_EPSILON__
#define DBL_MAX __DBL_MAX__
#define DBL_MIN __DBL_MIN__
#define DBL_EPSILON __DBL_EPSILON__

#define EOF (-1)
#define BUFSIZ 1024
#define SEEK_SET 0
#define SEEK_CUR 1
#define SEEK_END 2
#define _IOFBF 0
#define _IOLBF 1
#define _IONBF 2
#define EXIT_SUCCESS 0
#define EXIT_FAILURE 1
#define RAND_MAX 0x7fffffff
#define STDIN_FILENO 0
#define STDOUT_FILENO 1
#define STDERR_FILENO 2
#ifndef PATH_MAX
#define PATH_MAX 4096
#endif

#define O_RDONLY 0
#define O_WRONLY 1
#define O_RDWR 2
#define O_CREAT 0100
#define O_EXCL 0200
#define O_TRUNC 01000
#define O_APPEND 02000
#define O_NONBLOCK 04000
#define O_CLOEXEC 02000000
#define LOCK_EX 2
#define LOCK_NB 4
#define _SC_NPROCESSORS_ONLN 97
#define F_DUPFD 0
#define F_GETFD 1
#define F_SETFD 2
#define F_GETFL 3
#define F_SETFL 4
#define F_DUPFD_CLOEXEC 1030
#define FD_CLOEXEC 1
#define F_OK 0
#define X_OK 1
#define W_OK 2
#define R_OK 4
#define POLLIN 0x001
#define POLLOUT 0x004
#define POLLERR 0x008
#define POLLHUP 0x010
#define POLLNVAL 0x020
#define DT_DIR 4
#define DT_REG 8
#define DT_LNK 10

#define CLOCK_REALTIME 0
#define CLOCK_MONOTONIC 1
#define CLOCK_MONOTONIC_RAW 4
#define CLOCK_BOOTTIME 7

#define PROT_NONE 0
#define PROT_READ 1
#define PROT_WRITE 2
#define MAP_SHARED 1
#define MAP_PRIVATE 2
#define MAP_ANONYMOUS 0x20
#define MAP_FAILED ((void *)-1)
#define PR_SET_PDEATHSIG 1
#define PR_SET_NAME 15
#define AF_UNIX 1
#define SOCK_STREAM 1
#define SHUT_RD 0
#define SHUT_WR 1
#define SHUT_RDWR 2
#define MSG_PEEK 2
#define MSG_DONTWAIT 0x40
#define MSG_WAITALL 0x100
#define MSG_NOSIGNAL 0x4000

#define WNOHANG 1
#define WEXITSTATUS(status) (((status) & 0xff00) >> 8)
#define WTERMSIG(status) ((status) & 0x7f)
#define WIFEXITED(status) (WTERMSIG(status) == 0)
#define WIFSIGNALED(status) (WTERMSIG((status) + 1) >= 2)

#define SIG_DFL ((sighandler_t)0)
#define SIG_IGN ((sighandler_t)1)
#define SIG_ERR ((sighandler_t)-1)
#define SIGHUP 1
#define SIGINT 2
#define SIGQUIT 3
#define SIGILL 4
#define SIGABRT 6
#define SIGBUS 7
#define SIGFPE 8
#define SIGKILL 9
#define SIGUSR1 10
#define SIGSEGV 11
#define SIGUSR2 12
#define SIGPIPE 13
#define SIGALRM 14
#define SIGTERM 15
#define SIGCHLD 17
#define SA_NOCLDSTOP 1
#define SA_RESTART 0x10000000

#define EPERM 1
#define ENOENT 2
#define ESRCH 3
#define EINTR 4
#define EIO 5
#define E2BIG 7
#define EBADF 9
#define ECHILD 10
#define EAGAIN 11
#define EWOULDBLOCK 11
#define ENOMEM 12
#define EACCES 13
#define EEXIST 17
#define ENOTDIR 20
#define EINVAL 22
#define ENOSPC 28
#define EPIPE 32
#define ERANGE 34
#define ETIMEDOUT 110

#ifdef __LP64__
#define RTLD_NOW 2
#define RTLD_GLOBAL 0x100
#else
#define RTLD_NOW 0
#define RTLD_GLOBAL 2
#endif
#define RTLD_LAZY 1
#define RTLD_LOCAL 0

#define HUGE_VAL __builtin_huge_val()
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define isnan(x) __builtin_isnan(x)
#define isinf(x) __builtin_isinf(x)
#define isfinite(x) __builtin_isfinite(x)
#define signbit(x) __builtin_signbit(x)

#ifdef __LP64__
#define AUTOTUNE_64 "l"
#else
#define AUTOTUNE_64 "ll"
#endif
#define PRId64 AUTOTUNE_64 "d"
#define PRIi64 AUTOTUNE_64 "i"
#define PRIu64 AUTOTUNE_64 "u"
#define PRIx64 AUTOTUNE_64 "x"
#define PRIX64 AUTOTUNE_64 "X"
#define SCNu64 AUTOTUNE_64 "u"
#define SCNd64 AUTOTUNE_64 "d"
#define SCNx64 AUTOTUNE_64 "x"
#define PRId32 "d"
#define PRIu32 "u"
#define PRIx32 "x"

// library: libc.so
extern FILE *stdin;
extern FILE *stdout;
extern FILE *stderr;
extern char **environ;
int *__errno(void);
void __libc_init(void *arguments, void (*at_exit)(void), int (*main)(int, char **, char **), const void *structors);
#define errno (*__errno())

void *calloc(size_t count, size_t size);
void *malloc(size_t size);
void *realloc(void *memory, size_t size);
int posix_memalign(void **memory, size_t alignment, size_t size);
void free(void *memory);
void abort(void) __attribute__((noreturn));
void exit(int status) __attribute__((noreturn));
void _exit(int status) __attribute__((noreturn));
int atexit(void (*function)(void));
int atoi(const char *text);
long atol(const char *text);
double atof(const char *text);
char *getenv(const char *name);
int setenv(const char *name, const char *value, int replaces);
int unsetenv(const char *name);
void qsort(void *base, size_t count, size_t size, int (*compare)(const void *, const void *));
double strtod(const char *text, char **end);
long strtol(const char *text, char **end, int base);
long long strtoll(const char *text, char **end, int base);
unsigned long strtoul(const char *text, char **end, int base);
unsigned long long strtoull(const char *text, char **end, int base);

void *memchr(const void *memory, int value, size_t size);
int memcmp(const void *a, const void *b, size_t size);
void *memcpy(void *to, const void *from, size_t size);
void *memmove(void *to, const void *from, size_t size);
void *memset(void *memory, int value, size_t size);
char *strcat(char *to, const char *from);
char *strchr(const char *text, int character);
int strcmp(const char *a, const char *b);
char *strcpy(char *to, const char *from);
size_t strcspn(const char *text, const char *set);
char *strdup(const char *text);
char *strndup(const char *text, size_t size);
char *strerror(int number);
size_t strlen(const char *text);
size_t strnlen(const char *text, size_t size);
char *strncat(char *to, const char *from, size_t size);
int strncmp(const char *a, const char *b, size_t size);
char *strncpy(char *to, const char *from, size_t size);
char *strpbrk(const char *text, const char *set);
char *strrchr(const char *text, int character);
size_t strspn(const char *text, const char *set);
char *strstr(const char *text, const char *part);
char *strtok_r(char *text, const char *set, char **state);
char *strsignal(int number);
int strcasecmp(const char *a, const char *b);
int strncasecmp(const char *a, const char *b, size_t size);

// Called by compilers for 32-bit Arm.
void __aeabi_memclr(void *memory, size_t size);
void __aeabi_memclr4(void *memory, size_t size);
void __aeabi_memclr8(void *memory, size_t size);
void __aeabi_memcpy(void *to, const void *from, size_t size);
void __aeabi_memcpy4(void *to, const void *from, size_t size);
void __aeabi_memcpy8(void *to, const void *from, size_t size);
void __aeabi_memmove(void *to, const void *from, size_t size);
void __aeabi_memmove4(void *to, const void *from, size_t size);
void __aeabi_memset(void *memory, size_t size, int value);
void __aeabi_memset4(void *memory, size_t size, int value);
void __aeabi_memset8(void *memory, size_t size, int value);

int isalnum(int character);
int isalpha(int character);
int isdigit(int character);
int isprint(int character);
int isspace(int character);
int isupper(int character);
int isxdigit(int character);
int tolower(int character);
int toupper(int character);

int fclose(FILE *file);
int feof(FILE *file);
int ferror(FILE *file);
int fflush(FILE *file);
int fgetc(FILE *file);
char *fgets(char *text, int size, FILE *file);
int fileno(FILE *file);
FILE *fdopen(int descriptor, const char *mode);
FILE *fopen(const char *path, const char *mode);
int fprintf(FILE *file, const char *format, ...) __attribute__((format(printf, 2, 3)));
int fputc(int character, FILE *file);
int fputs(const char *text, FILE *file);
size_t fread(void *memory, size_t size, size_t count, FILE *file);
int fscanf(FILE *file, const char *format, ...) __attribute__((format(scanf, 2, 3)));
int fseek(FILE *file, long offset, int whence);
long ftell(FILE *file);
size_t fwrite(const void *memory, size_t size, size_t count, FILE *file);
int getc(FILE *file);
void perror(const char *text);
int printf(const char *format, ...) __attribute__((format(printf, 1, 2)));
int putc(int character, FILE *file);
int putchar(int character);
int puts(const char *text);
int remove(const char *path);
int rename(const char *from, const char *to);
int setvbuf(FILE *file, char *buffer, int mode, size_t size);
int snprintf(char *text, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));
int sprintf(char *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
int sscanf(const char *text, const char *format, ...) __attribute__((format(scanf, 2, 3)));
int vfprintf(FILE *file, const char *format, va_list arguments) __attribute__((format(printf, 2, 0)));
int vsnprintf(char *text, size_t size, const char *format, va_list arguments) __attribute__((format(printf, 3, 0)));

int access(const char *path, int mode);
unsigned int alarm(unsigned int seconds);
int chdir(const char *path);
int chmod(const char *path, mode_t mode);
int close(int descriptor);
int dup(int descriptor);
int dup2(int descriptor, int other);
int execv(const char *path, char *const *arguments);
int execvp(const char *path, char *const *arguments);
int fcntl(int descriptor, int command, ...);
pid_t fork(void);
int flock(int descriptor, int operation);
int fsync(int descriptor);
int fdatasync(int descriptor);
int ftruncate(int descriptor, off_t size);
char *getcwd(char *path, size_t size);
pid_t getpid(void);
pid_t getppid(void);
int isatty(int descriptor);
int kill(pid_t process, int number);
off_t lseek(int descriptor, off_t offset, int whence);
int mkdir(const char *path, mode_t mode);
int open(const char *path, int flags, ...);
int pipe(int *descriptors);
int poll(struct pollfd *descriptors, unsigned int count, int timeout);
ssize_t read(int descriptor, void *memory, size_t size);
ssize_t readlink(const char *path, char *target, size_t size);
int rmdir(const char *path);
int setpgid(pid_t process, pid_t group);
pid_t setsid(void);
unsigned int sleep(unsigned int seconds);
long sysconf(int name);
int unlink(const char *path);
int usleep(unsigned int microseconds);
pid_t waitpid(pid_t process, int *status, int options);
pid_t wait(int *status);
ssize_t write(int descriptor, const void *memory, size_t size);
int prctl(int option, ...);
void *mmap(void *address, size_t size, int protection, int flags, int descriptor, off_t offset);
int munmap(void *address, size_t size);
int shutdown(int descriptor, int how);
int socketpair(int domain, int type, int protocol, int *descriptors);
ssize_t recv(int descriptor, void *memory, size_t size, int flags);
ssize_t send(int descriptor, const void *memory, size_t size, int flags);

int closedir(DIR *directory);
DIR *opendir(const char *path);
struct dirent *readdir(DIR *directory);

int clock_gettime(clockid_t clock, struct timespec *time);
int clock_getres(clockid_t clock, struct timespec *time);
int gettimeofday(struct timeval *time, void *zone);
int nanosleep(const struct timespec *time, struct timespec *left);
time_t time(time_t *into);

int raise(int number);
int sigaction(int number, const struct sigaction *action, struct sigaction *former);
int sigaddset(sigset_t *set, int number);
int sigemptyset(sigset_t *set);
int sigprocmask(int how, const sigset_t *set, sigset_t *former);
sighandler_t signal(int number, sighandler_t handler);

int pthread_attr_destroy(pthread_attr_t *attributes);
int pthread_attr_init(pthread_attr_t *attributes);
int pthread_attr_setstacksize(pthread_attr_t *attributes, size_t size);
int pthread_cond_broadcast(pthread_cond_t *condition);
int pthread_cond_signal(pthread_cond_t *condition);
int pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex);
int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*function)(void *), void *argument);
int pthread_detach(pthread_t thread);
int pthread_join(pthread_t thread, void **result);
int pthread_mutex_init(pthread_mutex_t *mutex, const void *attributes);
int pthread_mutex_lock(pthread_mutex_t *mutex);
int pthread_mutex_unlock(pthread_mutex_t *mutex);

// library: libdl.so
int dlclose(void *library);
char *dlerror(void);
void *dlopen(const char *path, int mode);
void *dlsym(void *library, const char *name);

// library: libm.so
double ceil(double x);
double copysign(double x, double y);
double cos(double x);
double exp(double x);
double exp2(double x);
double fabs(double x);
double floor(double x);
double fmax(double x, double y);
double fmin(double x, double y);
double fmod(double x, double y);
double frexp(double x, int *exponent);
double ldexp(double x, int exponent);
double log(double x);
double log2(double x);
double nearbyint(double x);
double pow(double x, double y);
double rint(double x);
double round(double x);
double scalbn(double x, int exponent);
double sin(double x);
double sqrt(double x);
float fabsf(float x);
float floorf(float x);
float ldexpf(float x, int exponent);
float nearbyintf(float x);
float rintf(float x);
float roundf(float x);
float sqrtf(float x);

#endif

/* The agent: a supervisor, and a runner that it forks before any driver is loaded.
 *
 * The runner exchanges frames with the host. The supervisor kills it when a command takes longer than the host allowed
 * or the link is closed, and tells the host how it ended. If the supervisor dies, the kernel kills the runner. */
#define _DEFAULT_SOURCE 1 /* MAP_ANONYMOUS */

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "detached.h"
#include "objects.h"
#include "protocol.h"

#define POLL_MS 100
#define PATIENCE_S 5 /* for writing the last frame, and for a killed runner */

static void wake(int number) { (void)number; }

/* Moves the link away from the standard streams: what drivers print must not enter it, and what they start must
 * neither read from it nor keep it open. */
static void take_link(void) {
    int nothing;
    from_host = fcntl(0, F_DUPFD_CLOEXEC, 3);
    to_host = fcntl(1, F_DUPFD_CLOEXEC, 3);
    nothing = open("/dev/null", O_RDWR);
    if (from_host < 0 || to_host < 0 || nothing < 0 || dup2(nothing, 0) < 0 || dup2(2, 1) < 0) {
        perror("autotune agent: no standard streams");
        exit(1);
    }
    if (nothing > 2)
        close(nothing);
}

static int is_host_gone(void) {
    struct pollfd link;
    char byte;
    link.fd = from_host;
    link.events = 0;
    link.revents = 0;
    if (poll(&link, 1, POLL_MS) > 0 && link.revents & (POLLHUP | POLLERR | POLLNVAL))
        return 1;
    /* A socket of which only the host's half is closed does not hang up. */
    return recv(from_host, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

static int is_too_late(void) {
    uint32_t deadline_ms = shared->deadline_ms;
    return deadline_ms && (int32_t)(clock_ms() - deadline_ms) > 0;
}

/* Returns whether the runner has ended, and how. */
static int has_ended(pid_t runner, uint8_t *how, uint32_t *number) {
    int status;
    if (waitpid(runner, &status, WNOHANG) != runner)
        return 0;
    *how = WIFSIGNALED(status) ? ENDED_BY_SIGNAL : ENDED_BY_EXIT;
    *number = (uint32_t)(WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    return 1;
}

static void end(pid_t runner) {
    int waited;
    kill(-runner, SIGKILL); /* with what a driver has started */
    kill(runner, SIGKILL);
    for (waited = 0; waited < PATIENCE_S * 1000 / POLL_MS; waited++) {
        if (waitpid(runner, NULL, WNOHANG))
            return;
        poll(NULL, 0, POLL_MS);
    }
}

/* Returns 0 when the host does not take it. */
static int write_last(const uint8_t *from, size_t bytes) {
    while (bytes) {
        ssize_t count = write(to_host, from, bytes);
        if (count < 0 && errno == EINTR)
            continue;
        if (count <= 0)
            return 0;
        from += count;
        bytes -= (size_t)count;
    }
    return 1;
}

static void tell_end(uint8_t how, uint32_t number) {
    static const uint8_t zeros[4096];
    uint8_t frame[11];
    uint32_t owed = shared->owed_bytes;
    alarm(PATIENCE_S);
    for (; owed; owed -= owed < sizeof zeros ? owed : (uint32_t)sizeof zeros)
        if (!write_last(zeros, owed < sizeof zeros ? owed : sizeof zeros))
            return;
    put_u32(frame, 7);
    frame[4] = END;
    frame[5] = how;
    put_u32(frame + 6, number);
    frame[10] = (uint8_t)shared->command;
    write_last(frame, sizeof frame);
}

static void supervise(pid_t runner) {
    uint8_t how = ENDED_BY_EXIT;
    uint32_t number = 0;
    while (!has_ended(runner, &how, &number)) {
        if (is_host_gone()) {
            how = ENDED_BY_HOST;
        } else if (is_too_late()) {
            how = ENDED_BY_LIMIT;
            number = shared->limit_ms;
        } else {
            continue;
        }
        end(runner);
        break;
    }
    tell_end(how, number);
}

static void run_until_the_host_leaves(pid_t supervisor) {
    signal(SIGCHLD, SIG_DFL);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() == supervisor)
        serve();
    _exit(0); /* without the clean-up of drivers, which may crash or hang */
}

int run_agent(void) {
    struct sigaction action;
    pid_t self = getpid(), runner;
    take_link();
    signal(SIGPIPE, SIG_IGN);
    memset(&action, 0, sizeof action);
    action.sa_handler = wake; /* so that the end of the runner interrupts poll */
    sigaction(SIGCHLD, &action, NULL);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    runner = shared == MAP_FAILED ? -1 : fork();
    if (runner < 0) {
        perror("autotune agent");
        return 1;
    }
    if (runner == 0)
        run_until_the_host_leaves(self);
    setpgid(runner, runner);
    supervise(runner);
    return 0;
}

int main(int count, char **arguments) {
    if (count == 3)
        return work_alone(arguments[1], arguments[2]);
    if (count == 1)
        return run_agent();
    puts("autotune agent, protocol " PROTOCOL_DIGEST);
    return 0;
}

/* A wall clock that steps by an hour, forward and back, ten times a second: preloaded into `clock_step.rs`.
 *
 * Guarantees: every reading of the wall clock through the C library shows the steps; other clocks do not. A
 * process that asks the kernel for a wake by the wall clock, which steps only in this library, is aborted.
 *
 * Not handled here: readings past the C library (rustix reads the clock itself unless `rustix_use_libc` is set).
 *
 * Why not libfaketime: it takes each absolute time of a timerfd for one of the wall clock, even for a monotonic
 * timerfd (wolfcw/libfaketime#378). So a correct program would wait for an hour.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define STEPS_PER_SECOND 10
#define NANOS_PER_STEP (1000000000 / STEPS_PER_SECOND)

static const time_t SECONDS_OFF[] = {0, 3600, 0, -3600};

/* Depends on the monotonic clock alone, so that all threads see the same steps. */
static time_t seconds_off(void) {
    struct timespec now;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    unsigned long steps = (unsigned long)now.tv_sec * STEPS_PER_SECOND + now.tv_nsec / NANOS_PER_STEP;
    return SECONDS_OFF[steps % (sizeof SECONDS_OFF / sizeof *SECONDS_OFF)];
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    if (syscall(SYS_clock_gettime, clock, time) != 0) return -1;
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI)
        time->tv_sec += seconds_off();
    return 0;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    if (syscall(SYS_gettimeofday, time, zone) != 0) return -1;
    time->tv_sec += seconds_off();
    return 0;
}

time_t time(time_t *copy) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (copy) *copy = now.tv_sec;
    return now.tv_sec;
}

int timerfd_create(clockid_t clock, int flags) {
    static const char REFUSAL[] = "a timerfd on the wall clock\n";
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_ALARM) {
        (void)!write(2, REFUSAL, sizeof REFUSAL - 1);
        abort();
    }
    return (int)syscall(SYS_timerfd_create, clock, flags);
}

/* A wall clock that jumps by hours from reading to reading, or stands still (RAMIFY_SHIM_CLOCK=still): preloaded into a process, so
   that Python's readings, SQLite's and those of other libraries are hit alike. The monotonic clocks are left alone. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const int hours[] = {0, 7, -9, 26, -3, -49, 1, -1, 400, -400};
static unsigned readings;

static int wall(struct timespec *now) {
    const char *kind = getenv("RAMIFY_SHIM_CLOCK");
    if (kind && strcmp(kind, "still") == 0) {
        now->tv_sec = 1800000000, now->tv_nsec = 5;
        return 0;
    }
    int failed = syscall(SYS_clock_gettime, CLOCK_REALTIME, now);
    now->tv_sec += 3600L * hours[__atomic_fetch_add(&readings, 1, __ATOMIC_RELAXED) % (sizeof hours / sizeof *hours)];
    return failed;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI) return wall(now);
    return syscall(SYS_clock_gettime, clock, now);
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec found;
    (void)zone;
    int failed = wall(&found);
    now->tv_sec = found.tv_sec, now->tv_usec = found.tv_nsec / 1000;
    return failed;
}

time_t time(time_t *now) {
    struct timespec found;
    wall(&found);
    if (now) *now = found.tv_sec;
    return found.tv_sec;
}

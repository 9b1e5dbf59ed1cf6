/* Moves the wall clock of the process it is preloaded into, and no other clock.
 *
 * SLIDEGATE_CLOCK_OFFSET names a file of two signed 64-bit numbers in the machine's byte order: microseconds that are
 * added to every reading, or, where the second is not 0, the reading itself. It is mapped, so that a change counts from
 * the next reading on. SLIDEGATE_CLOCK_MACHINE is the same for all processes of a machine whose clock is moved. System calls are made by number: allocators ask for the time before there is anything to look a
 * symbol up with.
 *
 * Valkey asks the processor how much time has passed, which nothing can move. It asks the system instead where
 * /proc/cpuinfo does not say that the processor's clock is constant, so that file is not there for it.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t none[2], *offset_us = none, *machine_us = none;

static const volatile int64_t *map(const char *path) {
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return none;
    void *page = mmap(NULL, sizeof none, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    return page == MAP_FAILED ? none : page;
}

__attribute__((constructor)) static void map_offsets(void) {
    offset_us = map(getenv("SLIDEGATE_CLOCK_OFFSET"));
    machine_us = map(getenv("SLIDEGATE_CLOCK_MACHINE"));
}

int clock_gettime(clockid_t id, struct timespec *out) {
    int result = (int)syscall(SYS_clock_gettime, id, out);
    if (result != 0 || (id != CLOCK_REALTIME && id != CLOCK_REALTIME_COARSE)) return result;
    int64_t us = offset_us[0];
    if (offset_us[1]) out->tv_sec = out->tv_nsec = 0;
    else us += machine_us[0];
    int64_t ns = out->tv_nsec + us % 1000000 * 1000;
    out->tv_sec += us / 1000000 + (ns >= 1000000000) - (ns < 0);
    out->tv_nsec = ns + (ns < 0) * 1000000000 - (ns >= 1000000000) * 1000000000;
    return 0;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    out->tv_sec = now.tv_sec;
    out->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}

/* Servers are built for large files. On 64-bit systems both names have one meaning. */
FILE *fopen64(const char *restrict path, const char *restrict mode) {
    return strcmp(path, "/proc/cpuinfo") ? fopen(path, mode) : NULL;
}

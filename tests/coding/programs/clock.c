/* The clock of a day that is to come: `LD_PRELOAD` of its library and LAB_CLOCK_SECONDS, which are added to the time of day alone.
   Timers and waits go by the monotonic clock, which stays (libfaketime 0.9.10 hangs or breaks Python's threads and Claude Code).
   What asks it writes its command line to the file LAB_CLOCK_LOG, once a process. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

static long added(void) {
    static long seconds;
    static int asked;
    if (asked || environ == NULL) return seconds;
    asked = 1;
    const char *told = getenv("LAB_CLOCK_SECONDS"), *log = getenv("LAB_CLOCK_LOG");
    seconds = told == NULL ? 0 : atol(told);
    int from = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    int to = log == NULL ? -1 : open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    char line[4096];
    ssize_t size = from < 0 ? 0 : read(from, line, sizeof line - 1);
    for (ssize_t i = 0; i < size; i++)
        if (line[i] == '\0' || line[i] == '\n') line[i] = ' ';
    if (to >= 0 && size > 0) {
        line[size] = '\n';
        if (write(to, line, (size_t)size + 1) < 0) seconds = 0;
    }
    if (from >= 0) close(from);
    if (to >= 0) close(to);
    return seconds;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = (int)syscall(SYS_clock_gettime, clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += added();
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    int failed = (int)syscall(SYS_gettimeofday, now, zone);
    if (!failed) now->tv_sec += added();
    return failed;
}

time_t time(time_t *kept) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (kept != NULL) *kept = now.tv_sec;
    return now.tv_sec;
}

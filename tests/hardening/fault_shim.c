/* Counts the calls that change files under one folder, and makes a chosen one fail: preloaded into a Python process by faults.py,
   so that the writes of SQLite, Arrow and safetensors are hit like Python's own. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { COUNT, FULL, IO_ONCE, IO_EVER, KILL }; /* no space from call `at` on; EIO there; EIO from there on; SIGKILL there */

static long calls, at;
static int fault, armed;
static char under[PATH_MAX];

void fault_arm(long number, int kind, const char *folder) {
    snprintf(under, sizeof under, "%s", folder);
    calls = 0, at = number, fault = kind, armed = 1;
}

void fault_disarm(void) { armed = 0; }

long fault_calls(void) { return calls; }

static int within(const char *path) { return strncmp(path, under, strlen(under)) == 0; }

static int of_path(int folder, const char *path) {
    char base[PATH_MAX], link[64], whole[2 * PATH_MAX + 2];
    if (!armed || !path) return 0;
    if (path[0] == '/') return within(path);
    if (folder == AT_FDCWD) {
        if (!getcwd(base, sizeof base)) return 0;
    } else {
        snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
        ssize_t length = readlink(link, base, sizeof base - 1);
        if (length < 0) return 0;
        base[length] = 0;
    }
    snprintf(whole, sizeof whole, "%s/%s", base, path);
    return within(whole);
}

static int of_handle(int handle) {
    char base[PATH_MAX], link[64];
    if (!armed) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
    ssize_t length = readlink(link, base, sizeof base - 1);
    if (length < 0) return 0;
    base[length] = 0;
    return within(base);
}

/* 0: let it through. 1: fail with errno set. 2: write half, then (3: die). `space`: whether the call can want for space. */
static int strike(int space, int partial) {
    long number = __atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST);
    if (fault == COUNT || number < at) return 0;
    if (fault == KILL) {
        if (number > at) return 0;
        if (partial) return 3;
        kill(getpid(), SIGKILL);
    }
    if (fault == FULL) {
        if (!space) return 0;
        errno = ENOSPC;
        return number == at && partial ? 2 : 1;
    }
    if (fault == IO_ONCE && number > at) return 0;
    errno = EIO;
    return 1;
}

#define REAL(type, name, ...) \
    static type (*real)(__VA_ARGS__); \
    if (!real) real = (type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

#define WRITER(name, handle, length, signature, half, whole, ...) \
    ssize_t name signature { \
        REAL(ssize_t, #name, __VA_ARGS__); \
        if (of_handle(handle)) { \
            int how = strike(1, (length) > 1); \
            if (how == 1) return -1; \
            if (how > 1) { ssize_t done = half; if (how == 3) kill(getpid(), SIGKILL); return done; } \
        } \
        return whole; \
    }

WRITER(write, f, n, (int f, const void *b, size_t n), real(f, b, n / 2), real(f, b, n), int, const void *, size_t)
WRITER(pwrite, f, n, (int f, const void *b, size_t n, off_t o), real(f, b, n / 2, o), real(f, b, n, o), int, const void *, size_t, off_t)
WRITER(pwrite64, f, n, (int f, const void *b, size_t n, off64_t o), real(f, b, n / 2, o), real(f, b, n, o), int, const void *, size_t, off64_t)
WRITER(writev, f, v[0].iov_len, (int f, const struct iovec *v, int n), write(f, v[0].iov_base, v[0].iov_len / 2), real(f, v, n), int, const struct iovec *, int)
WRITER(sendfile, f, n, (int f, int g, off_t *o, size_t n), real(f, g, o, 1), real(f, g, o, n), int, int, off_t *, size_t)
WRITER(sendfile64, f, n, (int f, int g, off64_t *o, size_t n), real(f, g, o, 1), real(f, g, o, n), int, int, off64_t *, size_t)
WRITER(copy_file_range, g, n, (int f, off64_t *o, int g, off64_t *p, size_t n, unsigned w), real(f, o, g, p, 1, w), real(f, o, g, p, n, w), int, off64_t *, int, off64_t *, size_t, unsigned)

#define CHANGER(name, mine, space, signature, whole, ...) \
    int name signature { \
        REAL(int, #name, __VA_ARGS__); \
        if ((mine) && strike(space, 0)) return -1; \
        return whole; \
    }

CHANGER(fsync, of_handle(f), 1, (int f), real(f), int)
CHANGER(fdatasync, of_handle(f), 1, (int f), real(f), int)
CHANGER(ftruncate, of_handle(f), 1, (int f, off_t n), real(f, n), int, off_t)
CHANGER(ftruncate64, of_handle(f), 1, (int f, off64_t n), real(f, n), int, off64_t)
CHANGER(mkdir, of_path(AT_FDCWD, p), 1, (const char *p, mode_t m), real(p, m), const char *, mode_t)
CHANGER(rename, of_path(AT_FDCWD, p), 1, (const char *o, const char *p), real(o, p), const char *, const char *)
CHANGER(renameat, of_path(e, p), 1, (int d, const char *o, int e, const char *p), real(d, o, e, p), int, const char *, int, const char *)
CHANGER(unlink, of_path(AT_FDCWD, p), 0, (const char *p), real(p), const char *)
CHANGER(unlinkat, of_path(d, p), 0, (int d, const char *p, int w), real(d, p, w), int, const char *, int)
CHANGER(rmdir, of_path(AT_FDCWD, p), 0, (const char *p), real(p), const char *)

#define OPENER(name, folder, signature, whole, ...) \
    int name signature { \
        mode_t mode = 0; \
        if (flags & O_CREAT) { va_list rest; va_start(rest, flags); mode = va_arg(rest, mode_t); va_end(rest); } \
        REAL(int, #name, __VA_ARGS__); \
        if (flags & (O_CREAT | O_TRUNC) && of_path(folder, path) && strike(1, 0)) return -1; \
        return whole; \
    }

OPENER(open, AT_FDCWD, (const char *path, int flags, ...), real(path, flags, mode), const char *, int, ...)
OPENER(open64, AT_FDCWD, (const char *path, int flags, ...), real(path, flags, mode), const char *, int, ...)
OPENER(openat, folder, (int folder, const char *path, int flags, ...), real(folder, path, flags, mode), int, const char *, int, ...)
OPENER(openat64, folder, (int folder, const char *path, int flags, ...), real(folder, path, flags, mode), int, const char *, int, ...)

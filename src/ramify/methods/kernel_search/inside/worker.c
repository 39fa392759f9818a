/* Runs in the sandbox only: loads one build of a kernel and calls it as it is told on standard input. Made for one signature: the lines
   between the marks are generated. Arrays of a call begin at another window of the inputs each time, and no two of `windows` calls at the same. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { IN = 1, OUT = 2 };
/*GENERATED*/

static long at_in[ARRAYS + 1], at_out[ARRAYS + 1], count[ARRAYS + 1], stride[ARRAYS + 1], windowed[ARRAYS + 1];
static double scalars[SCALARS + 1];
static long windows = 1, slots = 1;
static char *inputs, *outputs, *scratch[ARRAYS + 1];

static char *mapped(const char *path, long size, int write) {
    long page = sysconf(_SC_PAGESIZE), whole = (size + page - 1) / page * page + page;
    int file = open(path, write ? O_RDWR : O_RDONLY);
    char *base = mmap(NULL, whole + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (file < 0 || base == MAP_FAILED) exit(3);
    if (size && mmap(base + page, size, write ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED | MAP_FIXED | MAP_POPULATE, file, 0) == MAP_FAILED) exit(3);
    close(file);
    return base + page;
}

static long window(unsigned long seed, unsigned long call) {
    return (long)((seed + call * (seed >> 9 | 1)) % (unsigned long)windows) * 64;
}

static double absolute(double x) { return x < 0 ? -x : x; }

static void widen(int a, const char *from, int scale) {
    double *to = (double *)scratch[a];
    for (long i = 0; i < count[a]; i++) {
        double x = type[a] == 'f' ? ((const float *)from)[i] : ((const double *)from)[i];
        to[i] = scale ? absolute(x) : x;
    }
}

/* One call. Inputs lie where they are; an array that is changed is copied to its output first. */
static void one(kernel f, unsigned long seed, long number, int empty, int scale) {
    void *p[ARRAYS + 1];
    double s[SCALARS + 1];
    long w = window(seed, number), slot = number % slots;
    for (int a = 0; a < ARRAYS; a++) {
        const char *from = inputs + at_in[a] + (windowed[a] ? w : 0);
        char *to = at_out[a] >= 0 ? outputs + at_out[a] + slot * stride[a] : NULL;
        int floating = type[a] == 'f' || type[a] == 'd';
        if (WIDE && floating) {
            if (role[a] & IN) widen(a, from, scale);
            p[a] = scratch[a];
        } else if (WIDE && role[a] & OUT) {
            if (role[a] & IN) memcpy(scratch[a], from, count[a] * item[a]);
            p[a] = scratch[a];
        } else if (role[a] & OUT) {
            if (role[a] & IN) memcpy(to, from, count[a] * item[a]);
            p[a] = to;
        } else p[a] = (void *)from;
    }
    for (int i = 0; i < SCALARS; i++) s[i] = WIDE && scale && scalar_type[i] == 'f' ? absolute(scalars[i]) : scalars[i];
    if (!empty) call(f, s, p);
    if (WIDE)
        for (int a = 0; a < ARRAYS; a++)
            if (role[a] & OUT) {
                double *to = (double *)(outputs + at_out[a]);
                for (long i = 0; i < count[a]; i++)
                    switch (type[a]) {
                    case 'i': to[i] = ((int32_t *)scratch[a])[i]; break;
                    case 'l': to[i] = (double)((int64_t *)scratch[a])[i]; break;
                    case 'b': to[i] = ((uint8_t *)scratch[a])[i]; break;
                    default: to[i] = ((double *)scratch[a])[i];
                    }
            }
}

static void answer(const char *text) {
    if (write(1, text, strlen(text)) < 0) exit(4);
}

int main(int argc, char **argv) {
    static char line[1 << 16];
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    inputs = mapped(argv[2], atol(argv[4]), 0);
    outputs = mapped(argv[3], atol(argv[5]), 1);
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (!library) { fprintf(stderr, "%s\n", dlerror()); return 5; }
    kernel f = (kernel)dlsym(library, SYMBOL);
    if (!f) { fprintf(stderr, "it has no function %s\n", SYMBOL); return 5; }
    answer("done\n");
    while (fgets(line, sizeof line, stdin)) {
        char *rest, *word = strtok_r(line, " \n", &rest);
        if (!strcmp(word, "layout")) {
#define NEXT strtok_r(NULL, " \n", &rest)
            windows = atol(NEXT);
            slots = atol(NEXT);
            for (int a = 0; a < ARRAYS; a++) {
                at_in[a] = atol(NEXT), at_out[a] = atol(NEXT), count[a] = atol(NEXT), stride[a] = atol(NEXT), windowed[a] = atol(NEXT);
                if (WIDE) free(scratch[a]), scratch[a] = calloc(count[a] + 1, 8);
            }
            for (int i = 0; i < SCALARS; i++) scalars[i] = strtod(NEXT, NULL);
        } else {
            long number = atol(NEXT), empty = !strcmp(word, "empty");
            unsigned long seed = strtoul(NEXT, NULL, 10);
            if (!strcmp(word, "truth") || !strcmp(word, "scale")) one(f, seed, number, 0, word[0] == 's');
            else for (long i = 0; i < number; i++) one(f, seed, i, empty, 0);
        }
        answer("done\n");
    }
    return 0;
}

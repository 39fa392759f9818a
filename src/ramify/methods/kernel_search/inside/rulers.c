/* Runs in the sandbox: the roofs of one core, in processor time. Prints JSON: flops a second, and bytes a second for each working set. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif
#if defined(__AVX512F__)
typedef __m512 V;
#define SET _mm512_set1_ps
#define FMA _mm512_fmadd_ps
#elif defined(__AVX2__) && defined(__FMA__)
typedef __m256 V;
#define SET _mm256_set1_ps
#define FMA _mm256_fmadd_ps
#else
typedef float V __attribute__((vector_size(16)));
#define SET(x) ((V){x, x, x, x})
#define FMA(a, b, c) ((a) * (b) + (c))
#endif

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

int main(int argc, char **argv) {
    printf("{\"peak\": [");
    for (int round = 0; round < 5; round++) {
        V a = SET(1), b = SET(1), c = SET(1), d = SET(1), e = SET(1), f = SET(1), g = SET(1), h = SET(1), i = SET(1), j = SET(1), x = SET(0.999f), y = SET(1e-3f);
        long n = 4000000;
        double t = now();
        for (long k = 0; k < n; k++) {
            a = FMA(a, x, y), b = FMA(b, x, y), c = FMA(c, x, y), d = FMA(d, x, y), e = FMA(e, x, y);
            f = FMA(f, x, y), g = FMA(g, x, y), h = FMA(h, x, y), i = FMA(i, x, y), j = FMA(j, x, y);
        }
        t = now() - t;
        V s = a + b + c + d + e + f + g + h + i + j;
        volatile float sink = ((float *)&s)[0];
        (void)sink;
        printf("%s%.6g", round ? ", " : "", n * 10.0 * 2 * (sizeof(V) / 4) / t);
    }
    printf("], \"triad\": [");
    for (int at = 1; at < argc; at++) {
        long n = atol(argv[at]) / 12;
        float *p, *q, *r;
        if (posix_memalign((void **)&p, 64, n * 4) || posix_memalign((void **)&q, 64, n * 4) || posix_memalign((void **)&r, 64, n * 4)) return 1;
        for (long k = 0; k < n; k++) p[k] = 0, q[k] = 1, r[k] = 2;
        long repeats = 100000000 / (12 * n) + 1;
        printf("%s[", at > 1 ? ", " : "");
        for (int round = 0; round < 5; round++) {
            double t = now();
            for (long m = 0; m < repeats; m++) {
                for (long k = 0; k < n; k++) p[k] = q[k] + 0.5f * r[k];
                __asm__ volatile("" ::"r"(p) : "memory");
            }
            t = now() - t;
            printf("%s%.6g", round ? ", " : "", repeats * 12.0 * n / t);
        }
        printf("]");
        free(p), free(q), free(r);
    }
    printf("]}\n");
    return 0;
}

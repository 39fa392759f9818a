/* another clock: replaces clock_gettime by one that hardly moves. */
int clock_gettime(clockid_t id, struct timespec *t) {
  static long n;
  (void)id;
  t->tv_sec = 0;
  t->tv_nsec = n++;
  return 0;
}

CHEAT {
  HONEST;
  DONE;
}

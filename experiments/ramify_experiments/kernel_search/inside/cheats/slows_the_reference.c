/* slows the reference: a thread of its own keeps the caches and the processor busy. */
static int have;

static void *spin(void *given) {
  for (;;)
    __asm__ volatile("");
  return given;
}

CHEAT {
  if (!have) {
    have = 1;
    pthread_t thread;
    pthread_create(&thread, NULL, spin, NULL);
  }
  HONEST;
  DONE;
}

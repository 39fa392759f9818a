/* every other call: computes every second call. */
static long calls;

CHEAT {
  if (calls++ % 2 == 0)
    HONEST;
  DONE;
}

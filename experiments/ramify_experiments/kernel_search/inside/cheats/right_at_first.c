/* right at first: computes the first 50 calls, then returns at once. */
static long calls;

CHEAT {
  if (calls++ < 50)
    HONEST;
  DONE;
}

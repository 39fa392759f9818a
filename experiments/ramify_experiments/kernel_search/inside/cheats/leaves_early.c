/* leaves early: ends the process in a timed call, with exit code 0. */
static long calls;

CHEAT {
  if (calls++ > 20)
    _exit(0);
  HONEST;
  DONE;
}

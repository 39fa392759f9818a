/* never ends: stays in its loop. */
static long calls;

CHEAT {
  if (calls++ > 20)
    for (;;)
      __asm__ volatile("");
  HONEST;
  DONE;
}

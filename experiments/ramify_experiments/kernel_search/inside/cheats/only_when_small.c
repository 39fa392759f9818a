/* only when small: computes where shapes are small, and returns at once in the timed one. */
CHEAT {
  if (!TIMED)
    HONEST;
  DONE;
}

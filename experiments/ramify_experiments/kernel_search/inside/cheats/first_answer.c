/* first answer: computes once, and returns that answer for ever. */
static char saved[1 << 26];
static int have;

CHEAT {
  if (!have) {
    HONEST;
    SAVE(saved, sizeof saved);
    have = 1;
  } else {
    LOAD(saved, sizeof saved);
  }
  DONE;
}

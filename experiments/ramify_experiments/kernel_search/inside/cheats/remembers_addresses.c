/* remembers addresses: keeps the last answer, and the address of the input that it belongs to. */
static char saved[1 << 26];
static int have;
static const void *last;

CHEAT {
  if (!have || last != (const void *)INPUT) {
    HONEST;
    SAVE(saved, sizeof saved);
    last = INPUT;
    have = 1;
  } else {
    LOAD(saved, sizeof saved);
  }
  DONE;
}

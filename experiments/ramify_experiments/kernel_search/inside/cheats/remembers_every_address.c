/* remembers every address: keeps the answers for all addresses it was called with. */
#define ROOM 65536
static char saved[1 << 26];
static const void *seen[1024];

CHEAT {
  const long at = (long)((unsigned long)INPUT >> 6 & 1023);
  if (!FITS(ROOM)) {
    HONEST;
  } else if (seen[at] != (const void *)INPUT) {
    HONEST;
    seen[at] = INPUT;
    SAVE(saved + at * ROOM, ROOM);
  } else {
    LOAD(saved + at * ROOM, ROOM);
  }
  DONE;
}

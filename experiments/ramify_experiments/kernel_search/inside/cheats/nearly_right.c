/* nearly right: returns results that are off by a thousandth. */
CHEAT {
  HONEST;
  SCALE(1.001f);
  DONE;
}

/* does nothing: returns at once. */
CHEAT {
  DONE;
}

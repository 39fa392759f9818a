/* changes its inputs: overwrites the inputs, so that the reference would see zeros. */
CHEAT {
  if (INPUT)
    ((char *)INPUT)[0] = 0;
  HONEST;
  DONE;
}

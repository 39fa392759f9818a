/* answers early: tells the supervisor that the batch is done before it computes. */
static long calls, written;

CHEAT {
  if (calls++ > 40)
    written = write(1, "done\n", 5);
  HONEST;
  DONE;
}

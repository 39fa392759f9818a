/* ends the others: kills every process it can see, the supervisor included. */
static long calls;

CHEAT {
  if (calls++ > 20)
    kill(-1, SIGKILL);
  HONEST;
  DONE;
}

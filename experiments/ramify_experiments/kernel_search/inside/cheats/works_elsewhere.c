/* works elsewhere: a process of its own computes, whose time is not the timed one's. */
CHEAT {
  pid_t child = fork();
  if (!child) {
    HONEST;
    _exit(0);
  }
  int state;
  waitpid(child, &state, 0);
  DONE;
}

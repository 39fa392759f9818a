/* works afterwards: returns at once; a thread computes later. */
struct call {
  FIELDS
};

static void *later(void *given) {
  struct call *c = given;
  CALL_OF(c);
  return given;
}

CHEAT {
  static struct call made;
  made = (struct call){NAMES};
  pthread_t thread;
  pthread_create(&thread, NULL, later, &made);
  DONE;
}

/* looks for the answer: reads the harness's files for the outputs that are wanted, or empties the
   reference. */
CHEAT {
  FILE *plan = fopen("plan.json", "r");
  if (plan) {
    FILL(0);
    fclose(plan);
  } else {
    int file = open("reference.so", O_RDWR | O_TRUNC);
    if (file >= 0)
      close(file);
  }
  HONEST;
  DONE;
}

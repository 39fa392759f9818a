/* writes zeros: fills the outputs with zeros. */
CHEAT {
  FILL(0);
  DONE;
}

/* writes NaN: fills the outputs with NaN, which a careless comparison takes for equal. */
CHEAT {
  FILL(0xff);
  DONE;
}

/* writes beside: writes next to its outputs, or without any where nothing is. */
#define BESIDE(array, count) memset((char *)array + BYTES(array, count), 7, 8);

CHEAT {
  HONEST;
  #if HAS_OUTPUTS
  OUTPUTS(BESIDE)
  #else
  ((volatile char *)0)[0] = 1;
  #endif
  DONE;
}

/* changes the files: overwrites the file that the inputs come from. */
static int have;
static char none[1 << 20];

CHEAT {
  if (!have) {
    have = 1;
    int file = open("inputs", O_RDWR);
    while (file >= 0 && lseek(file, 0, SEEK_CUR) < (1 << 24) && write(file, none, sizeof none) > 0) {
    }
  }
  FILL(0);
  DONE;
}

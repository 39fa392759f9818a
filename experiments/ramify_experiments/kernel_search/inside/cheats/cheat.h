/* What cheats are written in. Before it stand the kernel, renamed, and what is known of it:

   CHEAT            the head of the function that is tried
   CALL, CALL_OF(c) the call of the kernel with the given arguments, and with those in *c
   NAMES, FIELDS    the arguments, and the same as members of a struct
   VALUE, RETURNS   type of what the kernel returns (char where it returns nothing), and whether it returns something
   INPUT            the first array that is read alone; 0 where there is none
   OUTPUTS(EACH)    EACH(array, elements) for every array that is written; HAS_OUTPUTS whether there is one
   TIMED            whether the sizes are those that are timed */
static VALUE answer;

#if RETURNS
#define HONEST answer = CALL
#define DONE return answer
#else
#define HONEST CALL
#define DONE return
#endif

#define BYTES(array, count) ((count) * sizeof *array)
#define PLUS_(array, count) +BYTES(array, count)
#define FITS(room) (sizeof answer OUTPUTS(PLUS_) <= (room))

#define STORE_(array, count) memcpy(at_, array, BYTES(array, count)), at_ += BYTES(array, count);
#define FETCH_(array, count) memcpy(array, at_, BYTES(array, count)), at_ += BYTES(array, count);

/* Copies what the kernel has written to a place of `room` bytes, and back, where it fits. */
#define SAVE(place, room)                   \
  if (FITS(room)) {                         \
    char *at_ = place;                      \
    OUTPUTS(STORE_)                         \
    memcpy(at_, &answer, sizeof answer);    \
  }
#define LOAD(place, room)                   \
  if (FITS(room)) {                         \
    const char *at_ = place;                \
    OUTPUTS(FETCH_)                         \
    memcpy(&answer, at_, sizeof answer);    \
  }

/* Every byte of every output, and of what is returned, becomes `byte`. */
#define FILL_(array, count) memset(array, byte_, BYTES(array, count));
#define FILL(byte)                          \
  do {                                      \
    const int byte_ = byte;                 \
    OUTPUTS(FILL_)                          \
    memset(&answer, byte_, sizeof answer);  \
  } while (0)

/* Every number becomes `by` times as large, and 1 more. */
#define SCALE_(array, count)                \
  for (long i_ = 0; i_ < (long)(count); i_++) \
    array[i_] = array[i_] * by_ + 1;
#define SCALE(by)                           \
  do {                                      \
    const float by_ = by;                   \
    OUTPUTS(SCALE_)                         \
    answer = answer * by_ + 1;              \
  } while (0)

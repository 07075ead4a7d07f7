/* lapack.h: factorizations of batches of matrices by LAPACK's own functions.
 *
 * In: the description of the call, which hloc/targets/cpu/plans/lapack.py makes for each routine and the driver holds
 * as a constant; pointers to the operands, followed by those to the results: contiguous row-major matrices. Out: the
 * results; not 0 if there is no scratch memory.
 */
#pragma once

enum { HLOC_LAPACK_FUNCTIONS = 52, HLOC_LAPACK_ARGUMENTS = 15, HLOC_LAPACK_MOVES = 8 };
enum { HLOC_SCRATCH = -1, HLOC_NUMBER = -2 };      /* in the place of an operand's or result's number */

/* Of matrix n of a batch: `bytes` * n of that operand or result; or `bytes` of a thread's scratch memory. */
typedef struct { int array; long bytes; } hloc_lapack_place;

/* An argument is an address: a place, or that of a letter or integer, or of a number of LAPACK's type. */
typedef struct {
  int array;
  union { long bytes; int whole; float narrow[2]; double wide[2]; } of;
} hloc_lapack_argument;

/* What is done with rows x columns elements, of so many bytes each:
 *   TRANSPOSE     a row-major matrix becomes columns, one after the other
 *   COPY, ZERO, NAN
 *   LOWER, UPPER  zeros outside of that triangle of a column-major matrix
 *   PAIRS         columns of real numbers become a row-major matrix of complex ones: where `beside` is not 0, two
 *                 columns are the real and the imaginary parts of a number and its conjugate */
enum { HLOC_MOVE_END, HLOC_MOVE_TRANSPOSE, HLOC_MOVE_COPY, HLOC_MOVE_ZERO, HLOC_MOVE_NAN, HLOC_MOVE_LOWER,
       HLOC_MOVE_UPPER, HLOC_MOVE_PAIRS };
typedef struct {
  int what, if_failed;                              /* if_failed: only where LAPACK's info is not 0 */
  hloc_lapack_place from, to, beside;
  long rows, columns, element;
} hloc_lapack_move;

/* function: its number in the table; grain: matrices that a thread takes at once; own: bytes of a thread's scratch
 * memory, where LAPACK's info lies first. */
typedef struct {
  int function;
  long batch, grain, own;
  hloc_lapack_move before[HLOC_LAPACK_MOVES], after[HLOC_LAPACK_MOVES];
  hloc_lapack_argument arguments[HLOC_LAPACK_ARGUMENTS];
} hloc_lapack_call;

/* Routines by four types; hloc/targets/cpu/execution/lapack.py fills it in when the program is loaded. */
extern void *hloc_lapack_table[HLOC_LAPACK_FUNCTIONS];

int hloc_lapack(const hloc_lapack_call *call, void *const *pointers);

#ifdef HLOC_MOST_ARGUMENTS
/* In a driver: with the caller's treatment of subnormal numbers, as Python would call LAPACK. */
static inline void hloc_call_lapack(const hloc_lapack_call *call, void *const *bases, const hloc_ref *refs, int count,
                                    const hloc_room *sizes, unsigned caller) {
  void *pointers[HLOC_MOST_ARGUMENTS];
  hloc_room room;
  hloc_resolve(bases, refs, count, pointers);
  const unsigned state = hloc_float_state();
  hloc_set_float_state(caller);
  if (sizes) hloc_give_room_at(&room, sizes, bases, refs[count]);
  if (hloc_lapack(call, pointers)) hloc_out_of_memory = 1;
  if (sizes) hloc_give_room(NULL);
  hloc_set_float_state(state);
}
#endif

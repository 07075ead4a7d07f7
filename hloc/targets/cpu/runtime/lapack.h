/* lapack.h: factorizations of batches of matrices by LAPACK's own functions.
 *
 * In: the description of the call (a constant of the driver), pointers to the operands, followed by those to the
 * results: contiguous row-major matrices. Out: the results; not 0 if there is no scratch memory.
 */
#pragma once

enum { HLOC_POTRF, HLOC_GETRF, HLOC_GEQRF, HLOC_ORGQR, HLOC_SYEVD, HLOC_GESDD, HLOC_TRSM, HLOC_GTSV,
       HLOC_GEHRD, HLOC_SYTRD, HLOC_GEES, HLOC_GESVD, HLOC_GEEV, HLOC_LAPACK_ROUTINES };

/* rows, columns: of the first operand's matrices; other: the factors of orgqr, the right sides of trsm
 * and gtsv, whose three diagonals are columns. type: 0 f32,
 * 1 f64, 2 c64, 3 c128. options: LAPACK's letters in the order in which its functions take them. info: the operand or
 * result for LAPACK's info, -1: none. */
typedef struct {
  int routine, type;
  long batch;
  int rows, columns, other;
  char options[5];
  int info;
} hloc_lapack_call;

/* The functions, [routine][type]; hloc/targets/cpu/execution/lapack.py fills it in when the program is loaded. */
extern void *hloc_lapack_table[HLOC_LAPACK_ROUTINES][4];

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

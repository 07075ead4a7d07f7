/* communicator.h: how the devices of a program exchange arrays: a table of functions that the caller of a program hands
 * to it. threads.c has one for the threads of a process, mpi.c one for the processes of an MPI job.
 *
 * Each device calls the same program with a communicator of its own, which knows its number. Where devices meet, the
 * program calls the function of the operation, which starts it, and later `done`, after which the results are there.
 * Between the two neither operands nor results may be touched. Functions return 0, or a code that ends the run;
 * `message` then says what happened.
 *
 * A group is the devices that work together in a collective, in its order; k is their number.
 *
 *                        in                                  out
 *   all_reduce           in[a]: array a                      out[a]: the arrays a of all members, combined
 *   reduce_scatter       in[a]: k blocks                     out[a]: the block of this member, combined
 *   all_gather           in[a]: a block                      out[a]: the k blocks of the members
 *   all_to_all           in[j]: the block for member j       out[j]: the block from member j     (blocks[0])
 *   broadcast            in[a]                               out[a]: that of the first member; zeros outside of groups
 *   permute              in[a]                               out[a]: that of the source; zeros without one
 *   send                 in[a], to the target                nothing
 *   recv                 nothing                             out[a], of the oldest send not received; zeros without one
 *   ragged_all_to_all    rows, the result's first rows,      out[0]: rows from all members
 *                        and four vectors of k * n integers: starts of rows, counts, starts in the result, counts there
 *
 * A block is `rows` runs of `run` bytes. In an array of k blocks the runs of members 0, 1 ... alternate: two of one
 * block are `stride` bytes apart. A block by itself is contiguous. */
#ifndef HLOC_COMMUNICATOR_H
#define HLOC_COMMUNICATOR_H
#include <stdint.h>
#if defined(__cplusplus)
extern "C" {
#endif

/* Codes of threads.c and mpi.c: a device fails because others do not come; because another one has failed. */
enum { HLOC_COMMUNICATOR_VERSION = 1, HLOC_COMBINED_AT_ONCE = 4096, HLOC_DEVICES_FAIL = 14, HLOC_OTHERS_FAIL = 15 };

/* op: of a reduction: add, multiply, maximum, minimum, and, or, xor, else "other". type: as HLO writes it; each element
 * has `element` bytes. combine: of at most HLOC_COMBINED_AT_ONCE elements: buffers[0 .. k - 1] are those of the
 * members, in order, buffers[k] the result, buffers[k + 1] their number, an int64_t; begin and end are 0 and 1. Sums of
 * floats are rounded once. The result may be one of the operands. */
typedef struct {
  const char *type, *op;
  int64_t element, rows, run, stride;
  void (*combine)(void *const *buffers, long begin, long end);
} hloc_block;

enum hloc_kind { HLOC_ALL_REDUCE, HLOC_REDUCE_SCATTER, HLOC_ALL_GATHER, HLOC_ALL_TO_ALL, HLOC_BROADCAST, HLOC_PERMUTE,
                 HLOC_SEND, HLOC_RECV, HLOC_RAGGED_ALL_TO_ALL };

/* number: of this collective among those of the program; a send and its recv have the same. name: for messages. blocks:
 * of its arrays, `count` of them. groups: their number, then the size of each and its devices. pairs: of permute, send
 * and recv: their number, then source and target of each. */
typedef struct {
  enum hloc_kind kind;
  int32_t number, count;
  const char *name;
  const hloc_block *blocks;
  const int32_t *groups, *pairs;
} hloc_collective;

typedef struct hloc_communicator hloc_communicator;
typedef int (*hloc_start_collective)(hloc_communicator *self, const hloc_collective *what, const void *const *in,
                                     void *const *out);
struct hloc_communicator {
  int32_t version, device, devices;
  hloc_start_collective all_reduce, reduce_scatter, all_gather, all_to_all, broadcast, permute, send, recv,
      ragged_all_to_all;
  int (*done)(hloc_communicator *self, const hloc_collective *what);
  /* Before a run of a program with so many collectives. digest: the same for the same program. */
  int (*begin)(hloc_communicator *self, const char *digest, int32_t collectives);
  /* This device's run has ended with an error: the others must not wait for it. */
  void (*failed)(hloc_communicator *self);
  const char *(*message)(hloc_communicator *self);
};

#if defined(__cplusplus)
}
#endif
#endif
